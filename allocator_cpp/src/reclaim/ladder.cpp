#include "reclaim/ladder.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/bits.h"

namespace pyalloc {
namespace {

// What a reclaimer or an observer allocates may fail too; it is not called again for that.
thread_local bool in_callback = false;
struct CallbackScope {
  CallbackScope() { in_callback = true; }
  ~CallbackScope() { in_callback = false; }
};

std::string human(uint64_t bytes) {
  char text[32];
  if (bytes >= kGiB) {
    std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / static_cast<double>(kGiB));
  } else if (bytes >= kMiB) {
    std::snprintf(text, sizeof text, "%.2f MiB", static_cast<double>(bytes) / static_cast<double>(kMiB));
  } else {
    std::snprintf(text, sizeof text, "%llu bytes", static_cast<unsigned long long>(bytes));
  }
  return text;
}

// The words torch's own error begins with: retry handlers look for them.
std::string message(DeviceHeap& heap, size_t bytes, const std::string& why, uint64_t reclaimed, uint64_t driver_free) {
  pyalloc_device_stats stats{};
  heap.get_stats(stats);
  auto reserved = static_cast<uint64_t>(stats.reserved_bytes[PYALLOC_KIND_ALL].current),
       allocated = static_cast<uint64_t>(stats.allocated_bytes[PYALLOC_KIND_ALL].current);
  uint64_t limit = heap.limit_bytes();
  std::string text = "CUDA out of memory. Tried to allocate " + human(bytes) + ". GPU " +
                     std::to_string(heap.device()) + " has a total capacity of " + human(heap.total_bytes()) +
                     " of which " + human(driver_free) + " is free. pyalloc has " + human(allocated) +
                     " allocated and " + human(reserved) + " reserved";
  if (limit < heap.total_bytes()) text += " of the " + human(limit) + " it is limited to";
  text += "; the largest free piece is " + human(heap.largest_free()) + ". Reason: " + why + ".";
  if (stats.pending_frees > 0)
    text += " " + std::to_string(stats.pending_frees) + " freed blocks wait for other streams.";
  if (reclaimed > 0) text += " Reclaimers freed " + human(reclaimed) + ".";
  if (heap.refused_by_limit()) {
    text +=
        " Raise the limit (PYALLOC_CONF limit or memory_fraction, torch.cuda.set_per_process_memory_fraction), or free "
        "memory.";
  } else if (allocated + bytes > heap.total_bytes()) {
    text += " The program needs more than the device has: use smaller batches or shorter caches.";
  } else {
    text += " Free tensors that are no longer needed, or stop other processes that use this GPU.";
  }
  return text;
}

}  // namespace

void Ladder::add_reclaimer(pyalloc_reclaim_fn fn, void* context, int priority) {
  Lock lock(mutex_);
  Reclaimer added{fn, context, priority};
  reclaimers_.insert(std::upper_bound(reclaimers_.begin(), reclaimers_.end(), added,
                                      [](const Reclaimer& a, const Reclaimer& b) { return a.priority > b.priority; }),
                     added);
}

void Ladder::add_observer(pyalloc_oom_fn fn, void* context) {
  Lock lock(mutex_);
  observers_.push_back({fn, context});
}

uint64_t Ladder::call_reclaimers(DeviceHeap& heap, size_t bytes) {
  if (in_callback) return 0;
  CallbackScope scope;
  std::vector<Reclaimer> all;
  {
    Lock lock(mutex_);
    all = reclaimers_;
  }
  uint64_t freed = 0;
  for (const Reclaimer& one : all) freed += one.fn(one.context, heap.device(), bytes);
  return freed;
}

Status Ladder::allocate(DeviceHeap& heap, cuda::Stream stream, bool owned, size_t bytes, void** pointer) {
  Status status = heap.allocate(stream, owned, bytes, pointer);
  return status == PYALLOC_OUT_OF_MEMORY ? climb(heap, stream, owned, bytes, pointer) : status;
}

Status Ladder::climb(DeviceHeap& heap, cuda::Stream stream, bool owned, size_t bytes, void** pointer) {
  std::string why = last_error();
  Status status = PYALLOC_OUT_OF_MEMORY;
  auto again = [&] {
    status = heap.allocate(stream, owned, bytes, pointer);
    return status != PYALLOC_OUT_OF_MEMORY;
  };
  if (heap.poll_pending() && again()) return status;
  heap.release_empty_slabs();
  if (again()) return status;
  uint64_t reclaimed = call_reclaimers(heap, bytes);
  if (reclaimed > 0 && again()) return status;
  count(heap.counters().num_alloc_retries);
  if (heap.wait_for_events() && again()) return status;
  if (heap.synchronize_context() == kOk && again()) return status;

  why = status == PYALLOC_OUT_OF_MEMORY ? why : last_error();
  count(heap.counters().num_ooms);
  bool by_limit = heap.refused_by_limit();
  if (by_limit) count(heap.counters().num_oom_rejections);
  uint64_t driver_free = heap.driver_free_bytes();
  std::string text = message(heap, bytes, why, reclaimed, driver_free);
  if (!in_callback) {
    CallbackScope scope;
    std::vector<Observer> observers;
    {
      Lock lock(mutex_);
      observers = observers_;
    }
    for (const Observer& one : observers)
      one.fn(one.context, heap.device(), bytes, heap.total_bytes(), driver_free, by_limit ? 1 : 0);
  }
  return fail(PYALLOC_OUT_OF_MEMORY, "%s", text.c_str());
}

}  // namespace pyalloc
