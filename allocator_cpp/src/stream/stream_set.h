// A set of streams in one word: a bit each for streams 1 to 62, and one bit for all later ones together.
#pragma once
#include <cstdint>

#include "base/bits.h"
#include "stream/stream_clocks.h"

namespace pyalloc {

constexpr StreamIndex kSharedBit = 63;

inline uint64_t stream_bit(StreamIndex stream) { return uint64_t{1} << (stream < kSharedBit ? stream : kSharedBit); }

// Calls visit(stream) for every stream the set may mean; stops and returns false when visit does.
template <class Visit>
bool each_stream(uint64_t set, StreamIndex end, Visit&& visit) {
  for (uint64_t left = set & ~(uint64_t{1} << kSharedBit); left != 0; left &= left - 1) {
    if (!visit(static_cast<StreamIndex>(lowest_bit(left)))) return false;
  }
  if ((set >> kSharedBit & 1) != 0) {
    for (StreamIndex stream = kSharedBit; stream < end; ++stream)
      if (!visit(stream)) return false;
  }
  return true;
}

}  // namespace pyalloc
