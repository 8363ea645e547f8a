// Device and pinned host memory, pointer attributes, memory pools, IPC handles.
#include <cstring>

#include "runtime/driver_link.h"

namespace simgpu::runtime {
namespace {

// CU_POINTER_ATTRIBUTE_*
constexpr int kPointerMemoryType = 2;
constexpr int kPointerDevicePointer = 3;
constexpr int kPointerHostPointer = 4;
constexpr int kPointerDeviceOrdinal = 9;

void* pointer_to(DevicePtr address) { return reinterpret_cast<void*>(address); }

// A driver call that gives an address, told as a pointer; *out is untouched when it fails.
template <typename Call>
Error give_address(void** out, Call call) {
  return with_context([&](const Driver& d) -> int {
    if (out == nullptr) return kInvalidValue;
    DevicePtr address = 0;
    if (int result = call(d, &address)) return result;
    *out = pointer_to(address);
    return kSuccess;
  });
}

}  // namespace

SIMGPU_RUNTIME_API Error cudaMalloc(void** out, size_t bytes) {
  return give_address(out, [&](const Driver& d, DevicePtr* address) -> int {
    return bytes == 0 ? kSuccess : d.memory_alloc(address, bytes);  // the driver refuses 0, the runtime gives null
  });
}

SIMGPU_RUNTIME_API Error cudaFree(void* pointer) {
  return with_context(
      [&](const Driver& d) -> int { return pointer == nullptr ? kSuccess : d.memory_free(address_of(pointer)); });
}

SIMGPU_RUNTIME_API Error cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return with_context([&](const Driver& d) { return d.memory_info(free_bytes, total_bytes); });
}

// --- pinned host memory ---

SIMGPU_RUNTIME_API Error cudaHostAlloc(void** out, size_t bytes, unsigned flags) {
  return with_context([&](const Driver& d) -> int {
    if (out == nullptr) return kInvalidValue;
    if (bytes == 0) {
      *out = nullptr;
      return kSuccess;
    }
    return d.host_alloc(out, bytes, flags);
  });
}

SIMGPU_RUNTIME_API Error cudaMallocHost(void** out, size_t bytes) { return cudaHostAlloc(out, bytes, 0); }

SIMGPU_RUNTIME_API Error cudaFreeHost(void* pointer) {
  return with_context([&](const Driver& d) -> int { return pointer == nullptr ? kSuccess : d.host_free(pointer); });
}

SIMGPU_RUNTIME_API Error cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return with_context([&](const Driver& d) { return d.host_register(pointer, bytes, flags); });
}

SIMGPU_RUNTIME_API Error cudaHostUnregister(void* pointer) {
  return with_context([&](const Driver& d) { return d.host_unregister(pointer); });
}

SIMGPU_RUNTIME_API Error cudaHostGetDevicePointer(void** out, void* host, unsigned flags) {
  return give_address(out,
                      [&](const Driver& d, DevicePtr* address) { return d.host_device_pointer(address, host, flags); });
}

SIMGPU_RUNTIME_API Error cudaPointerGetAttributes(PointerAttributes* attributes, const void* pointer) {
  return with_context([&](const Driver& d) -> int {
    if (attributes == nullptr) return kInvalidValue;
    std::memset(attributes, 0, sizeof *attributes);
    int type = 0;
    if (d.pointer_attribute(&type, kPointerMemoryType, address_of(pointer)) != kSuccess || type == 0) {
      attributes->type = kMemoryUnregistered;  // plain host memory is no error since CUDA 11
      attributes->device = kNoDeviceOrdinal;
      attributes->host_pointer = const_cast<void*>(pointer);
      return kSuccess;
    }
    attributes->type = static_cast<MemoryType>(type);
    int device = 0;
    if (d.pointer_attribute(&device, kPointerDeviceOrdinal, address_of(pointer)) == kSuccess)
      attributes->device = device;
    DevicePtr address = 0;
    if (d.pointer_attribute(&address, kPointerDevicePointer, address_of(pointer)) == kSuccess) {
      attributes->device_pointer = pointer_to(address);
    }
    void* host = nullptr;
    if (d.pointer_attribute(&host, kPointerHostPointer, address_of(pointer)) == kSuccess)
      attributes->host_pointer = host;
    return kSuccess;
  });
}

// --- stream-ordered allocation ---

SIMGPU_RUNTIME_API Error cudaMallocAsync(void** out, size_t bytes, Stream stream) {
  return give_address(out, [&](const Driver& d, DevicePtr* address) -> int {
    return bytes == 0 ? kSuccess : d.memory_alloc_async(address, bytes, stream);
  });
}

SIMGPU_RUNTIME_API Error cudaMallocFromPoolAsync(void** out, size_t bytes, MemPool pool, Stream stream) {
  return give_address(out, [&](const Driver& d, DevicePtr* address) -> int {
    return bytes == 0 ? kSuccess : d.memory_alloc_pool(address, bytes, pool, stream);
  });
}

SIMGPU_RUNTIME_API Error cudaFreeAsync(void* pointer, Stream stream) {
  return with_context([&](const Driver& d) -> int {
    return pointer == nullptr ? kSuccess : d.memory_free_async(address_of(pointer), stream);
  });
}

SIMGPU_RUNTIME_API Error cudaDeviceGetDefaultMemPool(MemPool* pool, int device) {
  return with_driver([&](const Driver& d) { return d.device_default_pool(pool, device); });
}

SIMGPU_RUNTIME_API Error cudaDeviceGetMemPool(MemPool* pool, int device) {
  return with_driver([&](const Driver& d) { return d.device_pool(pool, device); });
}

SIMGPU_RUNTIME_API Error cudaMemPoolGetAttribute(MemPool pool, int attribute, void* value) {
  return with_driver([&](const Driver& d) { return d.pool_get(pool, attribute, value); });
}

SIMGPU_RUNTIME_API Error cudaMemPoolSetAttribute(MemPool pool, int attribute, void* value) {
  return with_driver([&](const Driver& d) { return d.pool_set(pool, attribute, value); });
}

SIMGPU_RUNTIME_API Error cudaMemPoolSetAccess(MemPool pool, const AccessDesc* access, size_t count) {
  return with_driver([&](const Driver& d) { return d.pool_access(pool, access, count); });
}

SIMGPU_RUNTIME_API Error cudaMemPoolTrimTo(MemPool pool, size_t keep) {
  return with_driver([&](const Driver& d) { return d.pool_trim(pool, keep); });
}

// --- sharing with other processes ---

SIMGPU_RUNTIME_API Error cudaIpcGetMemHandle(IpcHandle* handle, void* pointer) {
  return with_context([&](const Driver& d) { return d.ipc_memory_get(handle, address_of(pointer)); });
}

SIMGPU_RUNTIME_API Error cudaIpcOpenMemHandle(void** out, IpcHandle handle, unsigned flags) {
  return give_address(out,
                      [&](const Driver& d, DevicePtr* address) { return d.ipc_memory_open(address, handle, flags); });
}

SIMGPU_RUNTIME_API Error cudaIpcCloseMemHandle(void* pointer) {
  return with_context([&](const Driver& d) { return d.ipc_memory_close(address_of(pointer)); });
}

SIMGPU_RUNTIME_API Error cudaIpcGetEventHandle(IpcHandle* handle, Event event) {
  return with_context([&](const Driver& d) { return d.ipc_event_get(handle, event); });
}

SIMGPU_RUNTIME_API Error cudaIpcOpenEventHandle(Event* event, IpcHandle handle) {
  return with_context([&](const Driver& d) { return d.ipc_event_open(event, handle); });
}

}  // namespace simgpu::runtime
