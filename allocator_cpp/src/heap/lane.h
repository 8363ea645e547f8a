// Small blocks of one stream: a list of slabs with free slots for each size class. Allocation takes the lowest free bit of the first
// slab; a free sets it again: no driver call, no event, no search. Memory freed here is used again here at once, in stream order.
//
// A slab that becomes empty stays as its class's spare if it is the only one with room; otherwise its extent goes back to the fine space.
// One lock a lane; the heap's lock is taken inside it for slabs. Lanes live as long as their heap.
#pragma once
#include <string>

#include "facts/block_counters.h"
#include "heap/slab.h"
#include "stream/stream_clocks.h"

namespace pyalloc {

class DeviceHeap;

class Lane {
 public:
  Lane(DeviceHeap& heap, BlockCounters& counters, cuda::Stream stream, StreamIndex index, bool owned);

  Status allocate(size_t bytes, void** pointer);                                          // bytes: 1 .. kSmallestExtent
  Status deallocate(Slab& slab, uint64_t address, pyalloc_freed* freed);
  Status mark_recorded(Slab& slab, uint64_t address);
  void finish_pending(Slab& slab, unsigned slot);  // its events are complete
  bool describe(const Slab& slab, uint64_t address, pyalloc_block_info& info);
  void release_empty_slabs();

  RankedMutex& mutex() { return mutex_; }
  StreamIndex index() const { return index_; }
  cuda::Stream stream() const { return stream_; }
  bool validate(std::string& reason);  // called with the lane's lock held

 private:
  void list(Slab& slab);
  void unlist(Slab& slab);
  bool add_slab(int size_class, Status& status);
  void slot_became_free(Slab& slab, unsigned slot);

  DeviceHeap& heap_;
  BlockCounters& block_counters_;
  const cuda::Stream stream_;
  const StreamIndex index_;
  const bool owned_;
  RankedMutex mutex_{Rank::kLane};
  BlockCounters::Lane& counters_;
  Slab* with_room_[kSizeClasses] = {};
};

}  // namespace pyalloc
