// Size classes of small blocks, and the slabs that hold them.
//
// Classes are multiples of 512 B (torch's alignment): every 512 B up to 8 KiB, then every 1 KiB up to 16 KiB. A request wastes less
// than one step, so at most half of itself at 513 B, 11 % from 4 KiB up. Larger requests are extents without rounding beyond 512 B.
// A slab is one extent of the fine space holding slots of one class: 64 KiB for the smallest, at most 256 KiB, so that a
// class in little use costs little.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/bits.h"

namespace pyalloc {

constexpr size_t kUnit = 512;                 // alignment of every block, and the unit of extents
constexpr size_t kSmallestExtent = 16 * kKiB;  // requests up to this are slots of slabs
constexpr int kSizeClasses = 24;
constexpr size_t kLargestFine = 1 * kMiB;     // larger ones live in the coarse space that all streams share
constexpr size_t kSlabSlots = 128;  // at most, so that two words are a slab's bitmap

constexpr int size_class(size_t bytes) {  // bytes: 1 .. kSmallestExtent
  return bytes <= 8 * kKiB ? static_cast<int>((bytes + 511) / 512) - 1 : static_cast<int>((bytes + 1023) / 1024) + 7;
}
constexpr size_t class_bytes(int size_class_index) {
  return size_class_index < 16 ? (static_cast<size_t>(size_class_index) + 1) * 512 : (static_cast<size_t>(size_class_index) - 7) * 1024;
}
constexpr size_t slab_bytes(int size_class_index) {
  size_t slot = class_bytes(size_class_index);
  return slot <= 1 * kKiB ? 64 * kKiB : slot <= 4 * kKiB ? 128 * kKiB : 256 * kKiB;
}
constexpr size_t slab_slots(int size_class_index) { return slab_bytes(size_class_index) / class_bytes(size_class_index); }

static_assert(size_class(1) == 0 && size_class(512) == 0 && size_class(513) == 1);
static_assert(size_class(8 * kKiB) == 15 && size_class(8 * kKiB + 1) == 16 && class_bytes(16) == 9 * kKiB);
static_assert(size_class(kSmallestExtent) == kSizeClasses - 1 && class_bytes(kSizeClasses - 1) == kSmallestExtent);
static_assert(slab_slots(0) == kSlabSlots);

}  // namespace pyalloc
