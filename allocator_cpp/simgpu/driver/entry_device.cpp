// Entry points: devices and their primary contexts.
#include <cstdio>

#include "device_identity.h"
#include "simulation.h"

using namespace simgpu;

namespace {

int attribute_value(int attribute) {
  switch (attribute) {
#define ATTRIBUTE(number, value) \
  case number:                   \
    return value;
#include "device_attributes.def"
#undef ATTRIBUTE
    default:
      return 0;
  }
}

Result release_primary(Simulation& sim, Device device) {
  DeviceState* state = find_device(sim, device);
  if (state == nullptr) return kInvalidDevice;
  if (state->retained == 0) return kInvalidContext;
  if (--state->retained == 0) sim.scheduler.wait_device(device);
  return kSuccess;
}

Result reset_primary(Simulation& sim, Device device) {
  DeviceState* state = find_device(sim, device);
  if (state == nullptr) return kInvalidDevice;
  sim.scheduler.wait_device(device);
  return kSuccess;
}

Result set_primary_flags(Simulation& sim, Device device, unsigned flags) {
  DeviceState* state = find_device(sim, device);
  if (state == nullptr) return kInvalidDevice;
  state->flags = flags;
  return kSuccess;
}

Result device_uuid(Simulation& sim, Uuid* uuid, Device device) {
  if (uuid == nullptr) return kInvalidValue;
  DeviceState* state = find_device(sim, device);
  if (state == nullptr) return kInvalidDevice;
  write_uuid_bytes(state->number, uuid->bytes);
  return kSuccess;
}

}  // namespace

