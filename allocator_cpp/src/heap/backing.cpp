#include "heap/backing.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "driver/driver.h"
#include "stream/stream_set.h"

namespace pyalloc {
namespace {

constexpr int64_t kBudgetFloor = 4;  // granules a heap may always create: the first blocks of each size need a place

}  // namespace

Backing::Backing(int device, size_t granule_bytes, StreamClocks& clocks, const BlockCounters& blocks,
                 Counters& counters)
    : clocks_(clocks), blocks_(blocks), counters_(counters), granules_(device, granule_bytes, counters) {
  access_.push_back({{cuda::kLocationDevice, device}, cuda::kAccessReadWrite});
}

// Nothing is later than a stream's last free, so a stamp that others pushed beyond it asks no more of it than that.
bool Backing::finished(uint64_t users, uint64_t stamp) const {
  return each_stream(users, clocks_.end(),
                     [&](StreamIndex user) { return clocks_.passed(user, std::min(stamp, clocks_.last_free(user))); });
}

bool Backing::could_order(StreamIndex stream, uint64_t users, uint64_t stamp) const {
  return each_stream(users, clocks_.end(), [&](StreamIndex user) {
    uint64_t position = std::min(stamp, clocks_.last_free(user));
    return clocks_.ordered(stream, user, position) ||
           (policy_.cross_stream_wait && clocks_.can_wait(stream, user, position));
  });
}

bool Backing::order_after(StreamIndex stream, uint64_t users, uint64_t stamp) {
  return each_stream(users, clocks_.end(), [&](StreamIndex user) {
    uint64_t position = std::min(stamp, clocks_.last_free(user));
    return clocks_.ordered(stream, user, position) ||
           (policy_.cross_stream_wait && clocks_.wait(stream, user, position));
  });
}

Backing::Cost Backing::cost(const AddressSpace& space, uint64_t offset, uint64_t bytes, StreamIndex stream) const {
  Cost cost;
  auto first = static_cast<uint32_t>(offset / space.granule_bytes()),
       last = static_cast<uint32_t>((offset + bytes - 1) / space.granule_bytes());
  for (uint32_t index = first; index <= last; ++index) {
    const Slot& slot = space.slot(index);
    if (slot.handle == 0) {
      if (slot.stale) cost.impossible = true;
      ++cost.missing;
    } else {
      cost.idle += slot.live == 0;
      if (slot.inherited != 0) {
        cost.waits = true;
        if (!could_order(stream, slot.inherited, slot.inherited_stamp)) cost.impossible = true;
      }
    }
    if (cost.impossible) break;
  }
  return cost;
}

// `needed`: granules about to be put to use beyond those that are.
int64_t Backing::budget_granules(int64_t needed) const {
  auto granule = static_cast<double>(granules_.granule_bytes());
  double in_use = static_cast<double>(granules_.held() - granules_.idle() - granules_.on_shelf() + needed) * granule;
  double wanted = std::max(in_use, static_cast<double>(blocks_.live_high_water())) * (1.0 + policy_.slack);
  return static_cast<int64_t>(wanted / granule) + kBudgetFloor;
}

uint64_t Backing::limit_bytes() const {
  auto fraction = static_cast<uint64_t>(policy_.fraction * static_cast<double>(policy_.device_total));
  return policy_.limit_bytes != 0 ? std::min(policy_.limit_bytes, fraction) : fraction;
}

bool Backing::affordable(int64_t missing) const {
  return missing <= granules_.on_shelf() + std::max<int64_t>(0, budget_granules(missing) - granules_.held());
}

// The longest idle granule that `stream` may have, from `next` on in the idle list; 0 when there is none.
HandleId Backing::steal(StreamIndex stream, HandleId& next) {
  while (next != 0) {
    HandleId id = next;
    next = granules_.newer_idle(id);
    const Granule& granule = granules_.granule(id);
    const Slot& slot = spaces_[granule.space]->slot(granule.slot);
    if (slot.pinned) continue;
    if (!order_after(stream, slot.users, slot.stamp) || !order_after(stream, slot.inherited, slot.inherited_stamp))
      continue;
    granules_.set_busy(id);
    return id;
  }
  return 0;
}

Status Backing::find(const std::vector<uint32_t>& missing, StreamIndex stream, std::vector<Found>& found) {
  auto limit = static_cast<int64_t>(limit_bytes() / granules_.granule_bytes());
  bool limited = limit_bytes() < policy_.device_total;
  auto needed = static_cast<int64_t>(missing.size());
  const char* too_little = limited ? "the limit set for pyalloc is reached" : "the device's memory is used up";
  if (needed > granules_.on_shelf() + granules_.idle() +
                   std::max<int64_t>(0, limit - granules_.held())) {  // hopeless: spare the driver
    refused_by_limit_ = limited;
    return fail(PYALLOC_OUT_OF_MEMORY, "%s", too_little);
  }
  HandleId next_idle = granules_.oldest_idle();
  bool driver_full = false;
  int64_t budget = budget_granules(needed);
  Status created = kOk;
  auto create = [&](HandleId& id) {
    if (driver_full) return false;
    if (granules_.held() >= limit) return refused_by_limit_ = limited, false;
    created = granules_.create(id);
    driver_full = created != kOk;
    return created == kOk;
  };
  for (uint32_t slot : missing) {
    Found one{{slot, 0}, Origin::kShelf};
    if ((one.placement.handle = granules_.take_from_shelf()) != 0) {
      one.origin = Origin::kShelf;
    } else if (granules_.held() < budget && create(one.placement.handle)) {
      one.origin = Origin::kCreated;
    } else if ((one.placement.handle = steal(stream, next_idle)) != 0) {
      one.origin = Origin::kStolen;
    } else if (create(one.placement.handle)) {
      one.origin = Origin::kCreated;
    } else {
      put_back(found);
      if (created != kOk && created != PYALLOC_OUT_OF_MEMORY) return created;
      return fail(PYALLOC_OUT_OF_MEMORY, "%s", created != kOk ? "the driver has no memory left" : too_little);
    }
    found.push_back(one);
  }
  return kOk;
}

void Backing::put_back(const std::vector<Found>& found) {
  for (auto one = found.rbegin(); one != found.rend(); ++one) {
    switch (one->origin) {
      case Origin::kStolen:
        granules_.set_idle_oldest(one->placement.handle);
        break;
      case Origin::kShelf:
        granules_.put_on_shelf(one->placement.handle);
        break;
      case Origin::kCreated:
        granules_.release(one->placement.handle);
    }
  }
}

// The granules are mapped at their new slots: changes the books.
void Backing::adopt(AddressSpace& space, const std::vector<Found>& found) {
  for (const Found& one : found) {
    HandleId id = one.placement.handle;
    uint64_t inherited = 0, inherited_stamp = 0;
    if (one.origin == Origin::kStolen) {
      const Granule& granule = granules_.granule(id);
      AddressSpace& old_space = *spaces_[granule.space];
      Slot& old_slot = old_space.slot(granule.slot);
      inherited = old_slot.users | old_slot.inherited;
      inherited_stamp = std::max(old_slot.stamp, old_slot.inherited_stamp);
      stale_.push_back({&old_space, granule.slot, inherited, inherited_stamp});
      old_space.set_unmapped(granule.slot);
      old_slot.stale = true;
      count(counters_.stolen_granules);
      if (space.one_stream || finished(inherited, inherited_stamp)) inherited = inherited_stamp = 0;
    }
    space.set_mapped(one.placement.slot, id);
    Slot& slot = space.slot(one.placement.slot);
    slot.inherited = inherited;
    slot.inherited_stamp = inherited_stamp;
    granules_.mapped_at(id, space.id(), one.placement.slot);
  }
}

// Takes one live block off every slot from `first` to `last`.
void Backing::release_touch(AddressSpace& space, uint32_t first, uint32_t last) {
  int64_t now = -1;
  for (uint32_t index = first; index <= last; ++index) {
    Slot& slot = space.slot(index);
    PYALLOC_ASSERT(slot.live > 0);
    if (--slot.live == 0 && slot.handle != 0) {
      if (now < 0) now = now_ms();
      granules_.set_idle(slot.handle, now);
    }
  }
}

Status Backing::commit(AddressSpace& space, uint64_t offset, uint64_t bytes, StreamIndex stream) {
  auto first = static_cast<uint32_t>(offset / space.granule_bytes()),
       last = static_cast<uint32_t>((offset + bytes - 1) / space.granule_bytes());
  std::vector<uint32_t> missing;
  for (uint32_t index = first; index <= last; ++index) {
    Slot& slot = space.slot(index);
    if (slot.handle == 0) {
      missing.push_back(index);
    } else if (slot.live == 0) {
      granules_.set_busy(slot.handle);  // its own memory must not be stolen for its neighbours
    }
    ++slot.live;
  }
  refused_by_limit_ = false;
  bool ordered = true;
  for (uint32_t index = first; index <= last && ordered; ++index) {
    Slot& slot = space.slot(index);
    PYALLOC_ASSERT(!slot.stale);
    if (slot.inherited == 0) continue;
    ordered = order_after(stream, slot.inherited, slot.inherited_stamp);
    if (ordered && (space.one_stream || finished(slot.inherited, slot.inherited_stamp)))
      slot.inherited = slot.inherited_stamp = 0;
  }
  Status status = ordered ? kOk : fail(PYALLOC_OUT_OF_MEMORY, "memory there is still in use by another stream");
  std::vector<Found> found;
  if (status == kOk && !missing.empty()) {
    status = find(missing, stream, found);
    if (status == kOk) {
      std::vector<Placement> placements;
      placements.reserve(found.size());
      for (const Found& one : found) placements.push_back(one.placement);
      std::vector<uint32_t> stuck;
      status = map_placements(space, granules_, placements, access_, counters_, stuck);
      if (status != kOk) {
        put_back(found);
        for (uint32_t slot : stuck) {
          space.slot(slot).stale = true;
          stale_.push_back({&space, slot, 0, 0});
        }
      }
    }
  }
  if (status != kOk) {
    release_touch(space, first, last);
    return status;
  }
  adopt(space, found);
  return kOk;
}

void Backing::uncommit(AddressSpace& space, uint64_t offset, uint64_t bytes, StreamIndex user, uint64_t position) {
  auto first = static_cast<uint32_t>(offset / space.granule_bytes()),
       last = static_cast<uint32_t>((offset + bytes - 1) / space.granule_bytes());
  uint64_t bit = stream_bit(user);
  for (uint32_t index = first; index <= last; ++index) {
    Slot& slot = space.slot(index);
    slot.users |= bit;
    slot.stamp = std::max(slot.stamp, position);
  }
  release_touch(space, first, last);
}

Status Backing::add_peer(int peer) {
  for (const cuda::AccessDesc& known : access_)
    if (known.location.id == peer) return kOk;
  cuda::AccessDesc access{{cuda::kLocationDevice, peer}, cuda::kAccessReadWrite};
  for (const AddressSpace* space : spaces_) {
    for (uint32_t first = 0; first < space->highest_used();) {
      uint32_t end = first;
      while (end < space->highest_used() && space->slot(end).handle != 0) ++end;
      if (end > first) {
        // Access already given on failure stays: it lets the peer read what it asked to read, and the next call
        // completes it.
        cuda::Result result =
            driver().set_access(space->address(first), uint64_t{end - first} * space->granule_bytes(), &access, 1);
        if (result != cuda::kSuccess) return driver_failure("cuMemSetAccess", result, "giving a peer device access");
      }
      first = end + 1;
    }
  }
  access_.push_back(access);
  return kOk;
}

void Backing::poll_streams() {
  for (StreamIndex stream = 1; stream < clocks_.end(); ++stream) clocks_.poll(stream);
}

size_t Backing::undo_stale(size_t most, bool wait) {
  if (stale_.empty()) return 0;
  for (StreamIndex stream = 1; stream < clocks_.end(); ++stream) {
    if (wait) {
      clocks_.synchronize(stream);
    } else {
      clocks_.poll(stream);
    }
  }
  std::sort(stale_.begin(), stale_.end(), [](const Stale& a, const Stale& b) {
    return a.space != b.space ? a.space->id() < b.space->id() : a.slot < b.slot;
  });
  std::vector<Stale> left;
  for (size_t i = 0; i < stale_.size();) {
    size_t end = i;
    while (end < stale_.size() && most > 0 && stale_[end].space == stale_[i].space &&
           stale_[end].slot == stale_[i].slot + (end - i) && finished(stale_[end].users, stale_[end].stamp)) {
      ++end;
      --most;
    }
    if (end == i) {
      left.push_back(stale_[i++]);
      continue;
    }
    bool undone = unmap_run(*stale_[i].space, stale_[i].slot, static_cast<uint32_t>(end - i), counters_) == kOk;
    for (; i < end; ++i) {
      if (undone) {
        stale_[i].space->slot(stale_[i].slot).stale = false;
      } else {
        left.push_back(stale_[i]);  // tried again in the next round
      }
    }
  }
  stale_.swap(left);
  return stale_.size();
}

uint64_t Backing::give_back(int64_t idle_before_ms, size_t most) {
  uint64_t before = static_cast<uint64_t>(granules_.held());
  while (most > 0) {
    HandleId id = granules_.take_from_shelf();
    if (id == 0 || !granules_.release(id)) break;
    --most;
  }
  std::vector<Placement> due;
  std::vector<uint16_t> spaces;
  for (HandleId id = granules_.oldest_idle(); id != 0 && due.size() < most; id = granules_.newer_idle(id)) {
    const Granule& granule = granules_.granule(id);
    if (granule.idle_since > idle_before_ms) break;
    const Slot& slot = spaces_[granule.space]->slot(granule.slot);
    if (slot.pinned || !finished(slot.users, slot.stamp) || !finished(slot.inherited, slot.inherited_stamp)) continue;
    due.push_back({granule.slot, id});
  }
  std::sort(due.begin(), due.end(), [&](const Placement& a, const Placement& b) {
    uint16_t left = granules_.granule(a.handle).space, right = granules_.granule(b.handle).space;
    return left != right ? left < right : a.slot < b.slot;
  });
  for (size_t i = 0; i < due.size();) {
    AddressSpace& space = *spaces_[granules_.granule(due[i].handle).space];
    size_t end = i + 1;
    while (end < due.size() && granules_.granule(due[end].handle).space == space.id() &&
           due[end].slot == due[end - 1].slot + 1)
      ++end;
    if (unmap_run(space, due[i].slot, static_cast<uint32_t>(end - i), counters_) == kOk) {
      for (size_t j = i; j < end; ++j) {
        space.set_unmapped(due[j].slot);
        granules_.set_busy(due[j].handle);
        granules_.unmapped(due[j].handle);
        granules_.release(due[j].handle);
      }
    }
    i = end;
  }
  return (before - static_cast<uint64_t>(granules_.held())) * granules_.granule_bytes();
}

void Backing::close() {
  // A refusal may be passing, so everything is offered twice.
  auto unmap = [&](AddressSpace& space, uint32_t slot) {
    if (unmap_run(space, slot, 1, counters_) != kOk && unmap_run(space, slot, 1, counters_) != kOk)
      space.leave_reservation();
  };
  for (const Stale& one : stale_) unmap(*one.space, one.slot);
  stale_.clear();
  for (AddressSpace* space : spaces_) {
    for (uint32_t index = 0; index < space->highest_used(); ++index) {
      HandleId id = space->slot(index).handle;
      if (id == 0) continue;
      unmap(*space, index);
      if (granules_.granule(id).idle) granules_.set_busy(id);
      space->set_unmapped(index);
      space->slot(index).live = 0;
      granules_.unmapped(id);
      granules_.release(id);
    }
  }
  for (int64_t tries = 2 * granules_.on_shelf(); tries > 0 && granules_.on_shelf() > 0; --tries)
    granules_.release(granules_.take_from_shelf());
}

bool Backing::validate(std::string& reason) const {
  if (!granules_.validate(reason)) return false;
  int64_t mapped = 0, stale = 0;
  for (const AddressSpace* space : spaces_) {
    if (!space->validate(granules_, reason)) return false;
    mapped += space->mapped_slots();
    for (uint32_t index = 0; index < space->highest_used(); ++index) stale += space->slot(index).stale;
  }
  if (mapped + granules_.on_shelf() != granules_.held())
    return reason = "backing: mapped and shelved granules are not all that are held", false;
  // A stuck slot may lie above everything that was ever mapped, so the list can be longer than what was counted.
  if (stale > static_cast<int64_t>(stale_.size())) return reason = "backing: a stale slot is on no list", false;
  return true;
}

}  // namespace pyalloc
