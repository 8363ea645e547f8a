// Entry points: stream-ordered allocation. Memory is taken at the call and given back in stream order; pools keep nothing.
#include <algorithm>

#include "simulation.h"

using namespace simgpu;

namespace {

uint64_t number(const void* handle) { return reinterpret_cast<uint64_t>(handle); }

Result alloc_async(Simulation& sim, DevicePtr* address, size_t bytes, uint64_t pool_handle, Stream stream) {
  PoolObject* pool = sim.pools.find(pool_handle);
  StreamObject* object = find_stream(sim, stream);
  if (object == nullptr) return kInvalidHandle;
  if (address == nullptr || pool == nullptr || bytes == 0) return kInvalidValue;
  if (object->capture != nullptr) return kNotSupported;  // graph memory nodes
  if (bytes > (1ull << 47)) return kOutOfMemory;
  uint64_t whole = (bytes + 511) / 512 * 512;
  std::unique_ptr<Physical> physical = sim.memory.create(pool->device, whole, whole);
  Region* region = physical != nullptr ? sim.space.add_plain(std::move(physical), whole) : nullptr;
  if (region == nullptr) return kOutOfMemory;
  region->pool = pool_handle;
  pool->used += whole;
  pool->used_high = std::max(pool->used_high, pool->used);
  *address = region->start;
  return kSuccess;
}

}  // namespace

SIMGPU_API Result cuMemAllocAsync(DevicePtr* address, size_t bytes, Stream stream) {
  SIMGPU_BEGIN(cuMemAllocAsync);
  StreamObject* object = find_stream(sim, stream);
  if (object == nullptr) return kInvalidHandle;
  return alloc_async(sim, address, bytes, sim.devices[static_cast<size_t>(object->device)].current_pool, stream);
}

SIMGPU_API Result cuMemAllocFromPoolAsync(DevicePtr* address, size_t bytes, MemoryPool pool, Stream stream) {
  SIMGPU_BEGIN(cuMemAllocFromPoolAsync);
  return alloc_async(sim, address, bytes, number(pool), stream);
}

SIMGPU_API Result cuMemFreeAsync(DevicePtr address, Stream stream) {
  SIMGPU_BEGIN(cuMemFreeAsync);
  StreamObject* object = find_stream(sim, stream);
  if (object == nullptr) return kInvalidHandle;
  if (address == 0) return kSuccess;
  Region* region = sim.space.find(address);
  if (region == nullptr || region->kind != RegionKind::kPlain || region->start != address) return kInvalidValue;
  return submit(sim, *object, kNodeEmpty, FreeWork{address});
}

SIMGPU_API Result cuMemPoolCreate(MemoryPool* pool, const PoolProps* props) {
  SIMGPU_BEGIN(cuMemPoolCreate);
  if (pool == nullptr || props == nullptr || props->type != kAllocationPinned) return kInvalidValue;
  if (props->location.type != kLocationDevice || props->handle_types != kHandleNone) return kNotSupported;
  if (find_device(sim, props->location.id) == nullptr) return kInvalidDevice;
  auto object = std::make_unique<PoolObject>();
  object->device = props->location.id;
  *pool = reinterpret_cast<MemoryPool>(sim.pools.insert(std::move(object)));
  return kSuccess;
}

SIMGPU_API Result cuMemPoolDestroy(MemoryPool pool) {
  SIMGPU_BEGIN(cuMemPoolDestroy);
  PoolObject* object = sim.pools.find(pool);
  if (object == nullptr || object->is_default) return kInvalidValue;
  for (DeviceState& device : sim.devices) {
    if (device.current_pool == number(pool)) device.current_pool = device.default_pool;
  }
  sim.pools.remove(number(pool));
  return kSuccess;
}

SIMGPU_API Result cuMemPoolTrimTo(MemoryPool pool, size_t) {
  SIMGPU_BEGIN(cuMemPoolTrimTo);
  return sim.pools.find(pool) != nullptr ? kSuccess : kInvalidValue;
}

