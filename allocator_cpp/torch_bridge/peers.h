// Memory of one device used from another: peer access, and copies that work without it.
//
// Torch asks for access once for each pair of devices and from then on takes it as given, also when that call failed.
// So what was really given is kept here, and asked for again by the next copy. Called from any thread.
#pragma once
#include <atomic>

#include "core.h"

namespace pyalloc_bridge {

class Peers {
 public:
  bool given(int device, int peer) const { return (given_[device].load(std::memory_order_acquire) >> peer & 1) != 0; }

  // Lets `device` use all memory of `peer`: ours, and that of other libraries, which torch may copy as well.
  void enable(c10::DeviceIndex device, c10::DeviceIndex peer) {
    check(core->enable_peer_access(device, peer));
    const c10::DeviceGuard guard(cuda_device(device));
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      C10_CUDA_CHECK(error);
    }
    given_[device].fetch_or(uint64_t{1} << peer, std::memory_order_release);
  }

 private:
  std::atomic<uint64_t> given_[64] = {};  // bit i: memory of device i; the core takes no more than 64 devices
};

inline Peers peers;

// The device that copies is the source's, whose stream it is. Mapped memory of another device is out of its reach
// without peer access, where only a peer copy will do.
inline cudaError_t copy_between_devices(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                        cudaStream_t stream, bool peer_access) {
  if (to_device == from_device) return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  if (peer_access && !peers.given(from_device, to_device)) {
    try {
      peers.enable(static_cast<c10::DeviceIndex>(from_device), static_cast<c10::DeviceIndex>(to_device));
    } catch (const c10::Error&) {
      peer_access = false;
    }
  }
  return peer_access ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream)
                     : cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

}  // namespace pyalloc_bridge
