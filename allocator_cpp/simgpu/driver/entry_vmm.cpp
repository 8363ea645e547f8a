// Entry points: virtual memory management. Reservations, physical handles, mappings, access, export and import.
#include <fcntl.h>

#include "simulation.h"

using namespace simgpu;

namespace {

bool power_of_two(uint64_t value) { return (value & (value - 1)) == 0; }
bool whole_granules(uint64_t bytes) { return bytes != 0 && bytes % kGranularity == 0; }

Result check_prop(Simulation& sim, const AllocationProp* prop) {
  if (prop == nullptr || prop->type != kAllocationPinned) return kInvalidValue;
  if (prop->location.type != kLocationDevice) return kNotSupported;  // host memory by handles is not simulated
  if (find_device(sim, prop->location.id) == nullptr) return kInvalidDevice;
  if ((prop->requested_handle_types & ~kHandlePosixFd) != 0) return kNotSupported;
  return kSuccess;
}

// A handle the caller may use: one of its references is left.
Physical* find_handle(Simulation& sim, MemHandle handle) {
  Physical* physical = sim.memories.find(static_cast<uint64_t>(handle));
  return physical != nullptr && physical->handles > 0 ? physical : nullptr;
}

// The reservation that holds the whole range; null when there is none.
Region* find_reservation(Simulation& sim, DevicePtr address, size_t bytes) {
  Region* region = sim.space.find_device(address, bytes);
  return region != nullptr && region->kind == RegionKind::kReservation ? region : nullptr;
}

}  // namespace

SIMGPU_API Result cuMemGetAllocationGranularity(size_t* bytes, const AllocationProp* prop, GranularityFlags which) {
  SIMGPU_BEGIN(cuMemGetAllocationGranularity);
  if (bytes == nullptr || (which != kGranularityMinimum && which != kGranularityRecommended)) return kInvalidValue;
  if (Result error = check_prop(sim, prop)) return error;
  *bytes = kGranularity;
  return kSuccess;
}

SIMGPU_API Result cuMemAddressReserve(DevicePtr* address, size_t bytes, size_t alignment, DevicePtr hint,
                                      unsigned long long flags) {
  SIMGPU_BEGIN(cuMemAddressReserve);
  if (address == nullptr || flags != 0 || !whole_granules(bytes) || !power_of_two(alignment)) return kInvalidValue;
  uint64_t start = sim.space.reserve(bytes, alignment, hint);
  if (start == 0) return kOutOfMemory;
  entered.charge(0, static_cast<double>(bytes));
  *address = start;
  return kSuccess;
}

SIMGPU_API Result cuMemAddressFree(DevicePtr address, size_t bytes) {
  SIMGPU_BEGIN(cuMemAddressFree);
  Region* region = find_reservation(sim, address, bytes);
  if (region == nullptr || region->start != address || region->bytes != bytes) {
    sim.violations.add("cuMemAddressFree of 0x%llx+%zu, which is not one whole reservation", address, bytes);
    return kInvalidValue;
  }
  if (!region->mappings.empty()) {
    sim.violations.add("cuMemAddressFree of 0x%llx+%zu, which has %zu mappings", address, bytes,
                       region->mappings.size());
    return kInvalidValue;
  }
  sim.space.free_reservation(region);
  return kSuccess;
}

SIMGPU_API Result cuMemCreate(MemHandle* handle, size_t bytes, const AllocationProp* prop, unsigned long long flags) {
  SIMGPU_BEGIN(cuMemCreate);
  if (handle == nullptr || flags != 0 || !whole_granules(bytes)) return kInvalidValue;
  if (Result error = check_prop(sim, prop)) return error;
  if (bytes > (1ull << 47)) return kOutOfMemory;
  std::unique_ptr<Physical> physical = sim.memory.create(prop->location.id, bytes, bytes);
  if (physical == nullptr) return kOutOfMemory;
  physical->prop = *prop;
  physical->handles = 1;
  Physical* raw = physical.get();
  raw->handle = sim.memories.insert(std::move(physical));
  entered.charge(1, static_cast<double>(bytes));
  *handle = raw->handle;
  return kSuccess;
}

