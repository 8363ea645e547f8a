// Who is to be told that addresses get memory or lose it. The registry owns the one list of the process; heaps read
// `wanted` with their lock held and call `tell` with none. Guarded by its own lock, which no call is made under.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/status.h"

namespace pyalloc {

class MappingObservers {
 public:
  void add(pyalloc_mapping_fn fn, void* context, uint32_t kinds);
  // Waits for calls of it that other threads are in. False: it was not there.
  bool remove(pyalloc_mapping_fn fn, void* context);
  void clear();

  bool wanted(pyalloc_mapping_kind kind) const { return (wanted_.load(std::memory_order_acquire) & kind) != 0; }
  void tell(const pyalloc_mapping_event& event);
  // Whether the calling thread is inside a function of the list.
  static bool telling();

  // In a forked child, with the lock held: nobody waits for the calls of threads that it does not have.
  void forget_other_threads();
  RankedMutex& mutex() { return mutex_; }  // for a fork

 private:
  struct Observer {
    pyalloc_mapping_fn fn;
    void* context;
    uint32_t kinds;
    int calls = 0;  // being made
  };
  void note_wanted();
  static int own_calls(const Observer& one);  // that this thread is in

  RankedMutex mutex_{Rank::kObservers};
  std::vector<std::shared_ptr<Observer>> observers_;
  std::condition_variable_any returned_;
  std::atomic<uint32_t> wanted_{0};
};

}  // namespace pyalloc
