#include "vm/address_space.h"

#include "base/bits.h"
#include "base/check.h"
#include "driver/driver.h"

namespace pyalloc {

Status AddressSpace::reserve(uint64_t bytes, uint64_t least) {
  cuda::Result result = cuda::kSuccess;
  for (uint64_t wanted = align_up(bytes, kRegion);; wanted = align_up(wanted / 2, kRegion)) {
    cuda::DevicePtr at = 0;
    // One region more than wanted, so that a whole number of aligned regions lies inside and no other reservation
    // shares them.
    result = driver().address_reserve(&at, wanted + kRegion, 0, 0, 0);
    if (result == cuda::kSuccess) {
      reserved_at_ = at;
      reserved_bytes_ = wanted + kRegion;
      base_ = align_up(at, kRegion);
      bytes_ = wanted;
      break;
    }
    if (wanted / 2 < least || wanted <= kRegion)
      return driver_failure("cuMemAddressReserve", result, "reserving addresses");
  }
  if (!slots_.create(slots())) {
    free_reservation();
    return fail(PYALLOC_OUT_OF_MEMORY,
                "the host has no address space left for the books of %llu GiB of device addresses",
                static_cast<unsigned long long>(bytes / kGiB));
  }
  return kOk;
}

void AddressSpace::free_reservation() {
  if (reserved_bytes_ != 0) driver().address_free(reserved_at_, reserved_bytes_);
  reserved_bytes_ = 0;
}

int AddressSpace::segment_change(uint32_t index) const {
  bool left = index > 0 && mapped(index - 1), right = index + 1 < slots() && mapped(index + 1);
  return 1 - static_cast<int>(left) - static_cast<int>(right);
}

void AddressSpace::set_mapped(uint32_t index, HandleId handle) {
  PYALLOC_ASSERT(!mapped(index) && !slots_[index].stale);
  int change = segment_change(index);
  segments_ += change;
  for (MappedTotals* totals : {&of_kind_, &of_pool_}) {
    totals->segments += change;
    ++totals->slots;
  }
  slots_[index].handle = handle;
  ++mapped_;
  if (index >= highest_used_) highest_used_ = index + 1;
}

void AddressSpace::set_unmapped(uint32_t index) {
  PYALLOC_ASSERT(mapped(index));
  Slot& one = slots_[index];
  one.handle = 0;
  int change = segment_change(index);
  segments_ -= change;
  for (MappedTotals* totals : {&of_kind_, &of_pool_}) {
    totals->segments -= change;
    --totals->slots;
  }
  --mapped_;
}

bool AddressSpace::validate(const Granules& granules, std::string& reason) const {
  int64_t mapped_seen = 0, runs = 0;
  for (uint32_t index = 0; index < highest_used_; ++index) {
    const Slot& one = slots_[index];
    if (!mapped(index)) {
      if (one.live != 0 && !asleep)
        return reason = "address space: a live block touches unmapped slot " + std::to_string(index), false;
      continue;
    }
    ++mapped_seen;
    runs += index == 0 || !mapped(index - 1);
    const Handle& handle = granules.handle(one.handle);
    if (!handle.mapped || handle.space != id_ || index < handle.slot || index >= handle.slot + handle.granules)
      return reason = "address space: slot " + std::to_string(index) + " and its handle disagree", false;
    if (one.stale) return reason = "address space: slot " + std::to_string(index) + " is both mapped and stale", false;
    if (index == handle.slot) {
      uint32_t live = 0;
      for (uint32_t part = 0; part < handle.granules; ++part) live += slots_[index + part].live > 0;
      if (live != handle.live_slots)
        return reason = "address space: the handle at slot " + std::to_string(index) + " miscounts its live slots",
               false;
    }
  }
  if (mapped_seen != mapped_ || runs != segments_) return reason = "address space: counts disagree", false;
  return true;
}

}  // namespace pyalloc
