// Blocks that have a handle each: the larger ones of a contiguous pool. A block is whole granules, and what it leaves when
// it is freed, its handle idle at its place, serves the next of as many granules; other sizes get addresses where nothing
// is mapped. So no block ever lies over the border of two handles.
#include <algorithm>

#include "driver/context_scope.h"
#include "heap/device_heap.h"

namespace pyalloc {

// A free place with an idle handle of just so many granules, of the stream's own and clean ranges, or, foreign, of others.
DeviceHeap::Choice DeviceHeap::whole_fit(const Space& space, uint32_t units, StreamIndex stream, bool foreign) const {
  const Extents& extents = space.extents();
  const AddressSpace& memory = space.memory();
  uint32_t slot_units = static_cast<uint32_t>(granule_bytes_ / kUnit), slots = units / slot_units;
  for (NodeId id = extents.first(); id != kNoNode; id = extents.range(id).next) {
    const Range& range = extents.range(id);
    bool mine = range.owner == stream || range.owner == kClean;
    if (range.state != RangeState::kFree || mine == foreign) continue;
    uint32_t end = std::min((range.start + range.length) / slot_units, memory.highest_used());
    for (uint32_t slot = range.start / slot_units; slot < end;) {
      HandleId handle = memory.slot(slot).handle;
      uint32_t granules = handle != 0 ? backing_.granules().handle(handle).granules : 1;
      if (handle != 0 && granules == slots) {
        Choice choice{id, slot * slot_units, cost_of(space, slot * slot_units, units, stream)};
        if (!choice.cost.impossible) return choice;
      }
      slot += granules;
    }
  }
  return {};
}

// The lowest addresses of a free range, whoever freed it, where nothing is mapped: what is to be mapped there has no
// earlier use.
DeviceHeap::Choice DeviceHeap::unmapped_fit(const Space& space, uint32_t units) const {
  const Extents& extents = space.extents();
  const AddressSpace& memory = space.memory();
  uint32_t slot_units = static_cast<uint32_t>(granule_bytes_ / kUnit), slots = units / slot_units;
  for (NodeId id = extents.first(); id != kNoNode; id = extents.range(id).next) {
    const Range& range = extents.range(id);
    if (range.state != RangeState::kFree || range.length < units) continue;
    uint32_t first = range.start / slot_units, end = first + range.length / slot_units;
    for (uint32_t slot = first; slot < end && slot - first < slots; ++slot)
      if (memory.slot(slot).handle != 0 || memory.slot(slot).stale) first = slot + 1;
    if (first + uint64_t{slots} > end) continue;
    Choice choice{id, first * slot_units, {}};
    choice.cost.missing = slots;
    return choice;
  }
  return {};
}

Status DeviceHeap::place_whole(Space& space, uint32_t units, StreamIndex stream, uint64_t requested, NodeId& placed) {
  ContextScope context(context_);
  clean_finished(space);
  if (backing_.granules().idle() > 0) backing_.poll_streams();
  Choice choice = whole_fit(space, units, stream, false);
  auto missing = static_cast<int64_t>(uint64_t{units} * kUnit / granule_bytes_);
  if (choice.range == kNoNode && !backing_.affordable(missing) && backing_.policy().cross_stream_wait) {
    choice = whole_fit(space, units, stream, true);
    if (choice.range != kNoNode) {
      const Range& range = space.extents().range(choice.range);
      if (!clocks_.wait(stream, range.owner, range.stamp)) choice = {};
    }
  }
  if (choice.range == kNoNode) choice = unmapped_fit(space, units);
  if (choice.range == kNoNode) {  // idle handles of other sizes are in the way
    backing_.undo_stale(SIZE_MAX);
    backing_.give_back(INT64_MAX, SIZE_MAX);
    choice = unmapped_fit(space, units);
  }
  if (choice.range == kNoNode) {
    refused_by(kNoPool, false);
    return fail(PYALLOC_OUT_OF_MEMORY, "the pool's %llu GiB of addresses are used up",
                static_cast<unsigned long long>(space.memory().bytes() / kGiB));
  }
  return put(space, choice, units, stream, RangeState::kLive, requested, placed);
}

}  // namespace pyalloc
