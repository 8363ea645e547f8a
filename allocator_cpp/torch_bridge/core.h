// The core as the bridge sees it: the function table it was handed, and the few words that torch and the core must
// agree on.
//
// `core` is set once, by pyalloc_bridge_install, before torch can call the allocator, and never changes: reading it
// needs no lock. Every file of the bridge includes this one; it includes the only torch header the bridge needs.
#pragma once
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <atomic>
#include <cstdio>

#include "pyalloc/pyalloc.h"

namespace pyalloc_bridge {

inline const pyalloc_api* core = nullptr;
inline std::atomic<int> device_count{0};  // torch's, from the allocator's init() on

// Turns a refused call into the RuntimeError that torch's users expect, with the core's own line.
inline void check(pyalloc_status status) { TORCH_CHECK(status == PYALLOC_OK, core->last_error()); }

// For places that must not throw; torch's own warnings may, when Python turns them into errors.
inline void log_line(const char* what, const char* why) noexcept {
  std::fprintf(stderr, "pyalloc: %s: %s\n", what, why);
}

inline c10::Device cuda_device(int device) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)}; }

// C10_CUDA_CHECK builds an object before it looks at the error; the hot path looks first.
inline c10::DeviceIndex current_device() {
  c10::DeviceIndex device = 0;
  const cudaError_t error = c10::cuda::GetDevice(&device);
  if (C10_UNLIKELY(error != cudaSuccess)) C10_CUDA_CHECK(error);
  return device;
}

struct Stream {
  cudaStream_t handle;
  uint32_t flags;  // pyalloc_stream_flags
};

// Torch numbers the streams it owns and keeps them for ever; a foreign stream's number is its handle, and it may be
// destroyed. Number 0 is the default stream, of which torch need not be asked.
inline Stream stream_of(const c10::cuda::CUDAStream& stream) {
  if (stream.id() == 0) return {nullptr, static_cast<uint32_t>(PYALLOC_STREAM_OWNED)};
  const cudaStream_t handle = stream.stream();
  const bool owned = stream.id() != static_cast<c10::StreamId>(reinterpret_cast<intptr_t>(handle));
  return {handle, owned ? static_cast<uint32_t>(PYALLOC_STREAM_OWNED) : 0u};
}

// The same for a bare handle, as torch.cuda.caching_allocator_alloc(stream=...) passes it.
inline Stream stream_of(cudaStream_t handle, c10::DeviceIndex device) {
  const Stream current = stream_of(c10::cuda::getCurrentCUDAStream(device));
  if (handle == current.handle) return current;
  return {handle, handle == nullptr ? static_cast<uint32_t>(PYALLOC_STREAM_OWNED) : 0u};
}

}  // namespace pyalloc_bridge
