// Entry points: cuMemAlloc and its kin, memory information.
#include "simulation.h"

using namespace simgpu;

namespace {

// What an allocation takes of the device: the driver packs small ones into granules, large ones have granules of their own.
uint64_t charged_bytes(uint64_t bytes) {
  uint64_t unit = bytes < kGranularity ? 512 : kGranularity;
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

SIMGPU_API Result cuMemGetInfo_v2(size_t* free, size_t* total) {
  SIMGPU_BEGIN(cuMemGetInfo_v2);
  int device = entered.device().number;
  uint64_t told = sim.session.told(device), used = sim.session.used(device);
  if (free != nullptr) *free = told > used ? told - used : 0;
  if (total != nullptr) *total = told;
  return kSuccess;
}

SIMGPU_API Result cuMemAlloc_v2(DevicePtr* address, size_t bytes) {
  SIMGPU_BEGIN(cuMemAlloc_v2);
  if (address == nullptr || bytes == 0) return kInvalidValue;
  if (bytes > (1ull << 47)) return kOutOfMemory;
  std::unique_ptr<Physical> physical = sim.memory.create(entered.device().ordinal, bytes, charged_bytes(bytes));
  if (physical == nullptr) return kOutOfMemory;
  Physical* raw = physical.get();
  Region* region = sim.space.add_plain(std::move(physical), bytes);
  if (region == nullptr) return kOutOfMemory;
  entered.charge(1, static_cast<double>(raw->charged));
  *address = region->start;
  return kSuccess;
}

SIMGPU_API Result cuMemAllocPitch_v2(DevicePtr* address, size_t* pitch, size_t width, size_t height, unsigned element) {
  SIMGPU_BEGIN(cuMemAllocPitch_v2);
  if (address == nullptr || pitch == nullptr || width == 0 || height == 0) return kInvalidValue;
  if (element != 4 && element != 8 && element != 16) return kInvalidValue;
  size_t row = (width + 511) / 512 * 512, bytes = 0;
  if (__builtin_mul_overflow(row, height, &bytes) || bytes > (1ull << 47)) return kOutOfMemory;
  std::unique_ptr<Physical> physical = sim.memory.create(entered.device().ordinal, bytes, charged_bytes(bytes));
  Region* region = physical != nullptr ? sim.space.add_plain(std::move(physical), bytes) : nullptr;
  if (region == nullptr) return kOutOfMemory;
  *address = region->start;
  *pitch = row;
  return kSuccess;
}

SIMGPU_API Result cuMemFree_v2(DevicePtr address) {
  SIMGPU_BEGIN(cuMemFree_v2);
  if (address == 0) return kSuccess;
  Region* region = sim.space.find(address);
  if (region == nullptr || region->kind != RegionKind::kPlain || region->start != address ||
      region->ipc_references > 0) {
    return kInvalidValue;
  }
  int device = region->device;
  Result result = sim.scheduler.wait_device(device);  // it waits for the device, as NVIDIA's does
  sim.oracle.on_host_wait_device(device);
  region = sim.space.find(address);
  if (region == nullptr || region->start != address) return kInvalidValue;
  sim.oracle.on_plain_free(region->start, region->bytes);
  entered.charge(1, static_cast<double>(region->bytes));
  if (PoolObject* pool = sim.pools.find(region->pool)) pool->used -= region->bytes;
  sim.space.free_plain(region);
  return result;
}

SIMGPU_API Result cuMemGetAddressRange_v2(DevicePtr* base, size_t* bytes, DevicePtr address) {
  SIMGPU_BEGIN(cuMemGetAddressRange_v2);
  Region* region = sim.space.find(address);
  if (region == nullptr) return kInvalidValue;
  uint64_t start = region->start, size = region->bytes;
  if (region->kind == RegionKind::kReservation) {  // one mapping, not the reservation
    auto it = region->mappings.upper_bound(address);
    if (it == region->mappings.begin()) return kInvalidValue;
    --it;
    if (address - it->first >= it->second.bytes) return kInvalidValue;
    start = it->first;
    size = it->second.bytes;
  }
  if (base != nullptr) *base = start;
  if (bytes != nullptr) *bytes = size;
  return kSuccess;
}
