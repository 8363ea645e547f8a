#include "heap/extents.h"

#include "base/bits.h"
#include "base/check.h"

namespace pyalloc {

Extents::Extents(uint32_t units, int sorted_looks) : units_(units), sorted_looks_(sorted_looks) {
  ranges_.resize(1);
  first_ = last_ = new_range();
  Range& all = ranges_[first_];
  all.length = units;
  all.state = RangeState::kFree;
  insert(first_);
}

// Bins of width one up to 8 units, then eight to a power of two.
int Extents::bin_of(uint32_t length) {
  if (length < 8) return static_cast<int>(length);
  unsigned power = highest_bit(length);
  return static_cast<int>(8 * (power - 2) + ((length >> (power - 3)) & 7));
}

Extents::Bins& Extents::bins(uint16_t owner) {
  if (owner >= bins_.size()) bins_.resize(owner + size_t{1});
  return bins_[owner];
}

void Extents::insert(NodeId id) {
  Range& one = ranges_[id];
  Bins& set = bins(one.owner);
  int bin = bin_of(one.length);
  auto before_one = [&](const Range& other) {
    return other.length != one.length ? other.length < one.length : other.start < one.start;
  };
  NodeId previous = kNoNode, next = set.head[bin];
  for (int looks = 0; looks < sorted_looks_ && next != kNoNode && before_one(ranges_[next]); ++looks) {
    previous = next;
    next = ranges_[next].bin_next;
  }
  one.bin_previous = previous;
  one.bin_next = next;
  if (next != kNoNode) ranges_[next].bin_previous = id;
  (previous != kNoNode ? ranges_[previous].bin_next : set.head[bin]) = id;
  set.used[bin / 64] |= uint64_t{1} << (bin % 64);
  ++set.count;
  ++free_ranges_;
}

void Extents::remove(NodeId id) {
  Range& one = ranges_[id];
  Bins& set = bins_[one.owner];
  int bin = bin_of(one.length);
  if (one.bin_previous != kNoNode) ranges_[one.bin_previous].bin_next = one.bin_next;
  if (one.bin_next != kNoNode) ranges_[one.bin_next].bin_previous = one.bin_previous;
  if (set.head[bin] == id) {
    set.head[bin] = one.bin_next;
    if (one.bin_next == kNoNode) set.used[bin / 64] &= ~(uint64_t{1} << (bin % 64));
  }
  one.bin_previous = one.bin_next = kNoNode;
  --set.count;
  --free_ranges_;
}

NodeId Extents::new_range() {
  if (unused_ != kNoNode) {
    NodeId id = unused_;
    unused_ = ranges_[id].bin_next;
    ranges_[id] = Range{};
    return id;
  }
  ranges_.emplace_back();
  return static_cast<NodeId>(ranges_.size() - 1);
}

void Extents::drop_range(NodeId id) {
  ranges_[id] = Range{};
  ranges_[id].bin_next = unused_;
  unused_ = id;
}

NodeId Extents::quick_fit(uint16_t owner, uint32_t length) const {
  if (owner >= bins_.size()) return kNoNode;
  const Bins& set = bins_[owner];
  int bin = bin_of(length);
  NodeId head = set.head[bin];
  for (int look = 0; look < 2 && head != kNoNode; ++look, head = ranges_[head].bin_next) {
    if (ranges_[head].length >= length) return head;
  }
  for (int word = (bin + 1) / 64; word < kBins / 64; ++word) {
    uint64_t used = set.used[word];
    if (word == (bin + 1) / 64) used &= ~uint64_t{0} << ((bin + 1) % 64);
    if (used != 0) return set.head[word * 64 + static_cast<int>(lowest_bit(used))];
  }
  return kNoNode;
}

NodeId Extents::free_range_over(uint32_t start, uint32_t length) const {
  NodeId id = first_;
  while (id != kNoNode && uint64_t{ranges_[id].start} + ranges_[id].length <= start) id = ranges_[id].next;
  if (id == kNoNode || ranges_[id].state != RangeState::kFree) return kNoNode;
  return uint64_t{start} + length <= uint64_t{ranges_[id].start} + ranges_[id].length ? id : kNoNode;
}

void Extents::move_border(NodeId id, uint32_t border) {
  NodeId behind = ranges_[id].next;
  PYALLOC_ASSERT(behind != kNoNode && ranges_[id].state == RangeState::kFree);
  PYALLOC_ASSERT(ranges_[behind].state == RangeState::kFree);
  uint32_t end = ranges_[behind].start + ranges_[behind].length;
  PYALLOC_ASSERT(ranges_[id].start < border && border < end);
  remove(id);
  remove(behind);
  ranges_[id].length = border - ranges_[id].start;
  ranges_[behind].start = border;
  ranges_[behind].length = end - border;
  insert(id);
  insert(behind);
}

NodeId Extents::take(NodeId id, uint32_t start, uint32_t length, RangeState state, uint16_t owner, uint64_t requested) {
  PYALLOC_ASSERT(ranges_[id].state == RangeState::kFree && length > 0);
  PYALLOC_ASSERT(start >= ranges_[id].start && start + length <= ranges_[id].start + ranges_[id].length);
  remove(id);
  uint32_t before = start - ranges_[id].start;
  uint32_t after = ranges_[id].length - before - length;
  if (before > 0) {  // the low part keeps the free range's place; `id` moves up
    NodeId low = new_range();
    Range& piece = ranges_[low];
    Range& whole = ranges_[id];
    piece.start = whole.start;
    piece.length = before;
    piece.owner = whole.owner;
    piece.stamp = whole.stamp;
    piece.state = RangeState::kFree;
    piece.previous = whole.previous;
    piece.next = id;
    if (piece.previous != kNoNode) ranges_[piece.previous].next = low;
    if (first_ == id) first_ = low;
    whole.previous = low;
    whole.start = start;
    whole.length -= before;
    insert(low);
  }
  if (after > 0) {
    NodeId high = new_range();
    Range& piece = ranges_[high];
    Range& whole = ranges_[id];
    piece.start = start + length;
    piece.length = after;
    piece.owner = whole.owner;
    piece.stamp = whole.stamp;
    piece.state = RangeState::kFree;
    piece.previous = id;
    piece.next = whole.next;
    (piece.next != kNoNode ? ranges_[piece.next].previous : last_) = high;
    whole.next = high;
    whole.length = length;
    insert(high);
  }
  Range& taken = ranges_[id];
  taken.state = state;
  taken.owner = owner;
  taken.requested = requested;
  taken.recorded = taken.escaped = false;
  taken.tag = kNoTag;
  taken.stamp = 0;
  ++live_ranges_;
  return id;
}

// Joins free range `id` (not in a bin) with free neighbours of the same owner; returns the range that remains, not in a
// bin.
NodeId Extents::join(NodeId id) {
  auto same = [&](NodeId other) {
    return other != kNoNode && ranges_[other].state == RangeState::kFree && ranges_[other].owner == ranges_[id].owner;
  };
  NodeId previous = ranges_[id].previous;
  if (same(previous)) {
    remove(previous);
    Range& low = ranges_[previous];
    const Range& high = ranges_[id];
    low.length += high.length;
    if (high.stamp > low.stamp) low.stamp = high.stamp;
    low.next = high.next;
    (low.next != kNoNode ? ranges_[low.next].previous : last_) = previous;
    drop_range(id);
    id = previous;
  }
  NodeId next = ranges_[id].next;
  if (same(next)) {
    remove(next);
    Range& low = ranges_[id];
    const Range& high = ranges_[next];
    low.length += high.length;
    if (high.stamp > low.stamp) low.stamp = high.stamp;
    low.next = high.next;
    (low.next != kNoNode ? ranges_[low.next].previous : last_) = id;
    drop_range(next);
  }
  return id;
}

NodeId Extents::give(NodeId id, uint16_t owner, uint64_t stamp) {
  Range& one = ranges_[id];
  PYALLOC_ASSERT(one.state != RangeState::kFree && one.state != RangeState::kUnused);
  one.state = RangeState::kFree;
  one.owner = owner;
  one.stamp = owner == kClean ? 0 : stamp;
  one.requested = 0;
  one.recorded = false;
  --live_ranges_;
  id = join(id);
  insert(id);
  return id;
}

void Extents::clean(uint16_t owner, uint64_t done) {
  if (owner == kClean || owner >= bins_.size()) return;
  for (int bin = 0; bin < kBins; ++bin) {
    NodeId next = kNoNode;
    for (NodeId id = bins_[owner].head[bin]; id != kNoNode; id = next) {
      next = ranges_[id].bin_next;
      if (ranges_[id].stamp > done) continue;
      remove(id);
      ranges_[id].owner = kClean;
      ranges_[id].stamp = 0;
      insert(join(id));
    }
  }
}

size_t Extents::metadata_bytes() const { return ranges_.capacity() * sizeof(Range) + bins_.capacity() * sizeof(Bins); }

bool Extents::validate(std::string& reason) const {
  auto broken = [&](const char* what, NodeId id) {
    const Range& one = ranges_[id];
    reason = std::string("extents: ") + what + " at range " + std::to_string(id) + " [" + std::to_string(one.start) +
             ", +" + std::to_string(one.length) + ")";
    return false;
  };
  uint64_t position = 0;
  int64_t free_seen = 0, live_seen = 0;
  NodeId previous = kNoNode;
  for (NodeId id = first_; id != kNoNode; id = ranges_[id].next) {
    const Range& one = ranges_[id];
    if (one.state == RangeState::kUnused) return broken("unused range in address order", id);
    if (one.start != position || one.length == 0) return broken("gap or overlap", id);
    if (one.previous != previous) return broken("wrong neighbour", id);
    if (one.state == RangeState::kFree) {
      ++free_seen;
      if (previous != kNoNode && ranges_[previous].state == RangeState::kFree && ranges_[previous].owner == one.owner)
        return broken("neighbours not joined", id);
      if (one.owner == kClean && one.stamp != 0) return broken("clean range with a stamp", id);
      int bin = bin_of(one.length);
      bool head = bins_[one.owner].head[bin] == id;
      if (head != (one.bin_previous == kNoNode)) return broken("not in its bin", id);
      if (one.bin_previous != kNoNode && ranges_[one.bin_previous].bin_next != id) return broken("bin list broken", id);
    } else {
      ++live_seen;
    }
    position += one.length;
    previous = id;
  }
  if (previous != last_) return broken("the last range is another", previous);
  if (position != units_) return broken("ranges do not reach the end", previous);
  int64_t binned = 0;
  for (size_t owner = 0; owner < bins_.size(); ++owner) {
    for (int bin = 0; bin < kBins; ++bin) {
      bool marked = (bins_[owner].used[bin / 64] >> (bin % 64)) & 1;
      if (marked != (bins_[owner].head[bin] != kNoNode))
        return broken("bitmap disagrees with its list", bins_[owner].head[bin]);
      for (NodeId id = bins_[owner].head[bin]; id != kNoNode; id = ranges_[id].bin_next) {
        ++binned;
        if (ranges_[id].state != RangeState::kFree || ranges_[id].owner != owner || bin_of(ranges_[id].length) != bin)
          return broken("wrong range in a bin", id);
        if (binned > free_seen) return broken("more ranges in bins than free", id);
      }
    }
  }
  if (binned != free_seen || free_seen != free_ranges_ || live_seen != live_ranges_)
    return broken("counts disagree", first_);
  return true;
}

}  // namespace pyalloc
