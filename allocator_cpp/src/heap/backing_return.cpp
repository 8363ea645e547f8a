// The way back: old mappings undone, idle memory returned to the driver, peers, closing, and the whole truth of
// Backing.
#include <algorithm>

#include "driver/driver.h"
#include "heap/backing.h"

namespace pyalloc {

void Backing::poll_streams() {
  for (StreamIndex stream = 1; stream < clocks_.end(); ++stream) clocks_.poll(stream);
}

size_t Backing::undo_stale(size_t most) {
  if (stale_.empty()) return 0;
  if (!may_unmap()) return stale_.size();
  poll_streams();
  // The oldest are the likeliest to be finished, so a bounded look at them is enough for a bounded batch.
  std::vector<Stale> due, kept;
  for (size_t looks = most < SIZE_MAX / 4 ? 4 * most : SIZE_MAX; looks > 0 && due.size() < most && !stale_.empty();
       --looks) {
    (finished(stale_.front().uses) ? due : kept).push_back(stale_.front());
    stale_.pop_front();
  }
  stale_.insert(stale_.begin(), kept.begin(), kept.end());
  if (news_.tells_first()) {
    departures_.insert(departures_.end(), due.begin(), due.end());
  } else {
    undo(std::move(due));
  }
  return stale_.size();
}

// Undoes old mappings, a run of neighbours with one unmap.
void Backing::undo(std::vector<Stale> due) {
  sort_by_place(due);
  for (size_t i = 0, end = 0; i < due.size(); i = end) {
    AddressSpace& space = *due[i].space;
    uint32_t first = due[i].slot, next = first;
    for (end = i; end < due.size() && due[end].space == &space && due[end].slot == next; ++end)
      next += due[end].granules;
    if (unmap_run(space, first, next - first, counters_) != kOk) {  // tried again later
      stale_.insert(stale_.end(), due.begin() + static_cast<ptrdiff_t>(i), due.begin() + static_cast<ptrdiff_t>(end));
      continue;
    }
    for (uint32_t index = first; index < next; ++index) space.slot(index).stale = false;
    for (size_t undone = i; undone < end; ++undone) {
      HandleId id = due[undone].handle;
      if (id == 0) continue;
      granules_.remove_stale(id);
      if (!due[undone].give_back || !granules_.handle(id).shelved || granules_.handle(id).stale > 0) continue;
      granules_.take_off_shelf(id);
      granules_.release(id);
    }
  }
}

std::vector<Backing::Stale> Backing::take_departures() {
  if (!may_unmap()) return {};
  auto untold = [&](const Stale& one) {
    return news_.untold(one.space->address(one.slot), uint64_t{one.granules} * granules_.granule_bytes());
  };
  auto first = std::stable_partition(departures_.begin(), departures_.end(), untold);
  std::vector<Stale> taken(first, departures_.end());
  departures_.erase(first, departures_.end());
  departing_ += taken.size();
  return taken;
}

void Backing::sort_by_place(std::vector<Stale>& mappings) {
  std::sort(mappings.begin(), mappings.end(), [](const Stale& a, const Stale& b) {
    return a.space != b.space ? a.space->id() < b.space->id() : a.slot < b.slot;
  });
}

std::vector<Backing::Stale> Backing::every_mapping() const {
  std::vector<Stale> all(stale_.begin(), stale_.end());
  all.insert(all.end(), departures_.begin(), departures_.end());
  for (AddressSpace* space : spaces_) {
    for (uint32_t index = 0; index < space->highest_used(); ++index) {
      HandleId id = space->slot(index).handle;
      if (id == 0 || granules_.handle(id).slot != index) continue;
      all.push_back({space, index, granules_.handle(id).granules, id, Uses{}});
    }
  }
  return all;
}

void Backing::undo_departures(std::vector<Stale> departures) {
  departing_ -= departures.size();
  for (Stale& one : departures) one.told = true;
  if (may_unmap()) {
    undo(std::move(departures));
  } else {
    departures_.insert(departures_.end(), departures.begin(), departures.end());
  }
}

// An idle handle leaves its address: what happens to one that is stolen, but that nobody has it yet.
void Backing::depart(HandleId id, bool give_back) {
  granules_.take_idle(id);
  const Handle& handle = granules_.handle(id);
  AddressSpace& space = *spaces_[handle.space];
  departures_.push_back({&space, handle.slot, handle.granules, id, Uses{}, give_back});
  for (uint32_t index = handle.slot; index < handle.slot + handle.granules; ++index) {
    space.set_unmapped(index);
    space.slot(index).stale = true;
  }
  granules_.unmapped(id);
  granules_.add_stale(id);
  granules_.put_on_shelf(id);
}

// Unmaps idle handles, a run of neighbours with one unmap, and releases them or puts them on the shelf.
void Backing::return_idle(std::vector<HandleId> due, bool to_shelf) {
  if (news_.tells_first()) {
    for (HandleId id : due) depart(id, !to_shelf);
    return;
  }
  auto at = [&](HandleId id) -> const Handle& { return granules_.handle(id); };
  std::sort(due.begin(), due.end(), [&](HandleId a, HandleId b) {
    return at(a).space != at(b).space ? at(a).space < at(b).space : at(a).slot < at(b).slot;
  });
  for (size_t i = 0; i < due.size();) {
    AddressSpace& space = *spaces_[at(due[i]).space];
    uint32_t first = at(due[i]).slot, next = first;
    size_t end = i;
    while (end < due.size() && at(due[end]).space == space.id() && at(due[end]).slot == next)
      next += at(due[end++]).granules;
    if (unmap_run(space, first, next - first, counters_) == kOk) {
      for (uint32_t index = first; index < next; ++index) space.set_unmapped(index);
      for (; i < end; ++i) {
        granules_.take_idle(due[i]);
        granules_.unmapped(due[i]);
        if (to_shelf) {
          granules_.put_on_shelf(due[i]);
        } else {
          granules_.release(due[i]);
        }
      }
    }
    i = end;
  }
}

// Gives idle handles that are finished back to the driver, so that smaller ones can be made of them: those that nobody
// stole are too large for the run, and so are those on the shelf. Handles of their own first, which serve nobody else,
// then the smallest, until there are `wanted` granules. singles: also those of one granule. Returns how many there were.
int64_t Backing::break_up(int64_t wanted, bool singles) {
  if (!may_unmap()) return 0;
  if (!has_stale()) poll_streams();  // else undo_stale does
  undo_stale(SIZE_MAX);              // memory with an old mapping would not become free
  int64_t before = granules_.held();
  for (HandleId id; wanted > 0 && (id = granules_.take_settled()) != 0;) {
    wanted -= granules_.handle(id).granules;
    if (!granules_.release(id)) break;
  }
  std::vector<HandleId> due;
  for (int kind = kOwnKind; kind >= 0; --kind) {
    if (kind == kHandleKinds - 1 && !singles) continue;
    for (HandleId id = granules_.oldest_idle(kind); id != 0 && wanted > 0; id = granules_.newer_idle(id)) {
      const Handle& handle = granules_.handle(id);
      if (handle.pinned || handle.stale > 0 || !finished(handle.all_uses())) continue;
      due.push_back(id);
      wanted -= handle.granules;
    }
  }
  return_idle(std::move(due));
  return before - granules_.held();
}

std::vector<HandleId> Backing::finished_idle(const AddressSpace& space) const {
  std::vector<HandleId> due;
  for (uint32_t index = 0; index < space.highest_used();) {
    HandleId id = space.slot(index).handle;
    const Handle& handle = granules_.handle(id);
    index += id == 0 ? 1 : handle.granules;
    if (id != 0 && handle.idle && !handle.pinned && handle.stale == 0 && finished(handle.all_uses())) due.push_back(id);
  }
  return due;
}

uint64_t Backing::give_back(const AddressSpace& space) {
  if (!may_unmap()) return 0;
  int64_t before = granules_.held();
  full_at_ = INT64_MAX;
  return_idle(finished_idle(space));
  return static_cast<uint64_t>(before - granules_.held()) * granules_.granule_bytes();
}

void Backing::shelve_around(const AddressSpace& space, uint64_t offset, uint64_t bytes) {
  if (!may_unmap()) return;
  std::vector<HandleId> due = finished_idle(space);
  auto stays = [&](HandleId id) {
    const Handle& handle = granules_.handle(id);
    uint64_t first = handle.slot * space.granule_bytes(), end = first + handle.granules * space.granule_bytes();
    bool overlaps = first < offset + bytes && offset < end;
    if (overlaps && news_.tells_first()) return true;  // its addresses would have to wait until that is told
    bool has_last = end >= offset + bytes && handle.granules > 1;
    return covers(space, offset, bytes, handle) && !has_last;
  };
  due.erase(std::remove_if(due.begin(), due.end(), stays), due.end());
  return_idle(std::move(due), true);
}

uint64_t Backing::give_back(int64_t idle_before_ms, size_t most) {
  if (!may_unmap()) return 0;
  int64_t before = granules_.held();
  full_at_ = INT64_MAX;
  while (most > 0) {
    HandleId id = granules_.take_settled();
    if (id == 0 || !granules_.release(id)) break;
    --most;
  }
  std::vector<HandleId> due;
  for (int kind = 0; kind < kIdleLists; ++kind) {
    for (HandleId id = granules_.oldest_idle(kind); id != 0 && due.size() < most; id = granules_.newer_idle(id)) {
      if (granules_.handle(id).idle_since > idle_before_ms) break;
      const Handle& handle = granules_.handle(id);
      if (!handle.pinned && handle.stale == 0 && finished(handle.all_uses())) due.push_back(id);
    }
  }
  return_idle(std::move(due));
  return static_cast<uint64_t>(before - granules_.held()) * granules_.granule_bytes();
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
        uint64_t bytes = uint64_t{end - first} * space->granule_bytes();
        cuda::Result result = driver().set_access(space->address(first), bytes, &access, 1);
        if (result != cuda::kSuccess)  // a refusal may be passing, and torch asks only once
          result = driver().set_access(space->address(first), bytes, &access, 1);
        if (result != cuda::kSuccess) return driver_failure("cuMemSetAccess", result, "giving a peer device access");
      }
      first = end + 1;
    }
  }
  access_.push_back(access);
  return kOk;
}

