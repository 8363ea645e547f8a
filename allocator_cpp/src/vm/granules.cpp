#include "vm/granules.h"

#include "base/check.h"
#include "driver/driver.h"

namespace pyalloc {

cuda::AllocationProp granule_properties(int device) {
  cuda::AllocationProp prop{};
  prop.type = cuda::kAllocationPinned;
  prop.location = {cuda::kLocationDevice, device};
  cuda::Device handle = 0;
  auto can = [&](cuda::DeviceAttribute what) {
    int answer = 0;
    return driver().device_get(&handle, device) == cuda::kSuccess &&
           driver().device_attribute(&answer, what, handle) == cuda::kSuccess && answer != 0;
  };
  if (can(cuda::kAttrHandlePosixFd)) prop.requested_handle_types = cuda::kHandlePosixFd;
  prop.flags.gpu_direct_rdma_capable = can(cuda::kAttrGpuDirectRdmaWithVmm) ? 1 : 0;
  return prop;
}

Granules::Granules(const cuda::AllocationProp& prop, size_t granule_bytes, Counters& counters)
    : prop_(prop), granule_bytes_(granule_bytes), counters_(counters) {
  handles_.resize(1);
}

Status Granules::create(uint32_t granules, HandleId& made, bool own) {
  cuda::MemHandle memory = 0;
  cuda::Result result = driver().create(&memory, granules * granule_bytes_, &prop_, 0);
  if (result != cuda::kSuccess) return driver_failure("cuMemCreate", result, "creating memory");
  count(counters_.num_device_alloc);
  count(counters_.created_granules, granules);
  if (unused_.empty()) {
    handles_.emplace_back();
    made = static_cast<HandleId>(handles_.size() - 1);
  } else {
    made = unused_.back();
    unused_.pop_back();
    handles_[made] = Handle{};
  }
  handles_[made].memory = memory;
  handles_[made].granules = granules;
  handles_[made].own = own;
  held_ += granules;
  return kOk;
}

bool Granules::release(HandleId id) {
  Handle& one = handles_[id];
  PYALLOC_ASSERT(one.granules > 0 && !one.mapped && !one.idle && one.stale == 0);
  if (driver().release(one.memory) != cuda::kSuccess) {
    put_on_shelf(id);
    return false;
  }
  count(counters_.num_device_free);
  held_ -= one.granules;
  if (one.exported != 0) exported_ -= one.granules;
  one = Handle{};
  unused_.push_back(id);
  return true;
}

HandleId Granules::take_from_shelf(uint32_t most) {
  HandleId best = 0;
  for (HandleId id : shelf_) {
    const Handle& one = handles_[id];
    if (one.granules > most || one.own) continue;
    if (best == 0 || one.granules > handles_[best].granules) best = id;
  }
  if (best != 0) take_off_shelf(best);
  return best;
}

HandleId Granules::take_settled() {
  auto found = std::find_if(shelf_.begin(), shelf_.end(), [&](HandleId id) { return handles_[id].stale == 0; });
  if (found == shelf_.end()) return 0;
  HandleId id = *found;
  take_off_shelf(id);
  return id;
}

void Granules::take_off_shelf(HandleId id) {
  *std::find(shelf_.begin(), shelf_.end(), id) = shelf_.back();
  shelf_.pop_back();
  handles_[id].shelved = false;
  on_shelf_ -= handles_[id].granules;
}

void Granules::put_on_shelf(HandleId id) {
  PYALLOC_ASSERT(!handles_[id].mapped);
  shelf_.push_back(id);
  handles_[id].shelved = true;
  on_shelf_ += handles_[id].granules;
}

void Granules::mapped_at(HandleId id, uint16_t space, uint32_t slot, const Uses& inherited) {
  handles_[id].uses = Uses{};
  handles_[id].inherited = inherited;
  handles_[id].mapped = true;
  handles_[id].space = space;
  handles_[id].slot = slot;
}

void Granules::unmapped(HandleId id) { handles_[id].mapped = false; }

void Granules::split(HandleId id) {
  Handle& one = handles_[id];
  if (one.split || one.granules == 1) return;
  one.split = true;
  in_split_ += one.granules;
}

void Granules::mark_exported(HandleId id) {
  Handle& one = handles_[id];
  PYALLOC_ASSERT(one.live_slots > 0);
  if (one.exported != 0) return;
  one.exported = ++exports_ != 0 ? exports_ : ++exports_;
  exported_ += one.granules;
}

void Granules::slots_live(HandleId id, uint32_t slots) {
  Handle& one = handles_[id];
  if (slots == 0) return;
  if (one.idle) take_idle(id);
  stranded_ += one.live_slots == 0 ? int64_t{one.granules} - slots : -int64_t{slots};
  one.live_slots += slots;
}

void Granules::slots_dead(HandleId id, uint32_t slots, int64_t now_ms) {
  Handle& one = handles_[id];
  PYALLOC_ASSERT(one.live_slots >= slots);
  stranded_ += slots;
  one.live_slots -= slots;
  if (slots == 0 || one.live_slots > 0) return;
  stranded_ -= one.granules;
  if (one.split) in_split_ -= one.granules;
  one.split = false;
  if (one.exported != 0) exported_ -= one.granules;
  one.exported = 0;
  one.idle = true;
  one.idle_since = now_ms;
  IdleList& list = list_of(one);
  one.older = list.newest;
  one.newer = 0;
  (list.newest != 0 ? handles_[list.newest].newer : list.oldest) = id;
  list.newest = id;
  idle_ += one.granules;
}

void Granules::take_idle(HandleId id) {
  Handle& one = handles_[id];
  PYALLOC_ASSERT(one.idle);
  IdleList& list = list_of(one);
  (one.older != 0 ? handles_[one.older].newer : list.oldest) = one.newer;
  (one.newer != 0 ? handles_[one.newer].older : list.newest) = one.older;
  one.older = one.newer = 0;
  one.idle = false;
  idle_ -= one.granules;
}

void Granules::put_idle(HandleId id) {
  Handle& one = handles_[id];
  PYALLOC_ASSERT(!one.idle && one.live_slots == 0);
  IdleList& list = list_of(one);
  one.idle = true;
  one.newer = list.oldest;
  one.older = 0;
  (list.oldest != 0 ? handles_[list.oldest].older : list.newest) = id;
  list.oldest = id;
  idle_ += one.granules;
}

bool Granules::validate(std::string& reason) const {
  int64_t held_seen = 0, idle_seen = 0, stranded_seen = 0, split_seen = 0, unmapped_seen = 0, exported_seen = 0;
  for (HandleId id = 1; id < handles_.size(); ++id) {
    const Handle& one = handles_[id];
    held_seen += one.granules;
    if (one.idle) idle_seen += one.granules;
    if (one.live_slots > 0) stranded_seen += one.granules - one.live_slots;
    if (one.granules > 0 && !one.mapped) unmapped_seen += one.granules;
    if (one.split) split_seen += one.granules;
    if (one.granules > 0 && one.shelved == one.mapped)
      return reason = "granules: a handle is not either mapped or on the shelf", false;
    if (one.exported != 0) exported_seen += one.granules;
    if (one.exported != 0 && (one.idle || !one.mapped))
      return reason = "granules: an exported handle is idle or not mapped", false;
    if (one.split && one.idle) return reason = "granules: an idle handle is split", false;
    if (one.idle && !one.mapped) return reason = "granules: an idle handle is not mapped", false;
    if (one.mapped && one.idle != (one.live_slots == 0))
      return reason = "granules: a handle is idle in one book only", false;
  }
  int64_t listed = 0;
  for (int kind = 0; kind < kIdleLists; ++kind) {
    HandleId previous = 0;
    for (HandleId id = lists_[kind].oldest; id != 0 && listed <= idle_; id = handles_[id].newer) {
      const Handle& one = handles_[id];
      if (!one.idle || one.older != previous || kind_of(one) != kind)
        return reason = "granules: an idle list is broken", false;
      previous = id;
      listed += one.granules;
    }
    if (previous != lists_[kind].newest) return reason = "granules: an idle list does not end at its newest", false;
  }
  if (held_seen != held_ || idle_seen != idle_ || listed != idle_ || unmapped_seen != on_shelf_ ||
      stranded_seen != stranded_ || split_seen != in_split_ || exported_seen != exported_)
    return reason = "granules: counts disagree", false;
  return true;
}

}  // namespace pyalloc
