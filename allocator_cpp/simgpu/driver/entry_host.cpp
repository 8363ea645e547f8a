// Entry points: pinned host memory and what a pointer is.
#include <sys/mman.h>

#include <cstring>

#include "simulation.h"

using namespace simgpu;

namespace {

constexpr unsigned kHostFlags = 0x7, kRegisterFlags = 0xf;
constexpr uint64_t kPage = 4096;

Result alloc_host(Simulation& sim, void** address, size_t bytes, unsigned flags) {
  if (address == nullptr || (flags & ~kHostFlags) != 0) return kInvalidValue;
  if (bytes == 0) return *address = nullptr, kSuccess;
  if (bytes > (1ull << 46)) return kOutOfMemory;
  uint64_t whole = (bytes + kPage - 1) / kPage * kPage;
  void* memory = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  sim.space.add_host(reinterpret_cast<uint64_t>(memory), bytes, false, flags);
  *address = memory;
  return kSuccess;
}

Result register_host(Simulation& sim, void* address, size_t bytes, unsigned flags) {
  if (address == nullptr || bytes == 0 || (flags & ~kRegisterFlags) != 0) return kInvalidValue;
  uint64_t start = reinterpret_cast<uint64_t>(address);
  if (start + bytes < start) return kInvalidValue;
  if (sim.space.overlaps_any(start, bytes)) return kHostMemoryAlreadyRegistered;
  sim.space.add_host(start, bytes, true, flags);
  return kSuccess;
}

Region* find_host(Simulation& sim, const void* address) {
  Region* region = sim.space.find(reinterpret_cast<uint64_t>(address));
  return region != nullptr && region->kind == RegionKind::kHost ? region : nullptr;
}

// The mapping behind a device address, null where nothing is mapped; `start` is its address.
const Mapping* find_mapping(Region& region, uint64_t address, uint64_t* start) {
  auto it = region.mappings.upper_bound(address);
  if (it == region.mappings.begin()) return nullptr;
  --it;
  if (address - it->first >= it->second.bytes) return nullptr;
  *start = it->first;
  return &it->second;
}

template <typename T>
Result answer(void* data, T value) {
  std::memcpy(data, &value, sizeof(value));
  return kSuccess;
}

Result pointer_attribute(Simulation& sim, void* data, PointerAttribute attribute, DevicePtr address) {
  if (data == nullptr) return kInvalidValue;
  Region* region = sim.space.find(address);
  if (region == nullptr) return kInvalidValue;
  uint64_t start = region->start;
  const Mapping* mapping = nullptr;
  if (region->kind != RegionKind::kHost) {
    mapping = find_mapping(*region, address, &start);
    if (mapping == nullptr) {  // a reserved address with nothing behind it
      if (attribute == kPointerMapped) return answer<int>(data, 0);
      if (attribute == kPointerRangeStart) return answer<DevicePtr>(data, region->start);
      if (attribute == kPointerRangeSize) return answer<size_t>(data, region->bytes);
      return kInvalidValue;
    }
  }
  bool plain = region->kind == RegionKind::kPlain, host = region->kind == RegionKind::kHost;
  int device = mapping != nullptr ? mapping->physical->device : 0;
  switch (attribute) {
    case kPointerContext:
      return answer<Context>(data, plain ? reinterpret_cast<Context>(sim.devices[static_cast<size_t>(device)].context)
                                         : nullptr);
    case kPointerMemoryType:
      return answer<unsigned>(data, host ? kMemoryHost : kMemoryDevice);
    case kPointerDevicePointer:
      return answer<DevicePtr>(data, address);
    case kPointerHostPointer:
      if (!host) return kInvalidValue;
      return answer<DevicePtr>(data, address);
    case kPointerSyncMemops:
      return answer<int>(data, 0);
    case kPointerBufferId:
    case kPointerMemoryBlockId:
      return answer<unsigned long long>(data, plain || host ? region->serial : mapping->physical->address >> 12);
    case kPointerIsManaged:
      return answer<unsigned char>(data, 0);
    case kPointerDeviceOrdinal:
      return answer<int>(data, device);
    case kPointerIpcCapable:
      return answer<unsigned char>(data, plain && region->pool == 0 ? 1 : 0);
    case kPointerRangeStart:
      return answer<DevicePtr>(data, region->start);
    case kPointerRangeSize:
      return answer<size_t>(data, region->bytes);
    case kPointerMapped:
      return answer<unsigned char>(data, 1);
    case kPointerAllowedHandleTypes:
      return answer<unsigned>(data, mapping != nullptr && !plain ? mapping->physical->prop.requested_handle_types : 0);
    case kPointerRdmaCapable:
      return answer<unsigned char>(data, plain || (mapping != nullptr &&
                                                   mapping->physical->prop.flags.gpu_direct_rdma_capable)
                                             ? 1
                                             : 0);
    case kPointerAccessFlags: {
      DeviceState* current = current_device(sim);
      unsigned access =
          mapping != nullptr && current != nullptr ? mapping->access[static_cast<size_t>(current->ordinal)] : 3u;
      return answer<unsigned>(data, access);
    }
    case kPointerMempoolHandle:
      return answer<uint64_t>(data, region->pool);
    case kPointerMappingSize:
      return answer<size_t>(data, mapping != nullptr ? mapping->bytes : region->bytes);
    case kPointerMappingBase:
      return answer<DevicePtr>(data, start);
  }
  return kInvalidValue;
}

}  // namespace

