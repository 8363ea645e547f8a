// Where an extent goes: the search over free ranges, and the order of reuse (device_heap.h).
#include <algorithm>

#include "base/bits.h"
#include "driver/context_scope.h"
#include "heap/device_heap.h"

namespace pyalloc {
namespace {

// Candidates looked at per owner: fewer for large requests, so that a search looks at about this many slots.
constexpr int kSlotBudget = 8192, kMostCandidates = 32, kFewestCandidates = 4;

}  // namespace

Backing::Cost DeviceHeap::cost_of(const Space& space, uint32_t start, uint32_t units, StreamIndex stream) const {
  Piece piece = committed(space, start, units);
  return backing_.cost(space.memory(), piece.offset, piece.bytes, stream);
}

void DeviceHeap::consider_range(Space& space, NodeId id, uint32_t units, uint32_t alignment, StreamIndex stream,
                                Choice& choice) {
  const Range& range = space.extents().range(id);
  auto low = static_cast<uint32_t>(align_up(range.start, alignment));
  uint64_t end = uint64_t{range.start} + range.length;
  uint32_t slab = space.slab_units();
  if (slab > 0 && low / slab != (low + units - 1) / slab) low = static_cast<uint32_t>(align_up(low, slab));
  if (low + uint64_t{units} > end) return;
  auto high = static_cast<uint32_t>(align_down(end - units, alignment));
  if (slab > 0 && high / slab != (high + units - 1) / slab) high = std::max(low, high / slab * slab + slab - units);
  // Of the fresh end only its low end, since the space grows from there; or, where old mappings still stand, behind all
  // that was ever mapped.
  bool fresh_end = id == space.extents().last();
  if (fresh_end) {
    uint64_t unused =
        align_up(uint64_t{space.memory().highest_used()} * granule_bytes_ / kUnit, std::max(slab, alignment));
    high = unused > low && unused + units <= end ? static_cast<uint32_t>(unused) : low;
  }
  auto offer = [&](uint32_t start) {
    Backing::Cost cost = cost_of(space, start, units, stream);
    if (!cost.impossible && cost.score() < choice.score()) choice = {id, start, cost};
    return !cost.impossible;
  };
  bool possible = offer(low);
  if (high != low && !(fresh_end && possible)) offer(high);
}

void DeviceHeap::consider(Space& space, uint32_t units, uint32_t alignment, StreamIndex stream, uint16_t owner,
                          Choice& choice) {
  auto slots = static_cast<int>(uint64_t{units} * kUnit / granule_bytes_) + 1;
  int limit = std::clamp(kSlotBudget / slots, kFewestCandidates, kMostCandidates);
  space.extents().fitting(owner, units, limit, [&](NodeId id) {
    consider_range(space, id, units, alignment, stream, choice);
    return choice.score() != 0;
  });
}

// In an arena: the first that fits, in the order of the bins, whatever is mapped where. So the same requests get the same
// addresses, as long as their memory, if others took it meanwhile, can be put back there.
void DeviceHeap::consider_in_order(Space& space, uint32_t units, uint32_t alignment, StreamIndex stream,
                                   Choice& choice) {
  bool blocked = false;
  auto first_possible = [&] {
    blocked = false;
    space.extents().fitting(kClean, units + alignment - 1, kMostCandidates, [&](NodeId id) {
      auto start = static_cast<uint32_t>(align_up(space.extents().range(id).start, alignment));
      Backing::Cost cost = cost_of(space, start, units, stream);
      if (!cost.impossible) choice = {id, start, cost};
      blocked |= cost.impossible;
      return cost.impossible;
    });
  };
  first_possible();
  if (!blocked || !backing_.has_stale()) return;
  ContextScope scope(context_);
  backing_.undo_stale(SIZE_MAX);
  choice = Choice{};
  first_possible();
}

// The end of the space that no stream freed, and with it what `stream` freed just below.
void DeviceHeap::consider_fresh_end(Space& space, uint32_t units, uint32_t alignment, StreamIndex stream,
                                    Choice& choice) {
  Extents& extents = space.extents();
  NodeId fresh = extents.last();
  if (extents.range(fresh).state != RangeState::kFree || extents.range(fresh).owner != kClean) return;
  consider_range(space, fresh, units, alignment, stream, choice);
  NodeId below = extents.range(fresh).previous;
  if (below == kNoNode || extents.range(below).state != RangeState::kFree || extents.range(below).owner != stream)
    return;
  auto start = static_cast<uint32_t>(align_up(extents.range(below).start, alignment));
  if (uint32_t slab = space.slab_units(); slab > 0 && start / slab != (start + units - 1) / slab)
    start = static_cast<uint32_t>(align_up(start, slab));
  if (start >= extents.range(fresh).start || start + uint64_t{units} >= extents.units()) return;
  Backing::Cost cost = cost_of(space, start, units, stream);
  if (!cost.impossible && cost.score() < choice.score()) choice = {below, start, cost};
}

// Takes the range and puts memory behind it; on failure the range is as it was.
Status DeviceHeap::put(Space& space, const Choice& choice, uint32_t units, StreamIndex stream, RangeState state,
                       uint64_t requested, NodeId& placed) {
  uint16_t owner = space.extents().range(choice.range).owner;
  uint64_t stamp = space.extents().range(choice.range).stamp;
  uint32_t border = space.extents().range(choice.range).start + space.extents().range(choice.range).length;
  bool into_fresh_end = border < choice.start + uint64_t{units};
  if (into_fresh_end) space.extents().move_border(choice.range, choice.start + units);
  placed = space.extents().take(choice.range, choice.start, units, state, stream, requested);
  const Range& range = space.extents().range(placed);
  Piece piece = committed(space, range);
  Status status = backing_.commit(space.memory(), piece.offset, piece.bytes, stream);
  if (status != kOk) {
    NodeId freed = space.extents().give(placed, owner, stamp);
    if (into_fresh_end) space.extents().move_border(freed, border);
    placed = kNoNode;
    refused_by(backing_.refused_by_pool() ? space.pool().id : kNoPool, backing_.refused_by_limit());
  }
  return status;
}

// Finished ranges of every stream become clean. True when another stream owns free ranges still. In a captured pool
// nothing proves that a range is finished (private_pools.h), so streams share none there.
bool DeviceHeap::clean_finished(Space& space) {
  if (space.memory().replayed) return false;
  bool others = false;
  for (StreamIndex stream = 1; stream < clocks_.end(); ++stream) {
    if (!space.extents().has_free(stream)) continue;
    clocks_.poll(stream);
    space.extents().clean(stream, clocks_.done(stream));
    others |= space.extents().has_free(stream);
  }
  return others;
}

Status DeviceHeap::place(Space& space, uint32_t units, uint32_t alignment, StreamIndex stream, RangeState state,
                         uint64_t requested, NodeId& placed) {
  Extents& extents = space.extents();
  Choice choice;
  auto consider_own = [&] {
    choice = Choice{};
    if (space.arena()) consider_in_order(space, units, alignment, stream, choice);
    if (choice.range != kNoNode) return;
    consider(space, units, alignment, stream, stream, choice);
    if (choice.score() != 0) consider(space, units, alignment, stream, kClean, choice);
    if (choice.score() != 0) consider_fresh_end(space, units, alignment, stream, choice);
  };
  if (!guard_) {
    consider_own();
    if (choice.range != kNoNode && choice.cost.missing == 0 && !choice.cost.waits)
      return put(space, choice, units, stream, state, requested, placed);
  }

  ContextScope context(context_);
  bool others = false;
  for (StreamIndex other = 1; space.coarse() && other < clocks_.end(); ++other)
    others |= other != stream && extents.has_free(other);
  if (others) {
    others = clean_finished(space);
    if (!guard_) consider_own();
  }
  if (guard_) {  // fresh addresses first, so that an address freed lately faults
    NodeId fresh = extents.last();
    const Range& end = extents.range(fresh);  // another stream's once every address has been used
    if (end.state == RangeState::kFree && (end.owner == kClean || end.owner == stream))
      consider_range(space, fresh, units, alignment, stream, choice);
    if (choice.range == kNoNode) consider_own();
  }
  if (choice.range != kNoNode && (choice.cost.missing == 0 || backing_.affordable(choice.cost.missing))) {
    Status status = put(space, choice, units, stream, state, requested, placed);
    if (status != PYALLOC_OUT_OF_MEMORY) return status;
    consider_own();  // the range was cut and joined again, perhaps under another id
  }
  if (others && backing_.policy().cross_stream_wait) {
    Choice foreign;
    for (StreamIndex other = 1; other < clocks_.end(); ++other) {
      if (other != stream && extents.has_free(other)) consider(space, units, alignment, stream, other, foreign);
    }
    if (foreign.score() < choice.score()) {
      const Range& range = extents.range(foreign.range);
      if (clocks_.wait(stream, range.owner, range.stamp)) {
        Status status = put(space, foreign, units, stream, state, requested, placed);
        if (status != PYALLOC_OUT_OF_MEMORY) return status;
      }
    }
  }
  if (choice.range == kNoNode) {
    backing_.undo_stale(SIZE_MAX);
    consider_own();
    if (choice.range == kNoNode) {
      backing_.split_freely = true;
      consider_own();
      backing_.split_freely = false;
    }
    if (choice.range == kNoNode) {
      refused_by(kNoPool, false);
      return fail(PYALLOC_OUT_OF_MEMORY, "the pool's %llu GiB of addresses are used up",
                  static_cast<unsigned long long>(space.memory().bytes() / kGiB));
    }
  }
  // Granules are stolen only when their streams are known to be done, or can be waited for.
  if (backing_.granules().idle() > 0) backing_.poll_streams();
  Status status = put(space, choice, units, stream, state, requested, placed);
  if (status != PYALLOC_OUT_OF_MEMORY || guard_) return status;
  clean_finished(space);  // this stream's own finished ranges join their neighbours, the fresh end too
  consider_own();
  return choice.range == kNoNode ? status : put(space, choice, units, stream, state, requested, placed);
}

// The block is gone and every other stream that used it is finished.
void DeviceHeap::release_coarse(Space& space, NodeId id) {
  const Range& range = space.extents().range(id);
  StreamIndex user = range.owner;
  uint64_t position = 0;
  {
    // Only a stream not owned needs the driver here: its event is recorded now.
    ContextScope scope(context_, !clocks_.owned(user));
    position = clocks_.free_position(user);
  }
  Piece piece = committed(space, range);
  backing_.uncommit(space.memory(), piece.offset, piece.bytes, user, position);
  space.extents().give(id, user, position);
}

// --- for lanes: their spaces belong to one stream, so ranges there are clean and only granules matter ---

Status DeviceHeap::place_in_lane(Lane& lane, uint32_t units, uint32_t alignment, RangeState state, uint64_t requested,
                                 NodeId& placed) {
  Lock lock(mutex_);
  Status status = place(*lane.space(), units, alignment, lane.index(), state, requested, placed);
  observe();
  return status;
}

void DeviceHeap::uncommit_in_lane(Lane& lane, const Range& range) {
  Lock lock(mutex_);
  ContextScope scope(context_, !clocks_.owned(lane.index()));
  backing_.uncommit(lane.space()->memory(), uint64_t{range.start} * kUnit, uint64_t{range.length} * kUnit, lane.index(),
                    clocks_.free_position(lane.index()));
}

}  // namespace pyalloc
