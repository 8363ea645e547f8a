// A lane's extents: blocks from 16 KiB to 1 MiB, and slabs.
#include "base/bits.h"
#include "heap/device_heap.h"
#include "heap/lane.h"

namespace pyalloc {

// True when at least `least` live blocks touch every slot under [start, start + units).
bool Lane::all_slots_live(uint32_t start, uint32_t units, uint32_t least) const {
  const AddressSpace& memory = space_->memory();
  uint64_t offset = uint64_t{start} * kUnit;
  auto first = static_cast<uint32_t>(offset / memory.granule_bytes());
  auto last = static_cast<uint32_t>((offset + uint64_t{units} * kUnit - 1) / memory.granule_bytes());
  for (uint32_t index = first; index <= last; ++index) {
    if (memory.slot(index).live < least) return false;
  }
  return true;
}

// With the lock held. Finds a place and puts memory behind it.
Status Lane::take_extent(uint32_t units, uint32_t alignment, RangeState state, uint64_t requested, NodeId& taken) {
  if (asleep_) return heap_.refuse_asleep(pool_);
  if (space_ == nullptr) {
    Status status = heap_.make_space(*this);
    if (status != kOk) return status;
  }
  if (units > space_->extents().units()) return heap_.too_large();
  Extents& extents = space_->extents();
  NodeId id = extents.quick_fit(kClean, units + alignment - 1);
  if (id != kNoNode) {
    auto start = static_cast<uint32_t>(align_up(extents.range(id).start, alignment));
    if (all_slots_live(start, units, 1)) {  // mapped, and nobody can take it away: no need of the heap
      taken = extents.take(id, start, units, state, index_, requested);
      AddressSpace& memory = space_->memory();
      uint64_t offset = uint64_t{start} * kUnit;
      auto last = static_cast<uint32_t>((offset + uint64_t{units} * kUnit - 1) / memory.granule_bytes());
      for (auto index = static_cast<uint32_t>(offset / memory.granule_bytes()); index <= last; ++index)
        ++memory.slot(index).live;
      return kOk;
    }
  }
  return heap_.place_in_lane(*this, units, alignment, state, requested, taken);
}

// With the lock held.
void Lane::give_extent(NodeId id) {
  const Range& range = space_->extents().range(id);
  if (all_slots_live(range.start, range.length, 2)) {  // no granule becomes idle
    AddressSpace& memory = space_->memory();
    uint64_t offset = uint64_t{range.start} * kUnit;
    auto last = static_cast<uint32_t>((offset + uint64_t{range.length} * kUnit - 1) / memory.granule_bytes());
    for (auto index = static_cast<uint32_t>(offset / memory.granule_bytes()); index <= last; ++index)
      --memory.slot(index).live;
  } else {
    heap_.uncommit_in_lane(*this, range);
  }
  space_->extents().give(id, kClean, 0);
}

NodeId Lane::live_extent_at(uint64_t address) const {
  NodeId id = space_->start_in_cell(address);
  if (id == kNoNode) return kNoNode;
  const Range& range = space_->extents().range(id);
  return range.state == RangeState::kLive && space_->address(range) == address ? id : kNoNode;
}

// A block that could have been a slot is counted with its class, whatever it is.
void Lane::forget_extent(const Range& range) {
  if (range.requested <= kLargestMiddle) count_live(size_class(range.requested), -1);
}

Status Lane::allocate_extent(size_t bytes, void** pointer, uint64_t birth) {
  heap_.poll_pending();
  uint64_t units = (bytes + kUnit - 1) / kUnit;
  if (units > UINT32_MAX) return heap_.too_large();
  Usage usage{1, static_cast<int64_t>(units * kUnit), static_cast<int64_t>(bytes)};
  Lock lock(mutex_);
  NodeId id = kNoNode;
  Status status = take_extent(static_cast<uint32_t>(units), 1, RangeState::kLive, bytes, id);
  if (status != kOk) return status;
  uint64_t address = space_->address(space_->extents().range(id));
  space_->set_start(address, id);
  space_->extents().range(id).stamp = birth;
  if (bytes <= kLargestMiddle) count_live(size_class(bytes), 1);
  if (arena_) user_ = &this_thread;
  bool counted = counted_.hand_out(usage);
  lock.unlock();
  *pointer = reinterpret_cast<void*>(address);
  if (__builtin_expect(!counted || heap_.has_listeners(), 0)) tell_hand_out(address, usage, counted);
  return kOk;
}

Status Lane::deallocate_extent(uint64_t address, pyalloc_freed* freed) {
  Lock lock(mutex_);
  NodeId id = live_extent_at(address);
  if (id == kNoNode) return heap_.bad_free(address);
  Range& range = space_->extents().range(id);
  Usage usage{1, static_cast<int64_t>(range.length * kUnit), static_cast<int64_t>(range.requested)};
  if (freed != nullptr) *freed = {heap_.device(), stream_, range.requested, range.length * kUnit};
  if (range.escaped) --escaped_live_;
  if (range.stamp != 0) lifetimes->died(range.length, range.stamp);
  if (range.tag != kNoTag) tag_account(range.tag).discharge(usage.requested);
  if (range.recorded) {
    range.state = RangeState::kPending;
    range.recorded = false;
    counted_.take_back_pending(usage);
    block_counters_.pending_started(kind(), usage);
    heap_.free_later({space_.get(), id, nullptr, 0, kind(), usage.bytes, {}}, address, stream_);
    return kOk;
  }
  counted_.take_back(usage);
  heap_.note_free(address, range.length * kUnit, stream_);
  space_->set_start(address, kNoNode);
  forget_extent(range);
  give_extent(id);
  return kOk;
}

// --- the steps of an arena ---

void Lane::escape(uint64_t bytes) {
  ++escaped_live_;
  auto found = escapes_.find(bytes);
  ++(found == escapes_.end() && escapes_.size() >= kMostEscapeSizes ? escapes_[0] : escapes_[bytes]);
}

void Lane::end_step() {
  Lock lock(mutex_);
  if (user_ != &this_thread) return;
  free_empty_slabs();
  if (live().blocks <= escaped_live_) return;
  Extents& extents = space_->extents();
  for (NodeId id = extents.first(); id != kNoNode; id = extents.range(id).next) {
    Range& range = extents.range(id);
    if (range.state == RangeState::kLive && !range.escaped) {
      range.escaped = true;
      escape(range.requested);
    }
    if (range.state != RangeState::kSlab) continue;
    Slab& slab = *space_->slab_at(space_->address(range));
    for (unsigned slot = 0; slot < slab.slots; ++slot) {
      if (!slab.live(slot) || Slab::test(slab.escaped_bits, slot)) continue;
      slab.mark(slab.escaped_bits, slot);
      escape(slab.requested(slot));
    }
  }
}

void Lane::add_escapes(std::map<uint64_t, int64_t>& sizes) {
  Lock lock(mutex_);
  for (const auto& [bytes, blocks] : escapes_) sizes[bytes] += blocks;
}

}  // namespace pyalloc
