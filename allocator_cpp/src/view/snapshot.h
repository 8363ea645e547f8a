// The heap as a list of segments and their blocks, copied under the locks and handed out with none held.
#pragma once
#include <vector>

#include "heap/device_heap.h"

namespace pyalloc {

struct SegmentCopy {
  pyalloc_segment_view view;
  PoolId pool;
  std::vector<pyalloc_block_view> blocks;  // in address order, without gaps
};

std::vector<SegmentCopy> copy_segments(DeviceHeap& heap);

}  // namespace pyalloc
