// Torch's two hooks on running out of memory: the free-memory callbacks (the CUDA IPC collector is one), which the core
// runs on its ladder, and the observers, which it tells before the error is returned; the history is told first.
//
// The core calls both with no lock held, from C: an exception may not pass. One thrown by an observer is kept for the
// thread and replaces the out-of-memory error, as it would with torch's own allocator; one thrown by a callback is
// logged and the ladder goes on. Observers are attached under a lock of their own.
#pragma once
#include <exception>
#include <mutex>

#include "history.h"
#include "stats.h"

namespace pyalloc_bridge {

// torch's OutOfMemoryObserver and, since 2.12, OomRejectionObserver: both take (device, bytes, two sizes).
using Observer = std::function<void(int64_t, size_t, size_t, size_t)>;

struct Observers {
  std::mutex mutex;
  std::vector<Observer> out_of_memory;  // (device, bytes asked, device total, device free)
  std::vector<Observer> rejection;      // (device, bytes asked, bytes allocated, device total): a limit of ours refused

  void attach(std::vector<Observer>& list, Observer observer) {
    std::lock_guard<std::mutex> lock(mutex);
    list.push_back(std::move(observer));
  }
  std::vector<Observer> copy(const std::vector<Observer>& list) {
    std::lock_guard<std::mutex> lock(mutex);
    return list;
  }
};

inline Observers observers;
inline thread_local std::exception_ptr observer_error;

inline void observe_out_of_memory(void*, int device, size_t bytes, size_t device_total, size_t device_free,
                                  int rejected_by_limit) {
  try {
    if (watches(kHistory | kTrackers)) {  // first: an observer may want to save it
      History& history = History::instance();
      cudaStream_t stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
      history.device(device).out_of_memory(bytes, device_free, stream, history.context(RecordContext::STATE));
    }
    for (const Observer& observer : observers.copy(observers.out_of_memory))
      observer(device, bytes, device_total, device_free);
    if (rejected_by_limit == 0) return;
    const auto allocated = read_stats(static_cast<c10::DeviceIndex>(device)).allocated_bytes[PYALLOC_KIND_ALL].current;
    for (const Observer& observer : observers.copy(observers.rejection)) {
      observer(device, bytes, static_cast<size_t>(allocated), device_total);
    }
  } catch (...) {
    observer_error = std::current_exception();
  }
}

// Throws what an observer threw during the call that just failed, if one did.
inline void rethrow_observer_error() {
  if (observer_error == nullptr) return;
  std::exception_ptr error = std::move(observer_error);
  observer_error = nullptr;
  std::rethrow_exception(error);
}

// Runs every registered callback; returns the bytes they freed, or 1 when they freed some that cannot be told apart
// from new use.
inline uint64_t run_free_memory_callbacks(void*, int device, size_t) {
  try {
    auto live = [&] {
      return read_stats(static_cast<c10::DeviceIndex>(device)).allocated_bytes[PYALLOC_KIND_ALL].current;
    };
    const int64_t before = live();
    bool freed = false;
    for (const std::string& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
      freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    }
    const int64_t difference = before - live();
    if (difference > 0) return static_cast<uint64_t>(difference);
    return freed ? 1 : 0;
  } catch (const std::exception& error) {
    log_line("a callback of torch's FreeCudaMemoryCallbacksRegistry failed", error.what());
    return 0;
  }
}

}  // namespace pyalloc_bridge
