// Which addresses of a device are mapped, as far as its history has told: disjoint ranges, each as it was added.
// Neighbours are not joined, so that what was announced as one piece can be withdrawn as one. No lock: its user has one.
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace pyalloc_bridge {

class MappedRanges {
 public:
  // Calls `added(begin, end)` for each part of [begin, end) that was not mapped.
  template <class Added>
  void add(uint64_t begin, uint64_t end, Added&& added) {
    while (begin < end) {
      auto next = ranges_.upper_bound(begin);
      if (next != ranges_.begin() && std::prev(next)->second > begin) {
        begin = std::prev(next)->second;
        continue;
      }
      const uint64_t stop = next == ranges_.end() ? end : std::min(end, next->first);
      ranges_.emplace(begin, stop);
      added(begin, stop);
      begin = stop;
    }
  }

  // Calls `removed(begin, end, whole_begin, whole_end)` for each part of [begin, end) that was mapped, with the range it
  // was a part of; what is left of that stays, as one or two ranges.
  template <class Removed>
  void remove(uint64_t begin, uint64_t end, Removed&& removed) {
    if (begin >= end) return;
    auto at = ranges_.upper_bound(begin);
    if (at != ranges_.begin() && std::prev(at)->second > begin) --at;
    while (at != ranges_.end() && at->first < end) {
      const auto [whole_begin, whole_end] = *at;
      const uint64_t low = std::max(begin, whole_begin), high = std::min(end, whole_end);
      at = ranges_.erase(at);
      if (whole_begin < low) ranges_.emplace(whole_begin, low);
      if (high < whole_end) at = ranges_.emplace(high, whole_end).first;
      removed(low, high, whole_begin, whole_end);
      begin = high;
    }
  }

  bool contains(uint64_t begin, uint64_t end) const {
    while (begin < end) {
      auto next = ranges_.upper_bound(begin);
      if (next == ranges_.begin() || std::prev(next)->second <= begin) return false;
      begin = std::prev(next)->second;
    }
    return true;
  }

  void clear() { ranges_.clear(); }
  const std::map<uint64_t, uint64_t>& ranges() const { return ranges_; }  // begin to end

 private:
  std::map<uint64_t, uint64_t> ranges_;
};

}  // namespace pyalloc_bridge
