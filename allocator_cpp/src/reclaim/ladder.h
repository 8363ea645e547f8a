// What happens between a heap that cannot serve a request and torch.OutOfMemoryError. Rungs in order, stopping at the
// first success:
//   1 frees whose events are complete         no wait
//   2 empty slabs back to their space         no wait
//   3 reclaimers (torch's registered callbacks, the user's), by priority; called with no lock held
//   4 host wait for the events of all frees   counted as a retry, once with rung 5
//   5 context-wide wait
// Taking idle memory of other streams, with waits on the GPU, is part of every try of the heap itself. Guarded by its
// own lists' lock; no lock is held while a rung runs. A request made by a reclaimer or an observer climbs without rung
// 3 and is not observed.
#pragma once
#include <vector>

#include "base/ranked_mutex.h"
#include "heap/device_heap.h"

namespace pyalloc {

class Ladder {
 public:
  void add_reclaimer(pyalloc_reclaim_fn fn, void* context, int priority);
  void add_observer(pyalloc_oom_fn fn, void* context);

  Status allocate(DeviceHeap& heap, cuda::Stream stream, bool owned, size_t bytes, void** pointer);

 private:
  struct Reclaimer {
    pyalloc_reclaim_fn fn;
    void* context;
    int priority;
  };
  struct Observer {
    pyalloc_oom_fn fn;
    void* context;
  };

  Status climb(DeviceHeap& heap, cuda::Stream stream, bool owned, size_t bytes, void** pointer);
  uint64_t call_reclaimers(DeviceHeap& heap, size_t bytes);

  RankedMutex mutex_{Rank::kRegistry};
  std::vector<Reclaimer> reclaimers_;
  std::vector<Observer> observers_;
};

}  // namespace pyalloc