void Backing::close() {
  // A refusal may be passing, so everything is offered twice.
  auto unmap = [&](AddressSpace& space, uint32_t slot, uint32_t count) {
    if (unmap_run(space, slot, count, counters_) != kOk && unmap_run(space, slot, count, counters_) != kOk)
      space.leave_reservation();
  };
  stale_.insert(stale_.end(), departures_.begin(), departures_.end());
  departures_.clear();
  for (const Stale& one : stale_) {
    unmap(*one.space, one.slot, one.granules);
    if (one.handle != 0) granules_.remove_stale(one.handle);
  }
  stale_.clear();
  for (AddressSpace* space : spaces_) {
    for (uint32_t index = 0; index < space->highest_used(); ++index) {
      HandleId id = space->slot(index).handle;
      if (id == 0) continue;
      uint32_t end = index + granules_.handle(id).granules;
      unmap(*space, index, end - index);
      for (uint32_t slot = index; slot < end; ++slot) {
        space->set_unmapped(slot);
        space->slot(slot).live = 0;
      }
      if (granules_.handle(id).idle) granules_.take_idle(id);
      granules_.unmapped(id);
      granules_.release(id);
    }
  }
  for (int64_t tries = 2 * granules_.on_shelf(); tries > 0 && granules_.on_shelf() > 0; --tries)
    granules_.release(granules_.take_settled());
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
  int64_t listed = 0;
  for (const Stale& one : stale_) listed += one.granules;
  for (const Stale& one : departures_) listed += one.granules;
  // A stuck slot may lie above everything that was ever mapped, so the list can be longer than what was counted.
  if (departing_ == 0 && stale > listed) return reason = "backing: a stale slot is on no list", false;
  return true;
}

}  // namespace pyalloc