SIMGPU_API Result cuMemPoolSetAttribute(MemoryPool pool, int attribute, void* value) {
  SIMGPU_BEGIN(cuMemPoolSetAttribute);
  PoolObject* object = sim.pools.find(pool);
  if (object == nullptr || value == nullptr) return kInvalidValue;
  switch (attribute) {
    case 1:
    case 2:
    case 3:
      object->reuse[attribute - 1] = *static_cast<int*>(value);
      return kSuccess;
    case 4:
      object->release_threshold = *static_cast<uint64_t*>(value);
      return kSuccess;
    case 6:
    case 8:  // the high marks can only be reset
      if (*static_cast<uint64_t*>(value) != 0) return kInvalidValue;
      object->used_high = object->used;
      return kSuccess;
    default:
      return kInvalidValue;
  }
}

SIMGPU_API Result cuMemPoolGetAttribute(MemoryPool pool, int attribute, void* value) {
  SIMGPU_BEGIN(cuMemPoolGetAttribute);
  PoolObject* object = sim.pools.find(pool);
  if (object == nullptr || value == nullptr) return kInvalidValue;
  switch (attribute) {
    case 1:
    case 2:
    case 3:
      *static_cast<int*>(value) = object->reuse[attribute - 1];
      return kSuccess;
    case 4:
      *static_cast<uint64_t*>(value) = object->release_threshold;
      return kSuccess;
    case 5:  // reserved: what is used, since a pool keeps nothing
    case 7:
      *static_cast<uint64_t*>(value) = object->used;
      return kSuccess;
    case 6:
    case 8:
      *static_cast<uint64_t*>(value) = object->used_high;
      return kSuccess;
    default:
      return kInvalidValue;
  }
}

SIMGPU_API Result cuMemPoolSetAccess(MemoryPool pool, const AccessDesc* access, size_t count) {
  SIMGPU_BEGIN(cuMemPoolSetAccess);
  if (sim.pools.find(pool) == nullptr || access == nullptr || count == 0) return kInvalidValue;
  for (size_t i = 0; i < count; ++i) {
    if (access[i].location.type != kLocationDevice || find_device(sim, access[i].location.id) == nullptr)
      return kInvalidDevice;
  }
  return kSuccess;  // its memory is reachable from every device already
}

SIMGPU_API Result cuMemPoolGetAccess(AccessFlags* flags, MemoryPool pool, MemLocation* location) {
  SIMGPU_BEGIN(cuMemPoolGetAccess);
  if (flags == nullptr || location == nullptr || sim.pools.find(pool) == nullptr) return kInvalidValue;
  *flags = kAccessReadWrite;
  return kSuccess;
}

SIMGPU_API Result cuDeviceGetDefaultMemPool(MemoryPool* pool, Device device) {
  SIMGPU_BEGIN(cuDeviceGetDefaultMemPool);
  DeviceState* state = find_device(sim, device);
  if (state == nullptr) return kInvalidDevice;
  if (pool == nullptr) return kInvalidValue;
  *pool = reinterpret_cast<MemoryPool>(state->default_pool);
  return kSuccess;
}

SIMGPU_API Result cuDeviceGetMemPool(MemoryPool* pool, Device device) {
  SIMGPU_BEGIN(cuDeviceGetMemPool);
  DeviceState* state = find_device(sim, device);
  if (state == nullptr) return kInvalidDevice;
  if (pool == nullptr) return kInvalidValue;
  *pool = reinterpret_cast<MemoryPool>(state->current_pool);
  return kSuccess;
}

SIMGPU_API Result cuDeviceSetMemPool(Device device, MemoryPool pool) {
  SIMGPU_BEGIN(cuDeviceSetMemPool);
  DeviceState* state = find_device(sim, device);
  PoolObject* object = sim.pools.find(pool);
  if (state == nullptr) return kInvalidDevice;
  if (object == nullptr || object->device != device) return kInvalidValue;
  state->current_pool = number(pool);
  return kSuccess;
}
