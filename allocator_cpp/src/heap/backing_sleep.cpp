// The memory of whole spaces leaves and comes back: the same handles at the same slots. While a space sleeps, its slots
// keep counting the blocks that touch them.
#include <algorithm>

#include "base/clock.h"
#include "driver/driver.h"
#include "heap/backing.h"
#include "heap/sleep.h"

namespace pyalloc {
namespace {

template <class Visit>
void each_handle(const AddressSpace& space, const Granules& granules, Visit&& visit) {
  for (uint32_t index = 0; index < space.highest_used();) {
    HandleId id = space.slot(index).handle;
    index += id == 0 ? 1 : granules.handle(id).granules;
    if (id != 0) visit(id);
  }
}

}  // namespace

void Backing::hold(const AddressSpace& space, bool on) {
  each_handle(space, granules_, [&](HandleId id) { granules_.pin(id, on); });
  if (driver().oracle_sleep != nullptr)
    driver().oracle_sleep(space.address(0), uint64_t{space.highest_used()} * space.granule_bytes(), on ? 1 : 0);
}

bool Backing::has_old_mappings(const AddressSpace& space) const {
  bool any = false;
  each_handle(space, granules_, [&](HandleId id) { any |= granules_.handle(id).stale > 0; });
  return any;
}

bool Backing::has_exported(const AddressSpace& space) const {
  bool any = false;
  each_handle(space, granules_, [&](HandleId id) { any |= granules_.handle(id).exported != 0; });
  return any;
}

std::vector<Placement> Backing::placements_in(const AddressSpace& space, uint32_t first, uint32_t end) const {
  std::vector<Placement> found;
  for (uint32_t index = first; index < end;) {
    HandleId id = space.slot(index).handle;
    found.push_back({index, id});
    index += granules_.handle(id).granules;
  }
  return found;
}

// The driver refused to undo these mappings, which nothing has used.
void Backing::note_stuck(AddressSpace& space, const std::vector<Placement>& stuck) {
  for (const Placement& one : stuck) {
    uint32_t granules = granules_.handle(one.handle).granules;
    stale_.push_back({&space, one.slot, granules, 0, Uses{}});
    for (uint32_t index = one.slot; index < one.slot + granules; ++index) space.slot(index).stale = true;
  }
}

// The handle's mapping is gone; what blocks lie in becomes a sleeper.
void Backing::retire(AddressSpace& space, const Placement& placement, int64_t now, std::vector<Sleeper>& sleepers) {
  HandleId id = placement.handle;
  const Handle& handle = granules_.handle(id);
  if (handle.live_slots > 0) {
    sleepers.push_back({&space, placement.slot, handle.granules, handle.split, handle.own});
    asleep_ += handle.granules;
    granules_.slots_dead(id, handle.live_slots, now);
  }
  granules_.take_idle(id);
  for (uint32_t index = placement.slot; index < placement.slot + handle.granules; ++index) space.set_unmapped(index);
  granules_.unmapped(id);
  granules_.pin(id, false);  // should the driver refuse it, it may serve anyone
  granules_.release(id);
}

Status Backing::lay_down(const std::vector<AddressSpace*>& spaces, std::vector<Sleeper>& sleepers) {
  struct Undone {
    AddressSpace* space;
    std::vector<Placement> placements;
    bool back = false;
  };
  std::vector<Undone> undone;
  Status status = kOk;
  for (AddressSpace* space : spaces) {
    for (uint32_t first = 0, end = 0; first < space->highest_used() && status == kOk; first = end + 1) {
      for (end = first; end < space->highest_used() && space->slot(end).handle != 0;) ++end;
      if (end == first) continue;
      status = unmap_run(*space, first, end - first, counters_);
      if (status == kOk) undone.push_back({space, placements_in(*space, first, end)});
    }
  }
  for (Undone& run : undone) {  // what one refusal stopped goes back
    if (status == kOk) break;
    std::vector<Placement> stuck;
    std::string why = last_error();
    run.back = map_placements(*run.space, granules_, run.placements, access_, counters_, stuck) == kOk;
    fail(status, "%s", why.c_str());
    if (run.back) continue;
    // The driver refuses this as well: that memory sleeps.
    int64_t now = now_ms();
    for (const Placement& one : run.placements) {
      bool is_stuck = std::any_of(stuck.begin(), stuck.end(), [&](const Placement& s) { return s.slot == one.slot; });
      uint32_t granules = granules_.handle(one.handle).granules;
      retire(*run.space, one, now, sleepers);
      if (!is_stuck) continue;
      stale_.push_back({run.space, one.slot, granules, 0, Uses{}});
      for (uint32_t index = one.slot; index < one.slot + granules; ++index) run.space->slot(index).stale = true;
    }
  }
  if (status != kOk) return status;
  int64_t now = now_ms();
  for (const Undone& run : undone)
    for (const Placement& one : run.placements) retire(*run.space, one, now, sleepers);
  return kOk;
}

namespace {

uint32_t live_slots(const Sleeper& one) {
  uint32_t live = 0;
  for (uint32_t index = one.slot; index < one.slot + one.granules; ++index) live += one.space->slot(index).live > 0;
  return live;
}

// Of a space that keeps its memory, also what no block touched before.
void keep_all(const Sleeper& one) {
  for (uint32_t index = one.slot; index < one.slot + one.granules; ++index) {
    if (one.space->slot(index).live > 0) continue;
    one.space->slot(index).live = 1;
    one.space->pool_totals().use(1);
  }
  one.space->pool_totals().note_peak();
}

}  // namespace

// Handles of the sizes that were there, made of what idle memory comes back for them.
Status Backing::create_for(const std::vector<Sleeper>& sleepers, std::vector<HandleId>& made) {
  int64_t needed = 0, limit = limit_granules();
  for (const Sleeper& one : sleepers) needed += one.granules;
  if (needed == 0) return kOk;
  bool limited = limit_bytes() < policy_.device_total;
  refused_by_limit_ = refused_by_pool_ = false;
  int64_t above = granules_.held() + needed - std::min(limit, budget_granules(needed));
  if (above > 0) break_up(above, true);
  if (granules_.held() + needed > limit) {
    refused_by_limit_ = limited;
    return fail(PYALLOC_OUT_OF_MEMORY, "%s",
                limited ? "the limit set for pyalloc is reached" : "the device's memory is used up");
  }
  for (const Sleeper& one : sleepers) {
    HandleId id = 0;
    Status status = granules_.create(one.granules, id, one.own);
    if (status == PYALLOC_OUT_OF_MEMORY && break_up(needed, true) > 0)
      status = granules_.create(one.granules, id, one.own);
    if (status != kOk) {
      for (HandleId each : made) granules_.release(each);
      made.clear();
      return status == PYALLOC_OUT_OF_MEMORY ? fail(status, "the driver has no memory left") : status;
    }
    made.push_back(id);
    needed -= one.granules;
  }
  return kOk;
}

Status Backing::get_up(std::vector<Sleeper>& sleepers) {
  undo_stale(SIZE_MAX);
  std::vector<Sleeper> wanted;
  for (const Sleeper& one : sleepers) {
    if (live_slots(one) == 0) continue;
    wanted.push_back(one);
    for (uint32_t index = one.slot; index < one.slot + one.granules; ++index)
      if (one.space->slot(index).stale)
        return fail(PYALLOC_OUT_OF_MEMORY, "an old mapping still stands where memory is to come back");
  }
  std::sort(wanted.begin(), wanted.end(), [](const Sleeper& a, const Sleeper& b) {
    return a.space != b.space ? a.space->id() < b.space->id() : a.slot < b.slot;
  });
  std::vector<HandleId> made;
  Status status = create_for(wanted, made);
  if (status != kOk) return status;
  std::vector<std::pair<AddressSpace*, std::vector<Placement>>> by_space;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (by_space.empty() || by_space.back().first != wanted[i].space) by_space.push_back({wanted[i].space, {}});
    by_space.back().second.push_back({wanted[i].slot, made[i]});
  }
  size_t mapped = 0;
  for (; mapped < by_space.size() && status == kOk; ++mapped) {
    std::vector<Placement> stuck;
    auto& [space, placements] = by_space[mapped];
    status = map_placements(*space, granules_, placements, access_, counters_, stuck);
    note_stuck(*space, stuck);
  }
  if (status != kOk) {
    for (size_t i = 0; i + 1 < mapped; ++i) {
      std::vector<Placement> stuck;
      undo_placements(*by_space[i].first, granules_, by_space[i].second, stuck);
      note_stuck(*by_space[i].first, stuck);
    }
    for (HandleId id : made) granules_.release(id);
    return status;
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Sleeper& one = wanted[i];
    granules_.mapped_at(made[i], one.space->id(), one.slot, Uses{});
    if (one.space->kept) keep_all(one);
    granules_.slots_live(made[i], live_slots(one));
    if (one.split) granules_.split(made[i]);
    granules_.pin(made[i], true);
    for (uint32_t index = one.slot; index < one.slot + one.granules; ++index) one.space->set_mapped(index, made[i]);
  }
  for (const Sleeper& one : sleepers) asleep_ -= one.granules;
  sleepers.clear();
  return kOk;
}

}  // namespace pyalloc
