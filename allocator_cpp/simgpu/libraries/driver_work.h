// What the library stand-ins ask of the simulated driver: a kernel that does nothing, and a copy of rows. Both return a
// CUresult.
#pragma once
#include <cstddef>
#include <cstdint>

#include "driver/cuda_abi.h"
#include "simgpu.h"

#define SIMGPU_LIBRARY_API extern "C" __attribute__((visibility("default")))

namespace simgpu::libraries {

using pyalloc::cuda::DevicePtr;
using pyalloc::cuda::Stream;

inline int enqueue_kernel(Stream stream) { return simgpu_launch(stream, nullptr, 0, nullptr, 0, 0); }

int copy_rows(const void* source, size_t source_pitch, void* target, size_t target_pitch, size_t width, size_t height,
              Stream stream);

}  // namespace simgpu::libraries
