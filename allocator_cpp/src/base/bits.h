// Sizes, alignment and bit scanning.
#pragma once
#include <cstddef>
#include <cstdint>

namespace pyalloc {

constexpr size_t kKiB = size_t{1} << 10;
constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kGiB = size_t{1} << 30;

// What threads write at the same time lies this far apart: two cache lines, since processors fetch them in pairs.
constexpr size_t kOwnLines = 128;

constexpr uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}
constexpr uint64_t align_down(uint64_t value, uint64_t alignment) { return value / alignment * alignment; }
constexpr bool is_power_of_two(uint64_t value) { return value != 0 && (value & (value - 1)) == 0; }

// Index of the lowest / highest set bit; `value` is not 0.
inline unsigned lowest_bit(uint64_t value) { return static_cast<unsigned>(__builtin_ctzll(value)); }
inline unsigned highest_bit(uint64_t value) { return 63u - static_cast<unsigned>(__builtin_clzll(value)); }

}  // namespace pyalloc
