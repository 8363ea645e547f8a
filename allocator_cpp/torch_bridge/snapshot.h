// The live heap as torch's SegmentInfo: segments in address order, each with its blocks without gaps; and the settings
// that a snapshot carries.
#pragma once
#include <exception>

#include "private_pools.h"

namespace pyalloc_bridge {

using c10::cuda::CUDACachingAllocator::SnapshotInfo;

// What the core's walk fills. An exception may not cross the core's C frames: it is kept and thrown after the walk.
struct SnapshotWalk {
  std::vector<c10::CachingDeviceAllocator::SegmentInfo>& segments;
  Pool only;  // of this pool alone; (0, 0): of all
  bool skipped = false;
  std::exception_ptr error;
};

inline void add_segment(void* context, const pyalloc_segment_view* view) {
  auto* walk = static_cast<SnapshotWalk*>(context);
  const Pool pool{view->key.first, view->key.second};
  walk->skipped = walk->only != Pool{0, 0} && walk->only != pool;
  if (walk->error || walk->skipped) return;
  try {
    c10::CachingDeviceAllocator::SegmentInfo& segment = walk->segments.emplace_back();
    segment.owner_private_pool_id = pool;
    segment.device = static_cast<c10::DeviceIndex>(view->device);
    segment.address = reinterpret_cast<size_t>(view->address);
    segment.total_size = view->bytes;
    segment.requested_size = view->requested;
    segment.allocated_size = view->allocated;
    segment.active_size = view->active;
    segment.stream = view->stream;
    segment.is_large = view->large != 0;
    segment.is_expandable = true;  // mapped granule by granule: it may grow and shrink where it is
  } catch (...) {
    walk->error = std::current_exception();
  }
}

inline void add_block(void* context, const pyalloc_block_view* view) {
  auto* walk = static_cast<SnapshotWalk*>(context);
  if (walk->error || walk->skipped) return;
  try {
    c10::CachingDeviceAllocator::BlockInfo& block = walk->segments.back().blocks.emplace_back();
    block.size = view->bytes;
    block.requested_size = view->requested;
    block.allocated = view->state == PYALLOC_BLOCK_LIVE;
    block.active = view->state != PYALLOC_BLOCK_FREE;
  } catch (...) {
    walk->error = std::current_exception();
  }
}

// The settings torch itself goes on using (pinned memory, the raw text) as it parsed them; the rest says what pyalloc
// does. A template because torch 2.11 lacks the last two, on both sides.
template <class Settings, class Common = c10::CachingAllocator::AcceleratorAllocatorConfig>
void fill_settings(Settings& settings) {
  using Cuda = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
  settings.garbage_collection_threshold = Common::garbage_collection_threshold();
  settings.max_split_size = Common::max_split_size();
  settings.pinned_num_register_threads = Cuda::pinned_num_register_threads();
  settings.expandable_segments = false;
  settings.release_lock_on_malloc = Cuda::release_lock_on_cudamalloc();
  settings.pinned_use_host_register = Cuda::pinned_use_cuda_host_register();
  settings.graph_capture_record_stream_reuse = false;
  settings.last_allocator_settings = Common::last_allocator_settings();
  settings.roundup_power2_divisions = Common::roundup_power2_divisions();
  if constexpr (requires { settings.max_round_threshold; })
    settings.max_round_threshold = Common::pinned_max_round_threshold();
  if constexpr (requires { settings.max_cached_size; }) settings.max_cached_size = Common::pinned_max_cached_size();
}

// `only`: of this pool alone; (0, 0): of all.
inline void append_segments(int device, Pool only, std::vector<c10::CachingDeviceAllocator::SegmentInfo>& segments) {
  SnapshotWalk walk{segments, only, false, nullptr};
  check(core->snapshot(device, &walk, &add_segment, &add_block));
  if (walk.error) std::rethrow_exception(walk.error);
}

}  // namespace pyalloc_bridge