SIMGPU_API Result cuMemRelease(MemHandle handle) {
  SIMGPU_BEGIN(cuMemRelease);
  Physical* physical = find_handle(sim, handle);
  if (physical == nullptr) {
    sim.violations.add("cuMemRelease of the handle 0x%llx, of which no reference is left", handle);
    return kInvalidValue;
  }
  --physical->handles;
  entered.charge(1, static_cast<double>(physical->bytes));
  sim.drop_if_unused(physical->handle);
  return kSuccess;
}

SIMGPU_API Result cuMemMap(DevicePtr address, size_t bytes, size_t offset, MemHandle handle, unsigned long long flags) {
  SIMGPU_BEGIN(cuMemMap);
  if (flags != 0 || !whole_granules(bytes) || address % kGranularity != 0) return kInvalidValue;
  Physical* physical = find_handle(sim, handle);
  if (physical == nullptr || offset > physical->bytes || bytes > physical->bytes - offset) return kInvalidValue;
  // Driver 580 on an H200 takes a handle whole or not at all.
  if (bytes != physical->bytes) return kNotSupported;
  Region* region = find_reservation(sim, address, bytes);
  if (region == nullptr) return kInvalidValue;
  auto next = region->mappings.lower_bound(address);
  if (next != region->mappings.end() && next->first < address + bytes) return kInvalidValue;
  if (next != region->mappings.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second.bytes > address) return kInvalidValue;
  }
  Mapping mapping;
  mapping.bytes = bytes;
  mapping.physical = physical;
  mapping.offset = offset;
  region->mappings.emplace_hint(next, address, mapping);
  ++physical->mappings;
  entered.charge(1, static_cast<double>(bytes));
  return kSuccess;
}

SIMGPU_API Result cuMemSetAccess(DevicePtr address, size_t bytes, const AccessDesc* access, size_t count) {
  SIMGPU_BEGIN(cuMemSetAccess);
  if (access == nullptr || count == 0 || bytes == 0) return kInvalidValue;
  for (size_t i = 0; i < count; ++i) {
    if (access[i].location.type != kLocationDevice) return kNotSupported;
    if (find_device(sim, access[i].location.id) == nullptr) return kInvalidDevice;
    AccessFlags flags = access[i].flags;
    if (flags != kAccessNone && flags != kAccessRead && flags != kAccessReadWrite) return kInvalidValue;
  }
  Region* region = find_reservation(sim, address, bytes);
  if (region == nullptr) return kInvalidValue;
  std::map<uint64_t, Mapping>::iterator it;
  size_t mappings = sim.space.whole_mappings(region, address, bytes, &it);
  if (mappings == 0) return kInvalidValue;
  if (!sim.peers) {
    auto one = it;
    for (size_t n = 0; n < mappings; ++n, ++one) {
      for (size_t i = 0; i < count; ++i) {
        if (access[i].location.id != one->second.physical->device) return kNotSupported;
      }
    }
  }
  for (size_t n = 0; n < mappings; ++n, ++it) {
    for (size_t i = 0; i < count; ++i) {
      it->second.access[static_cast<size_t>(access[i].location.id)] = static_cast<uint8_t>(access[i].flags);
    }
  }
  entered.charge(static_cast<double>(mappings), static_cast<double>(bytes));
  return kSuccess;
}

SIMGPU_API Result cuMemGetAccess(unsigned long long* flags, const MemLocation* location, DevicePtr address) {
  SIMGPU_BEGIN(cuMemGetAccess);
  if (flags == nullptr || location == nullptr || location->type != kLocationDevice) return kInvalidValue;
  if (find_device(sim, location->id) == nullptr) return kInvalidDevice;
  Region* region = find_reservation(sim, address, 1);
  if (region == nullptr) return kInvalidValue;
  auto it = region->mappings.upper_bound(address);
  if (it == region->mappings.begin()) return kInvalidValue;
  --it;
  if (address - it->first >= it->second.bytes) return kInvalidValue;
  *flags = it->second.access[static_cast<size_t>(location->id)];
  return kSuccess;
}