SIMGPU_API Result cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
  SIMGPU_BEGIN(cuMemHostAlloc);
  return alloc_host(sim, address, bytes, flags);
}

SIMGPU_API Result cuMemAllocHost_v2(void** address, size_t bytes) {
  SIMGPU_BEGIN(cuMemAllocHost_v2);
  return alloc_host(sim, address, bytes, 0);
}

SIMGPU_API Result cuMemFreeHost(void* address) {
  SIMGPU_BEGIN(cuMemFreeHost);
  if (address == nullptr) return kSuccess;
  Region* region = find_host(sim, address);
  if (region == nullptr || region->registered || region->start != reinterpret_cast<uint64_t>(address))
    return kInvalidValue;
  for (DeviceState& device : sim.devices) sim.scheduler.wait_device(device.ordinal);
  region = find_host(sim, address);
  if (region == nullptr) return kInvalidValue;
  sim.space.remove_host(region);
  return kSuccess;
}

SIMGPU_API Result cuMemHostRegister(void* address, size_t bytes, unsigned flags) {
  SIMGPU_BEGIN(cuMemHostRegister);
  return register_host(sim, address, bytes, flags);
}

SIMGPU_API Result cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags) {
  SIMGPU_BEGIN(cuMemHostRegister_v2);
  return register_host(sim, address, bytes, flags);
}

SIMGPU_API Result cuMemHostUnregister(void* address) {
  SIMGPU_BEGIN(cuMemHostUnregister);
  Region* region = find_host(sim, address);
  if (region == nullptr || !region->registered || region->start != reinterpret_cast<uint64_t>(address)) {
    return kHostMemoryNotRegistered;
  }
  for (DeviceState& device : sim.devices) sim.scheduler.wait_device(device.ordinal);
  region = find_host(sim, address);
  if (region == nullptr) return kHostMemoryNotRegistered;
  sim.space.remove_host(region);
  return kSuccess;
}

SIMGPU_API Result cuMemHostGetDevicePointer_v2(DevicePtr* pointer, void* address, unsigned flags) {
  SIMGPU_BEGIN(cuMemHostGetDevicePointer_v2);
  if (pointer == nullptr || flags != 0 || find_host(sim, address) == nullptr) return kInvalidValue;
  *pointer = reinterpret_cast<DevicePtr>(address);
  return kSuccess;
}

SIMGPU_API Result cuMemHostGetFlags(unsigned* flags, void* address) {
  SIMGPU_BEGIN(cuMemHostGetFlags);
  Region* region = find_host(sim, address);
  if (flags == nullptr || region == nullptr) return kInvalidValue;
  *flags = region->host_flags;
  return kSuccess;
}

SIMGPU_API Result cuPointerGetAttribute(void* data, PointerAttribute attribute, DevicePtr address) {
  SIMGPU_BEGIN(cuPointerGetAttribute);
  return pointer_attribute(sim, data, attribute, address);
}

SIMGPU_API Result cuPointerGetAttributes(unsigned count, PointerAttribute* attributes, void** data, DevicePtr address) {
  SIMGPU_BEGIN(cuPointerGetAttributes);
  if (attributes == nullptr || data == nullptr) return kInvalidValue;
  for (unsigned i = 0; i < count; ++i) {
    // As NVIDIA's: an attribute the pointer has not is left at zero, and the call succeeds.
    if (pointer_attribute(sim, data[i], attributes[i], address) == kSuccess || data[i] == nullptr) continue;
    if (attributes[i] == kPointerDeviceOrdinal) {
      answer<int>(data[i], -2);
    } else if (attributes[i] == kPointerIsManaged || attributes[i] == kPointerMapped) {
      answer<unsigned char>(data[i], 0);
    } else if (attributes[i] == kPointerMemoryType) {
      answer<unsigned>(data[i], 0);
    } else {
      answer<uint64_t>(data[i], 0);
    }
  }
  return kSuccess;
}

SIMGPU_API Result cuPointerSetAttribute(const void* value, PointerAttribute attribute, DevicePtr address) {
  SIMGPU_BEGIN(cuPointerSetAttribute);
  if (value == nullptr || attribute != kPointerSyncMemops) return kInvalidValue;
  Region* region = sim.space.find(address);
  if (region == nullptr) return kInvalidValue;
  return region->kind == RegionKind::kPlain ? kSuccess : kNotSupported;
}
