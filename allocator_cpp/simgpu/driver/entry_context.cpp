// Entry points: the thread's current context, synchronisation of a device, peer access.
#include "simulation.h"

using namespace simgpu;

SIMGPU_API Result cuCtxGetCurrent(Context* context) {
  SIMGPU_BEGIN(cuCtxGetCurrent);
  if (context == nullptr) return kInvalidValue;
  *context = reinterpret_cast<Context>(context_stack().top());
  return kSuccess;
}

SIMGPU_API Result cuCtxSetCurrent(Context context) {
  SIMGPU_BEGIN(cuCtxSetCurrent);
  if (context != nullptr && context_device(sim, context) == nullptr) return kInvalidContext;
  ContextStack& stack = context_stack();
  stack.pop();
  if (context != nullptr) stack.push(reinterpret_cast<uint64_t>(context));
  return kSuccess;
}

SIMGPU_API Result cuCtxPushCurrent_v2(Context context) {
  SIMGPU_BEGIN(cuCtxPushCurrent_v2);
  if (context_device(sim, context) == nullptr) return kInvalidContext;
  return context_stack().push(reinterpret_cast<uint64_t>(context)) ? kSuccess : kInvalidValue;
}

SIMGPU_API Result cuCtxPopCurrent_v2(Context* context) {
  SIMGPU_BEGIN(cuCtxPopCurrent_v2);
  uint64_t top = context_stack().top();
  if (!context_stack().pop()) return kInvalidContext;
  if (context != nullptr) *context = reinterpret_cast<Context>(top);
  return kSuccess;
}

SIMGPU_API Result cuCtxGetDevice(Device* device) {
  SIMGPU_BEGIN(cuCtxGetDevice);
  if (device == nullptr) return kInvalidValue;
  DeviceState* state = current_device(sim);
  if (state == nullptr) return kInvalidContext;
  *device = state->ordinal;
  return kSuccess;
}

SIMGPU_API Result cuCtxGetFlags(unsigned* flags) {
  SIMGPU_BEGIN(cuCtxGetFlags);
  if (flags == nullptr) return kInvalidValue;
  DeviceState* state = current_device(sim);
  if (state == nullptr) return kInvalidContext;
  *flags = state->flags;
  return kSuccess;
}

SIMGPU_API Result cuCtxGetApiVersion(Context context, unsigned* version) {
  SIMGPU_BEGIN(cuCtxGetApiVersion);
  if (version == nullptr) return kInvalidValue;
  if (context != nullptr && context_device(sim, context) == nullptr) return kInvalidContext;
  *version = 3020;
  return kSuccess;
}

SIMGPU_API Result cuCtxGetId(Context context, unsigned long long* id) {
  SIMGPU_BEGIN(cuCtxGetId);
  if (id == nullptr) return kInvalidValue;
  DeviceState* state = context != nullptr ? context_device(sim, context) : current_device(sim);
  if (state == nullptr) return kInvalidContext;
  *id = static_cast<unsigned long long>(state->ordinal) + 1;
  return kSuccess;
}

SIMGPU_API Result cuCtxGetLimit(size_t* value, int limit) {
  SIMGPU_BEGIN(cuCtxGetLimit);
  constexpr int kStackSize = 0, kPrintfFifo = 1, kMallocHeap = 2;
  if (value == nullptr) return kInvalidValue;
  if (current_device(sim) == nullptr) return kInvalidContext;
  if (limit == kStackSize) return *value = 1024, kSuccess;
  if (limit == kPrintfFifo) return *value = 1 << 20, kSuccess;
  if (limit == kMallocHeap) return *value = 8 << 20, kSuccess;
  return kUnsupportedLimit;
}

SIMGPU_API Result cuCtxSetLimit(int limit, size_t value) {
  SIMGPU_BEGIN(cuCtxSetLimit);
  (void)value;  // kernels do nothing: a limit has no effect
  if (current_device(sim) == nullptr) return kInvalidContext;
  return limit >= 0 && limit <= 2 ? kSuccess : kUnsupportedLimit;
}

SIMGPU_API Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  SIMGPU_BEGIN(cuCtxGetStreamPriorityRange);
  if (current_device(sim) == nullptr) return kInvalidContext;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return kSuccess;
}

SIMGPU_API Result cuCtxSynchronize() {
  SIMGPU_BEGIN(cuCtxSynchronize);
  int device = entered.device().ordinal;
  Result result = sim.scheduler.wait_device(device);
  sim.oracle.on_host_wait_device(device);
  return result;
}

SIMGPU_API Result cuCtxEnablePeerAccess(Context peer, unsigned flags) {
  SIMGPU_BEGIN(cuCtxEnablePeerAccess);
  DeviceState* other = context_device(sim, peer);
  if (other == nullptr) return kInvalidContext;
  if (flags != 0) return kInvalidValue;
  DeviceState& device = entered.device();
  if (other == &device) return kInvalidContext;
  if (!sim.peers) return kPeerAccessUnsupported;
  uint8_t bit = static_cast<uint8_t>(1u << other->ordinal);
  if ((device.peers & bit) != 0) return kPeerAccessAlreadyEnabled;
  device.peers |= bit;
  return kSuccess;
}

SIMGPU_API Result cuCtxDisablePeerAccess(Context peer) {
  SIMGPU_BEGIN(cuCtxDisablePeerAccess);
  DeviceState* other = context_device(sim, peer);
  if (other == nullptr) return kInvalidContext;
  DeviceState& device = entered.device();
  uint8_t bit = static_cast<uint8_t>(1u << other->ordinal);
  if ((device.peers & bit) == 0) return kPeerAccessNotEnabled;
  device.peers = static_cast<uint8_t>(device.peers & ~bit);
  return kSuccess;
}