SIMGPU_API Result cuMemUnmap(DevicePtr address, size_t bytes) {
  SIMGPU_BEGIN(cuMemUnmap);
  Region* region = bytes != 0 ? find_reservation(sim, address, bytes) : nullptr;
  if (region == nullptr) return kInvalidValue;
  std::map<uint64_t, Mapping>::iterator first;
  size_t mappings = sim.space.whole_mappings(region, address, bytes, &first);
  if (mappings == 0) return kInvalidValue;
  if (sim.scheduler.pending() > 0) {
    int64_t stream = sim.scheduler.doom_users(address, bytes);
    if (stream >= 0) {
      sim.violations.add("cuMemUnmap of 0x%llx+%zu, which work queued on stream %lld still uses", address, bytes,
                         (long long)stream);
    }
  }
  sim.oracle.on_unmap(address, bytes);
  for (size_t n = 0; n < mappings; ++n) {
    Physical* physical = first->second.physical;
    first = region->mappings.erase(first);
    --physical->mappings;
    sim.drop_if_unused(physical->handle);
  }
  entered.charge(static_cast<double>(mappings), static_cast<double>(bytes));
  return kSuccess;
}

SIMGPU_API Result cuMemRetainAllocationHandle(MemHandle* handle, void* address) {
  SIMGPU_BEGIN(cuMemRetainAllocationHandle);
  if (handle == nullptr) return kInvalidValue;
  DevicePtr at = reinterpret_cast<DevicePtr>(address);
  std::vector<Piece> pieces;
  Region* region = find_reservation(sim, at, 1);
  if (region == nullptr || sim.space.translate(at, 1, AddressSpace::kAnyDevice, false, &pieces) != Fault::kNone)
    return kInvalidValue;
  ++pieces[0].physical->handles;
  *handle = pieces[0].physical->handle;
  return kSuccess;
}

SIMGPU_API Result cuMemGetAllocationPropertiesFromHandle(AllocationProp* prop, MemHandle handle) {
  SIMGPU_BEGIN(cuMemGetAllocationPropertiesFromHandle);
  Physical* physical = find_handle(sim, handle);
  if (prop == nullptr || physical == nullptr) return kInvalidValue;
  *prop = physical->prop;
  return kSuccess;
}

SIMGPU_API Result cuMemExportToShareableHandle(void* shareable, MemHandle handle, HandleType type,
                                               unsigned long long flags) {
  SIMGPU_BEGIN(cuMemExportToShareableHandle);
  if (shareable == nullptr || flags != 0) return kInvalidValue;
  Physical* physical = find_handle(sim, handle);
  if (physical == nullptr) return kInvalidValue;
  if (type != kHandlePosixFd) return kNotSupported;
  if ((physical->prop.requested_handle_types & kHandlePosixFd) == 0) return kNotPermitted;
  if (!sim.memory.make_shareable(*physical)) return kOperatingSystem;
  int fd = fcntl(physical->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return kOperatingSystem;
  *static_cast<int*>(shareable) = fd;
  return kSuccess;
}

SIMGPU_API Result cuMemImportFromShareableHandle(MemHandle* handle, void* shareable, HandleType type) {
  SIMGPU_BEGIN(cuMemImportFromShareableHandle);
  if (handle == nullptr) return kInvalidValue;
  if (type != kHandlePosixFd) return kNotSupported;
  std::unique_ptr<Physical> physical = sim.memory.adopt(static_cast<int>(reinterpret_cast<intptr_t>(shareable)));
  if (physical == nullptr) return kInvalidValue;
  if (find_device(sim, physical->device) == nullptr) {
    sim.memory.destroy(std::move(physical));
    return kInvalidDevice;
  }
  physical->handles = 1;
  Physical* raw = physical.get();
  raw->handle = sim.memories.insert(std::move(physical));
  *handle = raw->handle;
  return kSuccess;
}
