// For tests of the lora pool: a device that others have filled, and the driver calls that a load made.
#pragma once
#include <vector>

#include "driver/cuda_abi.h"
#include "pools.h"

namespace test {

inline int64_t memory_calls() {
  int64_t sum = 0;
  for (const char* name : {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"})
    sum += simgpu_calls(name);
  return sum;
}

// All other memory of the device, in blocks that shrink.
inline std::vector<void*> fill_device() {
  std::vector<void*> blocks;
  for (size_t bytes = kGiB; bytes >= kGranule; bytes /= 2)
    while (void* block = allocate(bytes)) blocks.push_back(block);
  return blocks;
}

}  // namespace test
