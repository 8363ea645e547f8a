// What happens between a heap that cannot serve a request and torch.OutOfMemoryError. Rungs in order, stopping at the
// first success:
//   1 frees whose events are complete         no wait
//   2 empty slabs back to their space         no wait
//   3 torch's registered callbacks            called with no lock held, until one suffices
//   4 the user's functions, by priority       the same
//   5 host wait for the events of all frees   counted as a retry, once with rung 6
//   6 context-wide wait
//   7 private pools that lend             theirs is the block then (use_on_oom of torch's MemPool)
// A request for a private pool that holds no captured graph also gives back, before every rung from 2 on, what no block
// of the pool needs: it may be too short to be used where it is.
// Each rung counts the requests it served (rungs.def). The last refusals are kept, with what each rung gave, and all
// counted by their reason.
//
// Taking idle memory of other pools and streams, with waits on the GPU, is part of every try of the heap itself.
// Guarded by its own lists' lock; no lock is held while a rung runs. A request made by a reclaimer or an observer climbs
// without rungs 3 and 4 and is not observed, and so does one made while a WithoutCallbacks lives.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <vector>

#include "base/ranked_mutex.h"
#include "reclaim/refusal.h"

namespace pyalloc {

// Keeps this thread's requests from calling anybody while it lives: for callers that hold a lock of theirs.
class WithoutCallbacks {
 public:
  WithoutCallbacks();
  ~WithoutCallbacks();

 private:
  bool before_;
};

class Ladder {
 public:
  void add_reclaimer(pyalloc_reclaim_fn fn, void* context, int priority);
  // False: it was not there. No call of it begins from then on.
  bool remove_reclaimer(pyalloc_reclaim_fn fn, void* context);
  // Waits for the calls of reclaimers that other threads are in. False: some still are after that long.
  bool await_reclaimers(int64_t milliseconds);
  // In a forked child, with the lock held: nobody waits for the calls of threads that it does not have.
  void forget_other_threads();
  void add_observer(pyalloc_oom_fn fn, void* context);

  // After a try of the heap that found no memory.
  Status insist(DeviceHeap& heap, PoolId pool, bool chosen, cuda::Stream stream, bool owned, size_t bytes,
                void** pointer);
  Status prepare_lora(DeviceHeap& heap, uint64_t bytes);
  // Pools that sleep get their memory again.
  Status get_up(DeviceHeap& heap, const std::vector<PoolId>& pools, const CopyProgress& progress);

  RankedMutex& mutex() { return mutex_; }  // for a fork

  struct Report {
    int64_t counts[kReasons];
    std::vector<Refusal> last;  // oldest first
  };
  Report report();
  // Of that, the counts, and the message of the last refusal; empty when there was none.
  std::string summary(int64_t (&counts)[kReasons]);

 private:
  static constexpr size_t kKept = 16;
  struct Reclaimer {
    pyalloc_reclaim_fn fn;
    void* context;
    int priority;
    uint64_t number;
  };
  struct Observer {
    pyalloc_oom_fn fn;
    void* context;
  };

  Status climb(Asked asked, DeviceHeap& heap, PoolId pool, size_t bytes, const std::function<Status()>& attempt,
               const std::function<Status()>& borrow);
  // Torch's or the user's. True when `again()` succeeded after one of them; `freed` sums what they said, or, of those
  // that did not say, what was live before and is not after.
  bool call_reclaimers(DeviceHeap& heap, bool torch_s, size_t bytes, const std::function<bool()>& again,
                       uint64_t& freed);

  RankedMutex mutex_{Rank::kLadder};
  std::vector<Reclaimer> reclaimers_;
  uint64_t added_ = 0;  // reclaimers so far
  int calling_ = 0;     // calls of them being made
  std::condition_variable_any returned_;
  std::vector<Observer> observers_;
  std::deque<Refusal> refusals_;
  int64_t counts_[kReasons] = {};
};

}  // namespace pyalloc
