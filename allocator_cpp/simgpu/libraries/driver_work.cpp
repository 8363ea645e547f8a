#include "libraries/driver_work.h"

#include "driver_copy.h"

extern "C" int cuMemcpy2DAsync_v2(const simgpu::DriverCopy2D* copy, pyalloc::cuda::Stream stream);

namespace simgpu::libraries {

int copy_rows(const void* source, size_t source_pitch, void* target, size_t target_pitch, size_t width, size_t height,
              Stream stream) {
  DriverCopy2D copy = unified_copy(source, source_pitch, target, target_pitch, width, height);
  return cuMemcpy2DAsync_v2(&copy, stream);
}

}  // namespace simgpu::libraries
