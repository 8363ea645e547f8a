// Size classes, and the slabs that hold their slots.
//
// Small classes, up to 16 KiB: every 512 B (torch's alignment) up to 8 KiB, then every 1 KiB; always slots of slabs. A
// request wastes less than one step: at most 11 % from 4 KiB up. Middle classes, up to 256 KiB: sixteen to a power of
// two, so at most 6 % waste. A lane gives such a class slabs only while it has many live blocks of it (lane.h);
// otherwise, and above 256 KiB, blocks are extents without rounding beyond 512 B.
//
// A slab is one extent of a lane's space with slots of one class, a whole number of 16 KiB cells long.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/bits.h"

namespace pyalloc {

constexpr size_t kUnit = 512;                  // alignment of every block, and the unit of extents
constexpr size_t kLargestSmall = 16 * kKiB;    // requests up to this are always slots
constexpr size_t kLargestMiddle = 256 * kKiB;  // requests up to this may be
constexpr size_t kLargestFine = 1 * kMiB;      // larger ones live in the coarse space that all streams share
constexpr int kSmallClasses = 24, kMiddleClasses = 64, kSizeClasses = kSmallClasses + kMiddleClasses;
constexpr size_t kSlabSlots = 128;  // at most, so that two words are a slab's bitmap

inline int size_class(size_t bytes) {  // bytes: 1 .. kLargestMiddle
  if (bytes <= 8 * kKiB) return static_cast<int>((bytes + 511) / 512) - 1;
  if (bytes <= kLargestSmall) return static_cast<int>((bytes + 1023) / 1024) + 7;
  unsigned power = highest_bit(bytes - 1);  // 14 .. 17: bytes is over 2^power, at most twice that
  return kSmallClasses + static_cast<int>((power - 14) * 16 + ((bytes - 1) >> (power - 4)) - 16);
}
constexpr size_t class_bytes(int index) {
  if (index < 16) return (static_cast<size_t>(index) + 1) * 512;
  if (index < kSmallClasses) return (static_cast<size_t>(index) - 7) * 1024;
  auto middle = static_cast<size_t>(index - kSmallClasses);
  return (middle % 16 + 17) << (middle / 16 + 10);
}
constexpr size_t slab_bytes(int index) {
  size_t slot = class_bytes(index);
  if (index < kSmallClasses) return slot <= 1 * kKiB ? 64 * kKiB : slot <= 4 * kKiB ? 128 * kKiB : 256 * kKiB;
  return slot * (slot <= 64 * kKiB ? 16 : 8);
}
constexpr size_t slab_slots(int index) { return slab_bytes(index) / class_bytes(index); }

struct SlotsOfSlab {  // slab_slots() without its division
  int of[kSizeClasses] = {};
  constexpr SlotsOfSlab() {
    for (int index = 0; index < kSizeClasses; ++index) of[index] = static_cast<int>(slab_slots(index));
  }
  constexpr int operator[](int index) const { return of[index]; }
};
inline constexpr SlotsOfSlab kSlotsOfSlab;

static_assert(class_bytes(16) == 9 * kKiB && class_bytes(kSmallClasses - 1) == kLargestSmall);
static_assert(class_bytes(kSmallClasses) == 17 * kKiB && class_bytes(kSizeClasses - 1) == kLargestMiddle);
static_assert(slab_slots(0) == kSlabSlots);

}  // namespace pyalloc
