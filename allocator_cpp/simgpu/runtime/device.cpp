// Devices: count, choice, properties, peers, versions, and the way to a driver entry point.
#include <cstring>

#include "runtime/driver_link.h"
#include "runtime/torch_switches.h"

namespace simgpu::runtime {

SIMGPU_RUNTIME_API Error cudaGetDeviceCount(int* count) {
  switch_cudnn_off_in_torch();
  return with_driver([&](const Driver& d) -> int { return count == nullptr ? kInvalidValue : d.device_count(count); });
}

SIMGPU_RUNTIME_API Error cudaGetDevice(int* device) { return record(current_device(device)); }
SIMGPU_RUNTIME_API Error cudaSetDevice(int device) { return record(select_device(device)); }

SIMGPU_RUNTIME_API Error cudaDeviceSynchronize() {
  return with_context([](const Driver& d) { return d.context_synchronize(); });
}

SIMGPU_RUNTIME_API Error cudaDeviceGetAttribute(int* value, int attribute, int device) {
  return with_driver([&](const Driver& d) { return d.device_attribute(value, attribute, device); });
}

SIMGPU_RUNTIME_API Error cudaGetDeviceProperties(DeviceProp* properties, int device) {
  return with_driver([&](const Driver& d) -> int {
    if (properties == nullptr) return kInvalidValue;
    DeviceProp filled;
    std::memset(&filled, 0, sizeof filled);
    if (int result = d.device_name(filled.name, sizeof filled.name, device)) return result;
    if (int result = d.device_total(&filled.total_global_mem, device)) return result;
    d.device_uuid(filled.uuid, device);
    int value = 0;
#define PROPERTY(member, attribute)                              \
  if (d.device_attribute(&value, attribute, device) == kSuccess) \
    filled.member = static_cast<decltype(+filled.member)>(value);
#include "runtime/device_properties.def"
#undef PROPERTY
    *properties = filled;
    return kSuccess;
  });
}

SIMGPU_RUNTIME_API Error cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return with_driver([&](const Driver& d) { return d.device_pci_bus_id(text, length, device); });
}

SIMGPU_RUNTIME_API Error cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return with_context([&](const Driver& d) { return d.context_priorities(least, greatest); });
}

SIMGPU_RUNTIME_API Error cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return with_driver([&](const Driver& d) { return d.device_can_access_peer(can, device, peer); });
}

SIMGPU_RUNTIME_API Error cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return with_context([&](const Driver& d) -> int {
    Context context = nullptr;
    if (Error error = primary_context(peer, &context)) return error;
    return d.context_enable_peer(context, flags);
  });
}

SIMGPU_RUNTIME_API Error cudaDeviceDisablePeerAccess(int peer) {
  return with_context([&](const Driver& d) -> int {
    Context context = nullptr;
    if (Error error = primary_context(peer, &context)) return error;
    return d.context_disable_peer(context);
  });
}

SIMGPU_RUNTIME_API Error cudaDeviceGetGraphMemAttribute(int device, int attribute, void* value) {
  return with_driver([&](const Driver& d) { return d.device_graph_memory_get(device, attribute, value); });
}

SIMGPU_RUNTIME_API Error cudaDeviceSetGraphMemAttribute(int device, int attribute, void* value) {
  return with_driver([&](const Driver& d) { return d.device_graph_memory_set(device, attribute, value); });
}

SIMGPU_RUNTIME_API Error cudaDriverGetVersion(int* version) {
  if (version == nullptr) return record(kInvalidValue);
  if (driver() == nullptr) {
    *version = 0;  // as the real runtime says it when there is no driver
    return kSuccess;
  }
  return record(driver()->version(version));
}

SIMGPU_RUNTIME_API Error cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return record(kInvalidValue);
  *version = kRuntimeVersion;
  return kSuccess;
}

SIMGPU_RUNTIME_API Error cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                                          unsigned long long flags, int* status) {
  if (driver() == nullptr) return record(kInsufficientDriver);
  return record(driver()->proc_address(symbol, function, static_cast<int>(version), flags, status));
}

// Profilers attach to the real driver's callbacks, which the simulation does not have: nothing to start or stop.
SIMGPU_RUNTIME_API Error cudaProfilerStart() { return kSuccess; }
SIMGPU_RUNTIME_API Error cudaProfilerStop() { return kSuccess; }

}  // namespace simgpu::runtime
