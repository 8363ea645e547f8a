#include "vm/granules.h"

#include "base/check.h"
#include "driver/driver.h"

namespace pyalloc {

cuda::AllocationProp granule_properties(int device) {
  cuda::AllocationProp prop{};
  prop.type = cuda::kAllocationPinned;
  prop.location = {cuda::kLocationDevice, device};
  prop.requested_handle_types = cuda::kHandlePosixFd;
  return prop;
}

Granules::Granules(int device, size_t granule_bytes, Counters& counters)
    : device_(device), granule_bytes_(granule_bytes), counters_(counters) {
  granules_.resize(1);
}

Status Granules::create(HandleId& made) {
  cuda::AllocationProp prop = granule_properties(device_);
  cuda::MemHandle memory = 0;
  cuda::Result result = driver().create(&memory, granule_bytes_, &prop, 0);
  if (result != cuda::kSuccess) return driver_failure("cuMemCreate", result, "creating a granule");
  count(counters_.num_device_alloc);
  count(counters_.created_granules);
  if (unused_.empty()) {
    granules_.emplace_back();
    made = static_cast<HandleId>(granules_.size() - 1);
  } else {
    made = unused_.back();
    unused_.pop_back();
    granules_[made] = Granule{};
  }
  granules_[made].memory = memory;
  granules_[made].held = true;
  ++held_;
  return kOk;
}

bool Granules::release(HandleId id) {
  Granule& one = granules_[id];
  PYALLOC_ASSERT(one.held && !one.mapped && !one.idle);
  if (driver().release(one.memory) != cuda::kSuccess) {
    put_on_shelf(id);
    return false;
  }
  count(counters_.num_device_free);
  one = Granule{};
  unused_.push_back(id);
  --held_;
  return true;
}

HandleId Granules::take_from_shelf() {
  if (shelf_.empty()) return 0;
  HandleId id = shelf_.back();
  shelf_.pop_back();
  return id;
}

void Granules::put_on_shelf(HandleId id) {
  PYALLOC_ASSERT(!granules_[id].mapped);
  shelf_.push_back(id);
}

void Granules::mapped_at(HandleId id, uint16_t space, uint32_t slot) {
  granules_[id].mapped = true;
  granules_[id].space = space;
  granules_[id].slot = slot;
}

void Granules::unmapped(HandleId id) { granules_[id].mapped = false; }

void Granules::set_idle(HandleId id, int64_t now_ms) {
  Granule& one = granules_[id];
  PYALLOC_ASSERT(one.held && !one.idle);
  one.idle = true;
  one.idle_since = now_ms;
  one.older = newest_;
  one.newer = 0;
  (newest_ != 0 ? granules_[newest_].newer : oldest_) = id;
  newest_ = id;
  ++idle_;
}

void Granules::set_idle_oldest(HandleId id) {
  Granule& one = granules_[id];
  PYALLOC_ASSERT(one.held && !one.idle);
  one.idle = true;
  one.newer = oldest_;
  one.older = 0;
  (oldest_ != 0 ? granules_[oldest_].older : newest_) = id;
  oldest_ = id;
  ++idle_;
}

void Granules::set_busy(HandleId id) {
  Granule& one = granules_[id];
  PYALLOC_ASSERT(one.idle);
  (one.older != 0 ? granules_[one.older].newer : oldest_) = one.newer;
  (one.newer != 0 ? granules_[one.newer].older : newest_) = one.older;
  one.older = one.newer = 0;
  one.idle = false;
  --idle_;
}

bool Granules::validate(std::string& reason) const {
  int64_t held_seen = 0, idle_seen = 0, unmapped_seen = 0;
  for (HandleId id = 1; id < granules_.size(); ++id) {
    const Granule& one = granules_[id];
    held_seen += one.held;
    idle_seen += one.idle;
    unmapped_seen += one.held && !one.mapped;
    if (one.idle && !(one.held && one.mapped)) return reason = "granules: an idle granule is not mapped", false;
  }
  int64_t listed = 0;
  HandleId previous = 0;
  for (HandleId id = oldest_; id != 0 && listed <= idle_; id = granules_[id].newer) {
    if (!granules_[id].idle || granules_[id].older != previous)
      return reason = "granules: the idle list is broken", false;
    previous = id;
    ++listed;
  }
  if (previous != newest_) return reason = "granules: the idle list does not end at its newest", false;
  if (held_seen != held_ || idle_seen != idle_ || listed != idle_ || unmapped_seen != on_shelf())
    return reason = "granules: counts disagree", false;
  return true;
}

}  // namespace pyalloc
