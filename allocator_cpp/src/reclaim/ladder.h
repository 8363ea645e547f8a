// What happens between a heap that cannot serve a request and torch.OutOfMemoryError. Rungs in order, stopping at the
// first success:
//   1 frees whose events are complete         no wait
//   2 empty slabs back to their space         no wait
//   3 reclaimers (torch's registered callbacks, the user's), by priority, until one suffices; called with no lock held
//   4 host wait for the events of all frees   counted as a retry, once with rung 5
//   5 context-wide wait
// Each rung counts the requests it served. The last refusals are kept, and all counted by their reason.
//
// Taking idle memory of other streams, with waits on the GPU, is part of every try of the heap itself. Guarded by its
// own lists' lock; no lock is held while a rung runs. A request made by a reclaimer or an observer climbs without rung
// 3 and is not observed.
#pragma once
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "base/ranked_mutex.h"
#include "heap/device_heap.h"

namespace pyalloc {

class Ladder {
 public:
  void add_reclaimer(pyalloc_reclaim_fn fn, void* context, int priority);
  // False: it was not there.
  bool remove_reclaimer(pyalloc_reclaim_fn fn, void* context);
  void add_observer(pyalloc_oom_fn fn, void* context);

  Status allocate(DeviceHeap& heap, PoolId pool, bool chosen, cuda::Stream stream, bool owned, size_t bytes,
                  void** pointer);
  Status prepare_lora(DeviceHeap& heap, uint64_t bytes);

  // Why a request was refused.
  enum Reason { kCapacity, kLimit, kFragmentation, kReasons };
  struct Refusal {
    int64_t unix_ms;
    int device;
    PoolId pool;
    uint64_t bytes;
    Reason reason;
    std::string message;
  };
  struct Report {
    int64_t counts[kReasons];
    std::vector<Refusal> last;  // oldest first
  };
  Report report();

 private:
  static constexpr size_t kKept = 16;
  struct Reclaimer {
    pyalloc_reclaim_fn fn;
    void* context;
    int priority;
  };
  struct Observer {
    pyalloc_oom_fn fn;
    void* context;
  };

  Status climb(DeviceHeap& heap, PoolId pool, size_t bytes, const std::function<Status()>& attempt);
  // True when `again()` succeeded after one of them; `freed` sums what they said.
  bool call_reclaimers(DeviceHeap& heap, size_t bytes, const std::function<bool()>& again, uint64_t& freed);

  RankedMutex mutex_{Rank::kRegistry};
  std::vector<Reclaimer> reclaimers_;
  std::vector<Observer> observers_;
  std::deque<Refusal> refusals_;
  int64_t counts_[kReasons] = {};
};

}  // namespace pyalloc
