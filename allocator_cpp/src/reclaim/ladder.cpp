#include "reclaim/ladder.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/bits.h"
#include "base/clock.h"
#include "heap/pool_names.h"

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

// What every pool with live blocks holds; nothing where the general pool is the only one.
std::string pools_in_use(DeviceHeap& heap) {
  std::string text;
  bool purpose = false;
  for (PoolId id = 0; id < pool_count(); ++id) {
    pyalloc_pool_stats pool{};
    heap.get_pool_stats(id, pool);
    if (pool.blocks == 0 && pool.reserve == 0) continue;
    purpose |= id != kGeneralPool;
    text += (text.empty() ? " Pools: " : "; ") + std::string(pool_name(id)) + " " +
            human(static_cast<uint64_t>(pool.requested)) + " requested, " + human(static_cast<uint64_t>(pool.used)) +
            " used";
    if (pool.limit != 0) text += " of " + human(static_cast<uint64_t>(pool.limit));
  }
  return purpose ? text + "." : "";
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
  text += pools_in_use(heap);
  if (PoolId pool = heap.refused_by_pool(); pool != kNoPool) {
    std::string name = pool_name(pool);
    text += " Raise the limit of the pool '" + name + "' (" +
            (pool <= PYALLOC_POOL_LORA ? "PYALLOC_CONF " + name + "_limit, or " : std::string()) +
            "pyalloc.create_pool), or free memory in it.";
  } else if (why == DeviceHeap::kReserveFull) {
    text +=
        " Raise lora_reserve, call pyalloc.lora_prepare before the load, or let it overflow (lora_overflow:general).";
  } else if (heap.refused_by_limit()) {
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

bool Ladder::remove_reclaimer(pyalloc_reclaim_fn fn, void* context) {
  Lock lock(mutex_);
  auto found = std::find_if(reclaimers_.begin(), reclaimers_.end(),
                            [&](const Reclaimer& one) { return one.fn == fn && one.context == context; });
  if (found == reclaimers_.end()) return false;
  reclaimers_.erase(found);
  return true;
}

Ladder::Report Ladder::report() {
  Lock lock(mutex_);
  Report report{};
  std::copy(std::begin(counts_), std::end(counts_), report.counts);
  report.last.assign(refusals_.begin(), refusals_.end());
  return report;
}

bool Ladder::call_reclaimers(DeviceHeap& heap, size_t bytes, const std::function<bool()>& again, uint64_t& freed) {
  if (in_callback) return false;
  std::vector<Reclaimer> all;
  {
    Lock lock(mutex_);
    all = reclaimers_;
  }
  for (const Reclaimer& one : all) {
    uint64_t gave = 0;
    {
      CallbackScope scope;
      gave = one.fn(one.context, heap.device(), bytes);
    }
    if (gave != PYALLOC_FREED_UNKNOWN) freed += gave;
    if (gave > 0 && again()) return true;
  }
  return false;
}

Status Ladder::allocate(DeviceHeap& heap, PoolId pool, bool chosen, cuda::Stream stream, bool owned, size_t bytes,
                        void** pointer) {
  Status status = heap.allocate(pool, chosen, stream, owned, bytes, pointer);
  if (status != PYALLOC_OUT_OF_MEMORY) return status;
  return climb(heap, pool, bytes, [&] { return heap.allocate(pool, chosen, stream, owned, bytes, pointer); });
}

Status Ladder::prepare_lora(DeviceHeap& heap, uint64_t bytes) {
  Status status = heap.prepare_lora(bytes);
  if (status != PYALLOC_OUT_OF_MEMORY) return status;
  return climb(heap, PYALLOC_POOL_LORA, bytes, [&] { return heap.prepare_lora(bytes); });
}

Status Ladder::climb(DeviceHeap& heap, PoolId pool, size_t bytes, const std::function<Status()>& attempt) {
  std::string why = last_error();
  Status status = PYALLOC_OUT_OF_MEMORY;
  auto again = [&] {
    heap.release_empty_slabs();  // a rung may have emptied one
    status = attempt();
    return status != PYALLOC_OUT_OF_MEMORY;
  };
  Counters& counters = heap.counters();
  auto served_by = [&](std::atomic<int64_t>& rung) {
    if (status == kOk) count(rung);
    return status;
  };
  if (heap.poll_pending()) {
    status = attempt();
    if (status != PYALLOC_OUT_OF_MEMORY) return served_by(counters.rung_pending);
  }
  if (again()) return served_by(counters.rung_slabs);
  uint64_t reclaimed = 0;
  if (call_reclaimers(heap, bytes, again, reclaimed)) return served_by(counters.rung_reclaimers);
  count(counters.num_alloc_retries);
  if (heap.wait_for_events() && again()) return served_by(counters.rung_events);
  if (heap.synchronize_context() == kOk && again()) return served_by(counters.rung_context);

  why = status == PYALLOC_OUT_OF_MEMORY ? why : last_error();
  count(heap.counters().num_ooms);
  bool by_limit = heap.refused_by_limit();
  if (by_limit) count(heap.counters().num_oom_rejections);
  uint64_t driver_free = heap.driver_free_bytes();
  std::string text = message(heap, bytes, why, reclaimed, driver_free);
  pyalloc_device_stats stats{};
  heap.get_stats(stats);
  pyalloc_pool_stats lora{};
  heap.get_pool_stats(PYALLOC_POOL_LORA, lora);
  // Memory there is, beside the reserve, but in pieces that cannot go where it is needed.
  int64_t idle = stats.reserved_bytes[PYALLOC_KIND_ALL].current - stats.active_bytes[PYALLOC_KIND_ALL].current -
                 std::max<int64_t>(0, lora.reserve - lora.allocated);
  bool enough = driver_free + static_cast<uint64_t>(std::max<int64_t>(0, idle)) >= bytes;
  Reason reason = by_limit || why == DeviceHeap::kReserveFull ? kLimit : enough ? kFragmentation : kCapacity;
  {
    Lock lock(mutex_);
    ++counts_[reason];
    if (refusals_.size() == kKept) refusals_.pop_front();
    refusals_.push_back({unix_ms(), heap.device(), pool, bytes, reason, text});
  }
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
