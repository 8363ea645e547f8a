// The process's one global: configuration, device heaps, the ladder, the maintenance thread, and both sides of sharing
// memory with other processes. Made on first use and
// never destroyed, since frees may arrive while the process goes down.
//
// fork: once a heap is open the child drops everything without a driver call, as CUDA contexts do not survive either;
// there every call but a free is refused. exit: from the atexit handler on no driver call is made; frees are ignored
// and the operating system reclaims.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "api/config.h"
#include "base/cold.h"
#include "base/ranked_mutex.h"
#include "heap/device_heap.h"
#include "ipc/exporter.h"
#include "ipc/importer.h"
#include "reclaim/ladder.h"
#include "reclaim/maintenance.h"
#include "reclaim/sleep_cycle.h"
#include "view/stats_page.h"

namespace pyalloc {

constexpr int kMostDevices = 64;

class Registry {
 public:
  static Registry& instance() {
    static Registry* one = new Registry;
    return *one;
  }

  Status configure(const char* text, const char* origin);
  std::string config_json();

  Status init(int device_count);
  int device_count() const { return device_count_.load(std::memory_order_acquire); }

  // The heap of `device`, opened on first use; null with the reason in last_error() and `status`.
  static DeviceHeap* heap(int device, Status& status) {
    DeviceHeap* open = open_heap(device);
    if (__builtin_expect(open == nullptr || dead(), 0)) return open_or_refuse(device, status);
    status = kOk;
    return open;
  }
  // A try of the heap; where it finds no memory, the ladder.
  static Status allocate(DeviceHeap& heap, PoolId pool, bool chosen, cuda::Stream stream, bool owned, size_t bytes,
                         void** pointer) {
    Status status = heap.allocate(pool, chosen, stream, owned, bytes, pointer);
    return __builtin_expect(status != PYALLOC_OUT_OF_MEMORY, 1)
               ? status
               : insist(heap, pool, chosen, stream, owned, bytes, pointer);
  }
  // The heap if it is open, else null.
  static DeviceHeap* open_heap(int device) {
    return device >= 0 && device < kMostDevices ? heaps_[device].load(std::memory_order_acquire) : nullptr;
  }
  std::vector<DeviceHeap*> open_heaps() const;

  Ladder& ladder() { return *ladder_; }
  MappingObservers& observers() { return observers_; }
  SleepCycle& sleep_cycle() { return sleep_cycle_; }
  StatsPage& page() { return page_; }
  Status publish_page();
  Exporter& exporter() { return *exporter_; }
  Importer& importer() { return *importer_; }
  // Why nothing may be done now (forked child, exiting), or kOk.
  Status usable() const;
  static bool dead() { return state_.load(std::memory_order_relaxed) != State::kAlive; }

  Status set_fraction(int device, double fraction);
  Status get_fraction(int device, double& fraction);
  Status set_limit(int device, uint64_t bytes);
  Status set_pool_limit(int device, PoolId pool, uint64_t bytes);
  uint64_t pool_limit(int device, PoolId pool);
  Status check_device(int device) const;
  int64_t decay_ms() const { return config_.options().decay; }

  // From now on each device may use the memory of all that it can reach, of heaps that open later as well: for
  // registrations that torch tells nothing of peer access.
  void share_with_peers() {
    if (!shares_with_peers_.load(std::memory_order_relaxed)) start_sharing();
  }

  // Closes every heap and returns all memory; blocks still live become invalid. init() may follow.
  Status shutdown();

 private:
  enum class State { kAlive, kForked, kExiting };

  Registry();
  void configure_from_environment();
  uint64_t pool_limit_locked(int device, PoolId pool) const;
  PYALLOC_COLD static DeviceHeap* open_or_refuse(int device, Status& status);
  PYALLOC_COLD static Status insist(DeviceHeap& heap, PoolId pool, bool chosen, cuda::Stream stream, bool owned,
                                    size_t bytes, void** pointer);
  Status open(int device);
  void start_sharing();
  void lock_for_fork(bool lock);
  static void after_fork_in_child();
  static void at_exit();
  int page_devices() const { return device_count() > 0 ? device_count() : kMostDevices; }

  RankedMutex mutex_{Rank::kRegistry};
  Config config_;
  bool configured_ = false;
  // What every call looks at, where it is found without asking for the instance.
  inline static std::atomic<DeviceHeap*> heaps_[kMostDevices] = {};
  inline static std::atomic<State> state_{State::kAlive};

  double fractions_[kMostDevices];  // set before the heap was open; below 0: not set
  uint64_t limits_[kMostDevices] = {};
  static constexpr uint64_t kNotSet = UINT64_MAX;
  uint64_t pool_limits_[kMostDevices][kMostPools];  // kNotSet: as configured
  std::atomic<int> device_count_{0};
  MappingObservers observers_;
  std::atomic<bool> shares_with_peers_{false};  // set under mutex_
  SleepCycle sleep_cycle_;
  std::unique_ptr<Ladder> ladder_ = std::make_unique<Ladder>();
  StatsPage page_;
  std::unique_ptr<Maintenance> maintenance_ = std::make_unique<Maintenance>();
  std::unique_ptr<Exporter> exporter_ = std::make_unique<Exporter>();
  std::unique_ptr<Importer> importer_ = std::make_unique<Importer>();
};

}  // namespace pyalloc
