// CUDA_MEMCPY2D, as the stand-ins above the driver fill it in: addresses without a side, since the driver tells host
// from device.
#pragma once
#include <cstddef>

#include "driver/cuda_abi.h"

namespace simgpu {

struct DriverCopy2D {
  size_t source_x, source_y;
  int source_type;
  const void* source_host;
  pyalloc::cuda::DevicePtr source_device;
  void* source_array;
  size_t source_pitch;
  size_t target_x, target_y;
  int target_type;
  void* target_host;
  pyalloc::cuda::DevicePtr target_device;
  void* target_array;
  size_t target_pitch;
  size_t width, height;
};

inline constexpr int kUnifiedMemory = 4;  // CU_MEMORYTYPE_UNIFIED

inline DriverCopy2D unified_copy(const void* source, size_t source_pitch, void* target, size_t target_pitch,
                                 size_t width, size_t height) {
  DriverCopy2D copy{};
  copy.source_type = copy.target_type = kUnifiedMemory;
  copy.source_device = reinterpret_cast<pyalloc::cuda::DevicePtr>(source);
  copy.source_pitch = source_pitch;
  copy.target_device = reinterpret_cast<pyalloc::cuda::DevicePtr>(target);
  copy.target_pitch = target_pitch;
  copy.width = width;
  copy.height = height;
  return copy;
}

}  // namespace simgpu