SIMGPU_API Result cuDeviceGet(Device* device, int ordinal) {
  SIMGPU_BEGIN(cuDeviceGet);
  if (device == nullptr) return kInvalidValue;
  if (find_device(sim, ordinal) == nullptr) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

SIMGPU_API Result cuDeviceGetCount(int* count) {
  SIMGPU_BEGIN(cuDeviceGetCount);
  if (count == nullptr) return kInvalidValue;
  *count = static_cast<int>(sim.devices.size());
  return kSuccess;
}

SIMGPU_API Result cuDeviceGetName(char* name, int length, Device device) {
  SIMGPU_BEGIN(cuDeviceGetName);
  if (name == nullptr || length < 1) return kInvalidValue;
  if (find_device(sim, device) == nullptr) return kInvalidDevice;
  std::snprintf(name, static_cast<size_t>(length), "%s", kDeviceName);
  return kSuccess;
}

SIMGPU_API Result cuDeviceGetUuid(Uuid* uuid, Device device) {
  SIMGPU_BEGIN(cuDeviceGetUuid);
  return device_uuid(sim, uuid, device);
}

SIMGPU_API Result cuDeviceGetUuid_v2(Uuid* uuid, Device device) {
  SIMGPU_BEGIN(cuDeviceGetUuid_v2);
  return device_uuid(sim, uuid, device);
}

SIMGPU_API Result cuDeviceTotalMem_v2(size_t* bytes, Device device) {
  SIMGPU_BEGIN(cuDeviceTotalMem_v2);
  if (bytes == nullptr) return kInvalidValue;
  if (find_device(sim, device) == nullptr) return kInvalidDevice;
  *bytes = sim.session.capacity(find_device(sim, device)->number);
  return kSuccess;
}

SIMGPU_API Result cuDeviceGetAttribute(int* value, DeviceAttribute attribute, Device device) {
  SIMGPU_BEGIN(cuDeviceGetAttribute);
  if (value == nullptr || attribute < 1 || attribute > 200) return kInvalidValue;
  if (find_device(sim, device) == nullptr) return kInvalidDevice;
  constexpr int kPciBusId = 33;
  *value = attribute == kPciBusId ? kFirstPciBus + find_device(sim, device)->number : attribute_value(attribute);
  if (attribute == kAttrVirtualMemoryManagement && !sim.configuration.vmm) *value = 0;
  return kSuccess;
}

SIMGPU_API Result cuDeviceGetPCIBusId(char* text, int length, Device device) {
  SIMGPU_BEGIN(cuDeviceGetPCIBusId);
  if (text == nullptr || length < 13) return kInvalidValue;
  if (find_device(sim, device) == nullptr) return kInvalidDevice;
  std::snprintf(text, static_cast<size_t>(length), "0000:%02X:00.0",
                static_cast<unsigned>(kFirstPciBus + find_device(sim, device)->number));
  return kSuccess;
}

SIMGPU_API Result cuDeviceGetByPCIBusId(Device* device, const char* text) {
  SIMGPU_BEGIN(cuDeviceGetByPCIBusId);
  unsigned domain = 0, bus = 0;
  if (device == nullptr || text == nullptr || std::sscanf(text, "%x:%x", &domain, &bus) != 2) return kInvalidValue;
  for (const DeviceState& state : sim.devices) {
    if (domain != 0 || static_cast<int>(bus) != kFirstPciBus + state.number) continue;
    *device = state.ordinal;
    return kSuccess;
  }
  return kInvalidDevice;
}

SIMGPU_API Result cuDeviceCanAccessPeer(int* can, Device device, Device peer) {
  SIMGPU_BEGIN(cuDeviceCanAccessPeer);
  if (can == nullptr) return kInvalidValue;
  if (find_device(sim, device) == nullptr || find_device(sim, peer) == nullptr) return kInvalidDevice;
  *can = device != peer && sim.peers ? 1 : 0;
  return kSuccess;
}

SIMGPU_API Result cuDeviceGetP2PAttribute(int* value, int attribute, Device source, Device target) {
  SIMGPU_BEGIN(cuDeviceGetP2PAttribute);
  constexpr int kPerformanceRank = 1, kAccessSupported = 2, kNativeAtomics = 3;
  if (value == nullptr) return kInvalidValue;
  if (find_device(sim, source) == nullptr || find_device(sim, target) == nullptr || source == target)
    return kInvalidDevice;
  if (attribute == kPerformanceRank) return *value = 0, kSuccess;
  *value = sim.peers && (attribute == kAccessSupported || attribute == kNativeAtomics) ? 1 : 0;
  return kSuccess;
}

SIMGPU_API Result cuDevicePrimaryCtxRetain(Context* context, Device device) {
  SIMGPU_BEGIN(cuDevicePrimaryCtxRetain);
  if (context == nullptr) return kInvalidValue;
  DeviceState* state = find_device(sim, device);
  if (state == nullptr) return kInvalidDevice;
  ++state->retained;
  *context = reinterpret_cast<Context>(state->context);
  return kSuccess;
}

SIMGPU_API Result cuDevicePrimaryCtxRelease(Device device) {
  SIMGPU_BEGIN(cuDevicePrimaryCtxRelease);
  return release_primary(sim, device);
}

SIMGPU_API Result cuDevicePrimaryCtxRelease_v2(Device device) {
  SIMGPU_BEGIN(cuDevicePrimaryCtxRelease_v2);
  return release_primary(sim, device);
}

SIMGPU_API Result cuDevicePrimaryCtxReset(Device device) {
  SIMGPU_BEGIN(cuDevicePrimaryCtxReset);
  return reset_primary(sim, device);
}

SIMGPU_API Result cuDevicePrimaryCtxReset_v2(Device device) {
  SIMGPU_BEGIN(cuDevicePrimaryCtxReset_v2);
  return reset_primary(sim, device);
}

SIMGPU_API Result cuDevicePrimaryCtxSetFlags(Device device, unsigned flags) {
  SIMGPU_BEGIN(cuDevicePrimaryCtxSetFlags);
  return set_primary_flags(sim, device, flags);
}

SIMGPU_API Result cuDevicePrimaryCtxSetFlags_v2(Device device, unsigned flags) {
  SIMGPU_BEGIN(cuDevicePrimaryCtxSetFlags_v2);
  return set_primary_flags(sim, device, flags);
}

SIMGPU_API Result cuDevicePrimaryCtxGetState(Device device, unsigned* flags, int* active) {
  SIMGPU_BEGIN(cuDevicePrimaryCtxGetState);
  DeviceState* state = find_device(sim, device);
  if (state == nullptr) return kInvalidDevice;
  if (flags != nullptr) *flags = state->flags;
  if (active != nullptr) *active = state->retained > 0 ? 1 : 0;
  return kSuccess;
}
