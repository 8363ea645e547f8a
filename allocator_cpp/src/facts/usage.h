// What blocks take, as three numbers that move together.
#pragma once
#include <cstdint>

namespace pyalloc {

struct Usage {
  int64_t blocks = 0;
  int64_t bytes = 0;      // rounded, as allocated
  int64_t requested = 0;  // as asked

  Usage& operator+=(const Usage& other) {
    blocks += other.blocks;
    bytes += other.bytes;
    requested += other.requested;
    return *this;
  }
  Usage& operator-=(const Usage& other) {
    blocks -= other.blocks;
    bytes -= other.bytes;
    requested -= other.requested;
    return *this;
  }
  friend Usage operator+(Usage a, const Usage& b) { return a += b; }
  friend Usage operator-(Usage a, const Usage& b) { return a -= b; }
  // True when every number of `other` fits into this one.
  bool covers(const Usage& other) const {
    return blocks >= other.blocks && bytes >= other.bytes && requested >= other.requested;
  }
  friend bool operator==(const Usage& a, const Usage& b) {
    return a.blocks == b.blocks && a.bytes == b.bytes && a.requested == b.requested;
  }
};

// torch's two kinds of block: up to 1 MiB, and larger.
enum Kind : int { kSmall = 0, kLarge = 1, kKinds = 2 };

}  // namespace pyalloc
