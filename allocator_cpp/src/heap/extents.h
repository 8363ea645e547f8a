// Pure arithmetic of one address space: live and free ranges in address order, and the search for a place. No driver,
// no lock, no memory is touched; positions and lengths are units of 512 B from the start of the space.
//
// A free range remembers its `owner`, the stream that freed it last, and a `stamp`, the position in that stream's work
// (clean ranges, owner 0, wait for nobody). Neighbours join only when they share an owner, the later stamp wins. Every
// owner has bins of its own: one list per size bin (eight bins a power of two) and a bitmap over the bins, so that the
// next fitting range is found in constant time. A list is in order of length, then address, as far as a bounded look at
// its head keeps it so: what is taken is the best fit, or nearly. With no looks, what was freed last is taken first.
//
// The last range, while free, is the fresh end of the space: always a candidate, whatever the bins hold.
//
// Invariants (validate): ranges tile the space without gap or overlap; free neighbours of one owner are joined; every
// free range is in exactly the bin of its owner and size; counts agree. Called by Space with the heap's lock held.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "facts/tag_accounts.h"

namespace pyalloc {

using NodeId = uint32_t;
constexpr NodeId kNoNode = 0;  // node 0 is never a range
constexpr uint16_t kClean = 0;

enum class RangeState : uint8_t { kUnused, kFree, kLive, kSlab, kPending };

struct Range {
  uint32_t start = 0, length = 0;
  NodeId previous = kNoNode, next = kNoNode;  // neighbours by address
  NodeId bin_previous = kNoNode,
         bin_next = kNoNode;  // free ranges: neighbours in the bin; live ranges: bin_next links unused nodes
  uint64_t stamp = 0;         // free: the owner's work up to here may use it; live: its birth (lifetimes.h), or 0
  uint64_t requested = 0;     // live: bytes asked
  TagId tag = kNoTag;         // live: who pays for it
  uint16_t owner = kClean;    // free: stream that freed it; live: stream it was allocated on
  bool recorded = false;      // live: also used on other streams (record_stream)
  bool escaped = false;       // live, in an arena: outlived the step it was allocated in
  RangeState state = RangeState::kUnused;
};

class Extents {
 public:
  static constexpr int kSortedLooks = 16;
  // sorted_looks: how far a freed range looks for its place in its list; 0: it goes first.
  explicit Extents(uint32_t units, int sorted_looks = kSortedLooks);

  uint32_t units() const { return units_; }
  const Range& range(NodeId id) const { return ranges_[id]; }
  Range& range(NodeId id) { return ranges_[id]; }
  bool is_range(NodeId id) const {
    return id != kNoNode && id < ranges_.size() && ranges_[id].state != RangeState::kUnused;
  }

  // Free ranges of `owner` with at least `length` units, in growing size bins, at most `limit` of them are offered to
  // `offer(id)`; ranges of the lowest bin may be too short and are skipped (counted against the limit eight times
  // less).
  template <class Offer>
  void fitting(uint16_t owner, uint32_t length, int limit, Offer&& offer) const;

  // A free range of `owner` with at least `length` units from the lowest bin where every range is long enough, or the
  // shortest look in the bin below it; none when there is none. Constant time.
  NodeId quick_fit(uint16_t owner, uint32_t length) const;

  // The free range that holds all of [start, start + length); none when something else lies there. Walks the ranges.
  NodeId free_range_over(uint32_t start, uint32_t length) const;

  // Cuts [start, start + length) out of free range `id` and marks it live. The rest stays free with its owner and
  // stamp.
  NodeId take(NodeId id, uint32_t start, uint32_t length, RangeState state, uint16_t owner, uint64_t requested);
  // Free range `id` and the free range behind it, which both keep some, meet at `border` from now on.
  void move_border(NodeId id, uint32_t border);
  // Undoes take(): the range becomes free again with this owner and stamp and joins equal neighbours. Returns the
  // joined range.
  NodeId give(NodeId id, uint16_t owner, uint64_t stamp);
  // Free ranges of `owner` stamped at or before `done` become clean and join clean neighbours.
  void clean(uint16_t owner, uint64_t done);

  bool has_free(uint16_t owner) const { return owner < bins_.size() && bins_[owner].count > 0; }
  uint16_t owners() const { return static_cast<uint16_t>(bins_.size()); }
  int64_t free_ranges() const { return free_ranges_; }
  int64_t live_ranges() const { return live_ranges_; }
  size_t metadata_bytes() const;

  NodeId first() const { return first_; }
  NodeId last() const { return last_; }
  // The whole-structure truth; `reason` says what is broken.
  bool validate(std::string& reason) const;

 private:
  static constexpr int kBins = 256;
  struct Bins {
    uint64_t used[kBins / 64] = {};
    NodeId head[kBins] = {};
    int64_t count = 0;
  };

  static int bin_of(uint32_t length);
  Bins& bins(uint16_t owner);
  void insert(NodeId id);
  void remove(NodeId id);
  NodeId new_range();
  void drop_range(NodeId id);
  NodeId join(NodeId id);

  const uint32_t units_;
  const int sorted_looks_;
  std::vector<Range> ranges_;
  std::vector<Bins> bins_;
  NodeId unused_ = kNoNode;
  NodeId first_ = kNoNode, last_ = kNoNode;
  int64_t free_ranges_ = 0, live_ranges_ = 0;
};

template <class Offer>
void Extents::fitting(uint16_t owner, uint32_t length, int limit, Offer&& offer) const {
  if (owner >= bins_.size()) return;
  const Bins& set = bins_[owner];
  int too_short = 0;
  for (int bin = bin_of(length); bin < kBins; ++bin) {
    uint64_t word = set.used[bin / 64] >> (bin % 64);
    if (word == 0) {
      bin = bin / 64 * 64 + 63;
      continue;
    }
    bin += __builtin_ctzll(word);
    for (NodeId id = set.head[bin]; id != kNoNode; id = ranges_[id].bin_next) {
      if (ranges_[id].length < length) {
        if (++too_short >= 8 * limit) break;
        continue;
      }
      if (!offer(id) || --limit <= 0) return;
    }
  }
}

}  // namespace pyalloc
