// Milliseconds: monotonic, for decay and rate limits, and since 1970, for people. Never read on the hot path.
#pragma once
#include <chrono>
#include <cstdint>

namespace pyalloc {

inline int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline int64_t unix_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace pyalloc
