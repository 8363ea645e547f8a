// What torch's own allocator tells the rest of torch about every block: the profiler's memory events and the GPU trace
// that the CUDA sanitizer listens to. Both are off in a normal run, and then cost one thread-local and one global read.
#pragma once
#include "stats.h"

namespace pyalloc_bridge {

inline void report_usage(void* pointer, int64_t change, int device) {
  const pyalloc_device_stats stats = read_stats(static_cast<c10::DeviceIndex>(device));
  c10::reportMemoryUsageToProfiler(pointer, change,
                                   static_cast<size_t>(stats.allocated_bytes[PYALLOC_KIND_ALL].current),
                                   static_cast<size_t>(stats.reserved_bytes[PYALLOC_KIND_ALL].current),
                                   cuda_device(device));
}

inline void report_allocated(void* pointer, int device) {
  if (const auto* trace = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(trace != nullptr)) {
    (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
  }
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    pyalloc_block_view block{};
    check(core->block_at(pointer, &block, nullptr));
    report_usage(pointer, static_cast<int64_t>(block.bytes), device);
  }
}

inline void report_freed(void* pointer, const pyalloc_freed& freed) {
  if (const auto* trace = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(trace != nullptr)) {
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
  }
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    report_usage(pointer, -static_cast<int64_t>(freed.allocated), freed.device);
  }
}

inline void report_out_of_memory(size_t bytes, int device) {
  const pyalloc_device_stats stats = read_stats(static_cast<c10::DeviceIndex>(device));
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes),
                                   static_cast<size_t>(stats.allocated_bytes[PYALLOC_KIND_ALL].current),
                                   static_cast<size_t>(stats.reserved_bytes[PYALLOC_KIND_ALL].current),
                                   cuda_device(device));
}

}  // namespace pyalloc_bridge
