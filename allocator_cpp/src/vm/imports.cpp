#include "vm/imports.h"

#include <algorithm>
#include <utility>

#include "driver/driver.h"

namespace pyalloc {

Status Imports::map(const std::vector<ReceivedHandle>& handles, const std::vector<cuda::AccessDesc>& access,
                    uint64_t& address) {
  uint64_t bytes = 0, mapped = 0;
  for (const ReceivedHandle& one : handles) bytes += one.bytes;
  cuda::DevicePtr base = 0;
  cuda::Result result = driver().address_reserve(&base, bytes, 0, 0, 0);
  if (result != cuda::kSuccess)
    return driver_failure("cuMemAddressReserve", result, "reserving addresses for memory of another process");
  const char* call = "cuMemMap";
  for (const ReceivedHandle& one : handles) {
    result = driver().map(base + mapped, one.bytes, 0, one.memory, 0);
    if (result != cuda::kSuccess) break;
    mapped += one.bytes;
  }
  if (result == cuda::kSuccess) {
    call = "cuMemSetAccess";
    result = driver().set_access(base, bytes, access.data(), access.size());
  }
  if (result != cuda::kSuccess) {
    Status status = driver_failure(call, result, "mapping memory of another process");
    // What cannot be undone now is undone with the rest.
    bool undone = mapped == 0 || driver().unmap(base, mapped) == cuda::kSuccess;
    if (!undone || driver().address_free(base, bytes) != cuda::kSuccess)
      imports_[base] = {undone ? 0 : mapped, bytes, false};
    return status;
  }
  imports_[base] = {bytes, bytes, true};
  bytes_ += static_cast<int64_t>(bytes);
  address = base;
  return kOk;
}

void Imports::release(const std::vector<ReceivedHandle>& handles) {
  for (const ReceivedHandle& one : handles)
    if (driver().release(one.memory) != cuda::kSuccess) unreleased_.push_back(one);
}

Status Imports::unmap(uint64_t address) {
  auto found = imports_.find(address);
  if (found == imports_.end())
    return fail(PYALLOC_UNKNOWN_POINTER, "0x%llx is not memory of another process that is mapped here",
                static_cast<unsigned long long>(address));
  Import& one = found->second;
  if (one.in_use) bytes_ -= static_cast<int64_t>(one.mapped);
  one.in_use = false;
  if (one.mapped > 0) {
    cuda::Result result = driver().unmap(address, one.mapped);
    if (result != cuda::kSuccess)
      return driver_failure("cuMemUnmap", result, "undoing a mapping of another process's memory");
    one.mapped = 0;
  }
  cuda::Result result = driver().address_free(address, one.reserved);
  if (result != cuda::kSuccess)
    return driver_failure("cuMemAddressFree", result, "giving back the addresses of another process's memory");
  imports_.erase(found);
  return kOk;
}

Status Imports::add_access(const cuda::AccessDesc& access) const {
  for (const auto& [address, one] : imports_) {
    if (!one.in_use) continue;
    cuda::Result result = driver().set_access(address, one.mapped, &access, 1);
    if (result != cuda::kSuccess) return driver_failure("cuMemSetAccess", result, "giving a peer device access");
  }
  return kOk;
}

bool Imports::has_left_over() const {
  return !unreleased_.empty() ||
         std::any_of(imports_.begin(), imports_.end(), [](const auto& one) { return !one.second.in_use; });
}

void Imports::undo_left_over() {
  release(std::exchange(unreleased_, {}));
  for (auto one = imports_.begin(); one != imports_.end();) {
    uint64_t address = one->first;
    bool left_over = !one->second.in_use;
    ++one;
    if (left_over) unmap(address);
  }
}

void Imports::close() {
  for (int tries = 0; tries < 2; ++tries) release(std::exchange(unreleased_, {}));
  for (auto one = imports_.begin(); one != imports_.end();) {
    uint64_t address = (one++)->first;
    if (unmap(address) != kOk) unmap(address);  // a refusal may be passing
  }
}

}  // namespace pyalloc
