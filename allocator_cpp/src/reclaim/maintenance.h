// The one thread of the process that works off the allocation path: it undoes old mappings once their last use is
// finished, gives memory that has been idle for the decay time back to the driver, and lets the stats page be written.
// Started at the first allocation, stopped at exit, not re-created after fork. It takes a heap's lock for a bounded
// batch at a time, and runs no user code but the observers of what it unmaps.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "heap/device_heap.h"

namespace pyalloc {

// One heap's share of a round: at most this many mappings undone and granules given back, so that nobody waits long for
// the lock.
constexpr size_t kMaintenanceBatch = 64;
// Returns true when there is more to do soon.
bool maintain(DeviceHeap& heap, int64_t decay_ms, bool decay_due);

class Maintenance {
 public:
  // `heaps` gives the heaps to look after; called without a lock of ours.
  using Heaps = std::function<std::vector<DeviceHeap*>()>;
  // `publish` is called every round, without a lock of ours; it knows itself whether anything is due.
  void start(Heaps heaps, std::function<void()> publish, int64_t decay_ms);
  void stop();  // never called in a forked child, which does not have the thread

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::unique_ptr<std::thread> thread_;
  Heaps heaps_;
  std::function<void()> publish_;
  int64_t decay_ms_ = 0;
};

}  // namespace pyalloc
