#include "heap/backing.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "stream/stream_set.h"

namespace pyalloc {
namespace {

constexpr double kLeastSlack = 4;  // granules: the first blocks of each size need a place
// A handle is at most this part of the limit, or this part of what the live bytes leave of it: what handles strand adds
// up to little even where memory is short. Chosen on the traces of tools/bench, at 1.01 and 1.05 times their peak.
constexpr int64_t kLimitShare = 768, kRoomShare = 256;
// And split handles are at most so many eighths of the limit: the rest can move whatever is freed. Blocks of training steps
// share up to three quarters of all handles, and hardly strand any; where they may not, they are moved all the time.
constexpr int64_t kSplitEighths = 7;
// Memory is tight where no more than this is left, beyond the live bytes, by the slack or by the device.
constexpr double kTightSlack = 0.01, kTightDevice = 0.03;

}  // namespace

Backing::Backing(int device, size_t granule_bytes, StreamClocks& clocks, const BlockCounters& blocks,
                 Counters& counters, MappingNews& news)
    : clocks_(clocks),
      blocks_(blocks),
      counters_(counters),
      news_(news),
      granules_(granule_properties(device), granule_bytes, counters) {
  access_.push_back({{cuda::kLocationDevice, device}, cuda::kAccessReadWrite});
}

// Nothing is later than a stream's last free, so a stamp that others pushed beyond it asks no more of it than that.
bool Backing::finished(const Uses& uses) const {
  return each_stream(uses.streams, clocks_.end(), [&](StreamIndex user) {
    return clocks_.passed(user, std::min(uses.stamp, clocks_.last_free(user)));
  });
}

bool Backing::could_order(const AddressSpace& space, StreamIndex stream, const Uses& uses) const {
  if (space.replayed) return finished(uses);
  return each_stream(uses.streams, clocks_.end(), [&](StreamIndex user) {
    uint64_t position = std::min(uses.stamp, clocks_.last_free(user));
    return clocks_.ordered(stream, user, position) ||
           (policy_.cross_stream_wait && clocks_.can_wait(stream, user, position));
  });
}

bool Backing::order_after(const AddressSpace& space, StreamIndex stream, const Uses& uses) {
  if (space.replayed) return finished(uses);
  return each_stream(uses.streams, clocks_.end(), [&](StreamIndex user) {
    uint64_t position = std::min(uses.stamp, clocks_.last_free(user));
    return clocks_.ordered(stream, user, position) ||
           (policy_.cross_stream_wait && clocks_.wait(stream, user, position));
  });
}

// Whether [offset, offset + bytes) is all of the handle, or more.
bool Backing::covers(const AddressSpace& space, uint64_t offset, uint64_t bytes, const Handle& handle) {
  uint64_t granule = space.granule_bytes();
  return offset <= handle.slot * granule && offset + bytes >= (handle.slot + uint64_t{handle.granules}) * granule;
}

Backing::Cost Backing::cost(const AddressSpace& space, uint64_t offset, uint64_t bytes, StreamIndex stream) const {
  Cost cost;
  int64_t split = 0;
  bool strands = tight();
  uint32_t most = largest_handle();
  auto first = static_cast<uint32_t>(offset / space.granule_bytes()),
       last = static_cast<uint32_t>((offset + bytes - 1) / space.granule_bytes());
  for (uint32_t index = first; index <= last && !cost.impossible;) {
    uint32_t run = index;
    for (; index <= last && space.slot(index).handle == 0; ++index) cost.impossible |= space.slot(index).stale;
    cost.missing += index - run;
    cost.handles += handles_for(index - run, most);
    if (index > last) break;
    const Handle& handle = granules_.handle(space.slot(index).handle);
    uint32_t end = std::min(last + 1, handle.slot + handle.granules);
    if (handle.idle && handle.granules > 1 && !covers(space, offset, bytes, handle)) {
      if (strands) cost.stranded += handle.granules - (end - index);
      split += handle.granules;
    }
    if (handle.inherited.streams != 0) {
      cost.waits = true;
      if (!could_order(space, stream, handle.inherited)) cost.impossible = true;
    }
    index = end;
  }
  if (split > 0 && !split_freely && !may_split(split)) cost.impossible = true;
  return cost;
}

// Of what is awake.
uint64_t Backing::live_high_water() const {
  uint64_t all = blocks_.live_high_water(), asleep = static_cast<uint64_t>(asleep_) * granules_.granule_bytes();
  return all > asleep ? all - asleep : 0;
}

// `needed`: granules about to be put to use beyond those that are.
int64_t Backing::budget_granules(int64_t needed) const {
  auto granule = static_cast<double>(granules_.granule_bytes());
  int64_t used = granules_.held() - granules_.idle() - granules_.on_shelf() - granules_.stranded();
  double in_use = static_cast<double>(used + needed) * granule;
  double wanted = std::max(in_use, static_cast<double>(live_high_water()));
  return static_cast<int64_t>((wanted + std::max(wanted * policy_.slack, kLeastSlack * granule)) / granule);
}

bool Backing::tight() const {
  double live = static_cast<double>(live_high_water()) / static_cast<double>(granules_.granule_bytes());
  return policy_.slack < kTightSlack ||
         static_cast<double>(std::min(full_at_, limit_granules())) < live * (1.0 + kTightDevice);
}

bool Backing::may_split(int64_t granules) const {
  return granules_.in_split() + granules <= limit_granules() * kSplitEighths / 8;
}

uint32_t Backing::largest_handle() const {
  if (tight()) return 1;
  auto live = static_cast<int64_t>(live_high_water() / granules_.granule_bytes());
  int64_t most = std::max(limit_granules() / kLimitShare, (limit_granules() - live) / kRoomShare);
  return kHandleSizes[handle_kind(static_cast<uint32_t>(std::clamp<int64_t>(most, 1, kHandleSizes[0])))];
}

uint64_t Backing::limit_bytes() const {
  auto fraction = static_cast<uint64_t>(policy_.fraction * static_cast<double>(policy_.device_total));
  return policy_.limit_bytes != 0 ? std::min(policy_.limit_bytes, fraction) : fraction;
}

int64_t Backing::limit_granules() const { return static_cast<int64_t>(limit_bytes() / granules_.granule_bytes()); }

bool Backing::taken_over(const AddressSpace& space, uint64_t offset, uint64_t bytes) const {
  auto last = static_cast<uint32_t>((offset + bytes - 1) / space.granule_bytes());
  for (auto index = static_cast<uint32_t>(offset / space.granule_bytes()); index <= last; ++index)
    if (!finished(granules_.handle(space.slot(index).handle).inherited)) return false;
  return true;
}

bool Backing::affordable(int64_t missing) const {
  return missing <= granules_.on_shelf() + std::max<int64_t>(0, budget_granules(missing) - granules_.held());
}

// The longest idle handle that fits into a run of `most` slots and that `stream` may have; large ones first, since they
// move as cheaply as small ones. `next` remembers where the search in each list goes on. 0 when there is none.
HandleId Backing::steal(const AddressSpace& space, uint32_t most, StreamIndex stream, HandleId (&next)[kHandleKinds]) {
  for (int kind = handle_kind(most); kind < kHandleKinds; ++kind) {
    while (next[kind] != 0) {
      HandleId id = next[kind];
      next[kind] = granules_.newer_idle(id);
      const Handle& handle = granules_.handle(id);
      if (handle.pinned || !order_after(space, stream, handle.uses) || !order_after(space, stream, handle.inherited))
        continue;
      granules_.take_idle(id);
      return id;
    }
  }
  return 0;
}

// Slots behind `last` to which a new handle may reach: none has ever been used. Only where the device has room for
// handles of the largest size.
uint32_t Backing::unused_behind(const AddressSpace& space, uint32_t last) const {
  if (!policy_.reach_ahead || space.one_stream || space.kept || space.exact || space.slab_slots > 1 ||
      space.whole_blocks || last < space.highest_used() || largest_handle() < kHandleSizes[0] ||
      !may_split(kHandleSizes[0]))
    return 0;
  uint32_t end = std::min(last + kHandleSizes[0], space.slots()), next = last + 1;
  while (next < end && !space.slot(next).stale) ++next;
  return next - last - 1;
}

Status Backing::find(const AddressSpace& space, const std::vector<Run>& missing, StreamIndex stream,
                     std::vector<Found>& found) {
  uint32_t ahead = unused_behind(space, missing.back().slot + missing.back().slots - 1);
  int64_t limit = limit_granules(), needed = 0;
  for (const Run& run : missing) needed += run.slots;
  bool limited = limit_bytes() < policy_.device_total;
  const char* too_little = limited ? "the limit set for pyalloc is reached" : "the device's memory is used up";
  if (needed > limit)
    too_little = limited ? "it is more than the limit set for pyalloc" : "it is more than the device has";
  if (needed > granules_.on_shelf() + granules_.idle() +
                   std::max<int64_t>(0, limit - granules_.held())) {  // hopeless: spare the driver
    refused_by_limit_ = limited;
    return fail(PYALLOC_OUT_OF_MEMORY, "%s", too_little);
  }
  HandleId next_idle[kHandleKinds];
  auto restart = [&] {
    for (int kind = 0; kind < kHandleKinds; ++kind) next_idle[kind] = granules_.oldest_idle(kind);
  };
  restart();
  int64_t budget = budget_granules(needed);
  uint32_t largest = largest_handle();
  Status created = kOk;
  // A new handle for a run of `most` slots, as large as fits into the run and below `top` granules held. When the
  // driver has no room for a large one, a smaller one may still do.
  auto create = [&](uint32_t most, int64_t top, HandleId& id) {
    int64_t room = std::min(top, limit) - granules_.held();
    most = std::min(most, largest);
    if (room <= 0 || created != kOk) return refused_by_limit_ |= limited && top >= limit && room <= 0, false;
    for (int kind = handle_kind(static_cast<uint32_t>(std::min<int64_t>(most, room))); kind < kHandleKinds; ++kind) {
      created = granules_.create(kHandleSizes[kind], id);
      if (created != PYALLOC_OUT_OF_MEMORY) break;
    }
    if (created == PYALLOC_OUT_OF_MEMORY) full_at_ = granules_.held();
    if (created == kOk && granules_.held() > full_at_) full_at_ = INT64_MAX;
    return created == kOk;
  };
  // The same from memory that is idle in pieces too large for the run.
  int64_t broken = 0;  // granules of them not yet made into new handles
  auto remake = [&](uint32_t most, HandleId& id) {
    if (created != kOk && created != PYALLOC_OUT_OF_MEMORY) return false;
    if (broken <= 0) {
      int64_t above = std::max<int64_t>(0, granules_.held() - limit);  // the limit was lowered
      broken = break_up(most + above) - above;
      restart();  // also where the driver refused: a handle may have gone from the idle ones to the shelf
      if (broken <= 0) return false;
      created = kOk;
    }
    if (!create(most, INT64_MAX, id)) return false;
    broken -= granules_.handle(id).granules;
    return true;
  };
  for (Run run : missing) {
    bool ends = run.slot == missing.back().slot;
    while (run.slots > 0) {
      // Where addresses have never been used, a whole handle saves the next block its calls.
      uint32_t beyond = ends ? ahead : 0;
      uint32_t size = run.slots < largest && run.slots + beyond >= largest && budget - granules_.held() >= largest
                          ? largest
                          : kHandleSizes[handle_kind(run.slots)];
      Found one{{run.slot, 0}, Origin::kCreated};
      HandleId& id = one.placement.handle;
      if ((id = granules_.take_from_shelf(run.slots)) != 0) {
        one.origin = Origin::kShelf;
      } else if (budget - granules_.held() >= size && create(size, budget, id)) {
        one.origin = Origin::kCreated;
      } else if ((id = steal(space, run.slots, stream, next_idle)) != 0) {
        one.origin = Origin::kStolen;
      } else if (!create(run.slots, budget, id) && !remake(run.slots, id) && !create(run.slots, INT64_MAX, id)) {
        put_back(found);
        if (created != kOk && created != PYALLOC_OUT_OF_MEMORY) return created;
        return fail(PYALLOC_OUT_OF_MEMORY, "%s", created != kOk ? "the driver has no memory left" : too_little);
      }
      found.push_back(one);
      run.slot += granules_.handle(id).granules;
      run.slots -= std::min(run.slots, granules_.handle(id).granules);
    }
  }
  return kOk;
}

// One handle for all of a block, made where memory is above the budget of what idle memory comes back for it.
Status Backing::find_whole(const Run& missing, std::vector<Found>& found) {
  int64_t granules = missing.slots, limit = limit_granules();
  bool limited = limit_bytes() < policy_.device_total;
  int64_t above = granules_.held() + granules - std::min(limit, budget_granules(granules));
  if (above > 0) break_up(above, true);
  if (granules_.held() + granules > limit) {
    refused_by_limit_ = limited;
    return fail(PYALLOC_OUT_OF_MEMORY, "%s",
                limited ? "the limit set for pyalloc is reached" : "the device's memory is used up");
  }
  Found one{{missing.slot, 0}, Origin::kCreated};
  Status status = granules_.create(missing.slots, one.placement.handle, true);
  if (status == PYALLOC_OUT_OF_MEMORY && break_up(granules, true) > 0)
    status = granules_.create(missing.slots, one.placement.handle, true);
  if (status == kOk) found.push_back(one);
  return status == PYALLOC_OUT_OF_MEMORY ? fail(status, "the driver has no memory left in one piece") : status;
}

void Backing::put_back(const std::vector<Found>& found) {
  for (auto one = found.rbegin(); one != found.rend(); ++one) {
    switch (one->origin) {
      case Origin::kStolen:
        granules_.put_idle(one->placement.handle);
        break;
      case Origin::kShelf:
        granules_.put_on_shelf(one->placement.handle);
        break;
      case Origin::kCreated:
        granules_.release(one->placement.handle);
    }
  }
}

// The handles are mapped at their new slots, which live blocks touch: changes the books.
void Backing::adopt(AddressSpace& space, uint64_t offset, uint64_t bytes, const std::vector<Found>& found) {
  auto last = static_cast<uint32_t>((offset + bytes - 1) / space.granule_bytes());
  for (const Found& one : found) {
    HandleId id = one.placement.handle;
    const Handle& handle = granules_.handle(id);
    Uses inherited;
    if (one.origin == Origin::kStolen) {
      inherited = handle.all_uses();
      AddressSpace& old_space = *spaces_[handle.space];
      stale_.push_back({&old_space, handle.slot, handle.granules, id, inherited});
      granules_.add_stale(id);
      for (uint32_t index = handle.slot; index < handle.slot + handle.granules; ++index) {
        old_space.set_unmapped(index);
        old_space.slot(index).stale = true;
      }
      count(counters_.stolen_granules, handle.granules);
      if (space.one_stream || finished(inherited)) inherited = Uses{};
    }
    granules_.mapped_at(id, space.id(), one.placement.slot, inherited);
    uint32_t live = std::min(handle.granules, last + 1 - one.placement.slot);
    for (uint32_t index = one.placement.slot; index < one.placement.slot + handle.granules; ++index) {
      space.set_mapped(index, id);
      if (space.kept) ++space.slot(index).live;
    }
    if (space.kept) {
      space.pool_totals().use(handle.granules - live);
      live = handle.granules;
    }
    granules_.slots_live(id, live);
    if (!space.kept && !covers(space, offset, bytes, handle)) granules_.split(id);
  }
}

// Notes what was mapped for the observers, a run of neighbours as one.
void Backing::note_mapped(const AddressSpace& space, const std::vector<Found>& found) {
  for (size_t i = 0; i < found.size();) {
    uint32_t first = found[i].placement.slot, next = first;
    for (; i < found.size() && found[i].placement.slot == next; ++i)
      next += granules_.handle(found[i].placement.handle).granules;
    news_.mapped(space.address(first), uint64_t{next - first} * space.granule_bytes());
  }
}

// Takes one live block off every slot from `first` to `last`; slots without a handle are those a failed commit marked,
// or asleep.
void Backing::release_touch(AddressSpace& space, uint32_t first, uint32_t last) {
  int64_t now = -1;
  for (uint32_t index = first; index <= last;) {
    HandleId id = space.slot(index).handle;
    uint32_t end = id == 0 ? index + 1 : std::min(last + 1, granules_.handle(id).slot + granules_.handle(id).granules);
    uint32_t dead = 0;
    for (; index < end; ++index) {
      PYALLOC_ASSERT(space.slot(index).live > 0);
      dead += --space.slot(index).live == 0;
    }
    space.pool_totals().use(-int64_t{dead});
    if (id == 0 || dead == 0) continue;
    if (now < 0) now = now_ms();
    granules_.slots_dead(id, dead, now);
  }
}

Status Backing::commit(AddressSpace& space, uint64_t offset, uint64_t bytes, StreamIndex stream) {
  auto first = static_cast<uint32_t>(offset / space.granule_bytes()),
       last = static_cast<uint32_t>((offset + bytes - 1) / space.granule_bytes());
  std::vector<Run> missing;
  // Memory shared with a neighbour, now or later, gets a handle of its own, unless splitting handles is harmless.
  bool apart = space.exact || !may_split(2 * kHandleSizes[0]);
  bool first_apart = apart && offset % space.granule_bytes() != 0;
  bool last_apart = apart && (space.exact || (offset + bytes) % space.granule_bytes() != 0);
  int64_t newly_used = 0;
  bool extends = false;  // whether the next missing slot may lengthen the last run
  for (uint32_t index = first; index <= last;) {
    HandleId id = space.slot(index).handle;
    if (id == 0) {
      bool own = (index == first && first_apart) || (index == last && last_apart);
      if (!extends || own) missing.push_back({index, 0});
      ++missing.back().slots;
      ++newly_used;
      ++space.slot(index++).live;
      extends = !own;
      continue;
    }
    uint32_t end = std::min(last + 1, granules_.handle(id).slot + granules_.handle(id).granules), unused = 0;
    for (; index < end; ++index) unused += space.slot(index).live++ == 0;
    newly_used += unused;
    granules_.slots_live(id, unused);  // its own memory must not be stolen for its neighbours
    extends = false;
  }
  MappedTotals& pool = space.pool_totals();
  pool.use(newly_used);
  refused_by_limit_ = false;
  refused_by_pool_ = pool.used > pool.limit;
  bool ordered = true;
  for (uint32_t index = first; index <= last && ordered && !refused_by_pool_;) {  // by handles
    PYALLOC_ASSERT(!space.slot(index).stale);
    HandleId id = space.slot(index).handle;
    const Handle& handle = granules_.handle(id);
    index = id == 0 ? index + 1 : handle.slot + handle.granules;
    if (id != 0 && !space.kept && !covers(space, offset, bytes, handle)) granules_.split(id);
    if (id == 0 || handle.inherited.streams == 0) continue;
    ordered = order_after(space, stream, handle.inherited);
    if (ordered && (space.one_stream || finished(handle.inherited))) granules_.forget_inherited(id);
  }
  Status status = ordered ? kOk : fail(PYALLOC_OUT_OF_MEMORY, "memory there is still in use by another stream");
  if (refused_by_pool_) status = fail(PYALLOC_OUT_OF_MEMORY, "the limit set for the pool is reached");
  std::vector<Found> found;
  if (status == kOk && !missing.empty()) {
    bool whole = space.whole_blocks && missing.front().slots > 1;
    status = whole ? find_whole(missing.front(), found) : find(space, missing, stream, found);
    if (status == kOk) {
      std::vector<Placement> placements, stuck;
      placements.reserve(found.size());
      for (const Found& one : found) placements.push_back(one.placement);
      status = map_placements(space, granules_, placements, access_, counters_, stuck);
      if (status != kOk) {
        note_stuck(space, stuck);
        put_back(found);
      }
    }
  }
  if (status != kOk) {
    release_touch(space, first, last);
    return status;
  }
  adopt(space, offset, bytes, found);
  note_mapped(space, found);
  pool.note_peak();
  return kOk;
}

void Backing::keep(AddressSpace& space) {
  space.kept = true;
  for (uint32_t index = 0; index < space.highest_used();) {
    HandleId id = space.slot(index).handle;
    uint32_t end = id == 0 ? index + 1 : granules_.handle(id).slot + granules_.handle(id).granules, unused = 0;
    if (asleep(space, index)) ++space.slot(index).live;
    for (; id != 0 && index < end; ++index) unused += space.slot(index).live++ == 0;
    index = end;
    space.pool_totals().use(unused);
    if (id != 0) granules_.slots_live(id, unused);
  }
  space.pool_totals().note_peak();
}

void Backing::let_go(AddressSpace& space, const Uses& uses) {
  space.kept = false;
  for (uint32_t index = 0; index < space.highest_used();) {
    HandleId id = space.slot(index).handle;
    uint32_t end = id == 0 ? index + 1 : granules_.handle(id).slot + granules_.handle(id).granules;
    if (asleep(space, index)) release_touch(space, index, index);
    if (id != 0) {
      granules_.used(id, uses);
      release_touch(space, index, end - 1);
      uint32_t live = granules_.handle(id).live_slots;
      if (live > 0 && live < end - index) granules_.split(id);
    }
    index = end;
  }
}

void Backing::uncommit(AddressSpace& space, uint64_t offset, uint64_t bytes, StreamIndex user, uint64_t position) {
  auto first = static_cast<uint32_t>(offset / space.granule_bytes()),
       last = static_cast<uint32_t>((offset + bytes - 1) / space.granule_bytes());
  for (uint32_t index = first; index <= last;) {
    HandleId id = space.slot(index).handle;
    PYALLOC_ASSERT(id != 0 || space.asleep);
    if (id == 0) {
      ++index;
      continue;
    }
    granules_.used(id, {stream_bit(user), position});
    index = granules_.handle(id).slot + granules_.handle(id).granules;
  }
  release_touch(space, first, last);
}

}  // namespace pyalloc
