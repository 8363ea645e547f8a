#include "reclaim/maintenance.h"

#include <pthread.h>

#include <algorithm>

#include "base/clock.h"

namespace pyalloc {
namespace {

constexpr auto kBusyPause = std::chrono::milliseconds(2);
constexpr auto kIdlePause = std::chrono::milliseconds(50);

}  // namespace

bool maintain(DeviceHeap& heap, int64_t decay_ms, bool decay_due) {
  heap.poll_pending();
  size_t stale_left = heap.undo_stale(kMaintenanceBatch);
  uint64_t given = decay_due && decay_ms > 0 ? heap.decay(now_ms() - decay_ms, kMaintenanceBatch) : 0;
  return stale_left > 0 || given > 0;
}

void Maintenance::start(Heaps heaps, std::function<void()> publish, int64_t decay_ms) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (thread_ != nullptr || stopping_) return;
  heaps_ = std::move(heaps);
  publish_ = std::move(publish);
  decay_ms_ = decay_ms;
  thread_ = std::make_unique<std::thread>([this] { run(); });
  pthread_setname_np(thread_->native_handle(), "pyalloc");
}

void Maintenance::stop() {
  std::unique_ptr<std::thread> ending;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    ending = std::move(thread_);
  }
  wake_.notify_all();
  if (ending != nullptr) ending->join();
}

void Maintenance::run() {
  int64_t decay_checked = now_ms(), aged = decay_checked;
  std::unique_lock<std::mutex> lock(mutex_);
  bool busy = false;
  while (!stopping_) {
    wake_.wait_for(lock, busy ? kBusyPause : kIdlePause);
    if (stopping_) break;
    lock.unlock();
    int64_t now = now_ms();
    bool decay_due = busy || now - decay_checked >= std::max<int64_t>(decay_ms_ / 8, 50);
    if (decay_due) decay_checked = now;
    bool age = decay_ms_ > 0 && now - aged >= decay_ms_;
    if (age) aged = now;
    busy = false;
    for (DeviceHeap* heap : heaps_()) {
      if (age) heap->age_high_water();
      busy |= maintain(*heap, decay_ms_, decay_due);
    }
    publish_();
    lock.lock();
  }
}

}  // namespace pyalloc
