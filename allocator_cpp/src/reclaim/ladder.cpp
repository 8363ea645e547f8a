#include "reclaim/ladder.h"

#include <algorithm>
#include <string>

#include "base/clock.h"
#include "facts/event_log.h"

namespace pyalloc {
namespace {

// What a reclaimer or an observer allocates may fail too; it is not called again for that.
thread_local bool callbacks_off = false;

thread_local int inside = 0;  // calls of reclaimers that this thread is in

uint64_t decrease(int64_t before, int64_t now) { return static_cast<uint64_t>(std::max<int64_t>(0, before - now)); }

}  // namespace

WithoutCallbacks::WithoutCallbacks() : before_(callbacks_off) { callbacks_off = true; }
WithoutCallbacks::~WithoutCallbacks() { callbacks_off = before_; }

void Ladder::add_reclaimer(pyalloc_reclaim_fn fn, void* context, int priority) {
  Lock lock(mutex_);
  Reclaimer added{fn, context, priority, ++added_};
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

bool Ladder::await_reclaimers(int64_t milliseconds) {
  Lock lock(mutex_);
  return returned_.wait_for(lock, std::chrono::milliseconds(milliseconds), [this] { return calling_ == inside; });
}

void Ladder::forget_other_threads() { calling_ = inside; }

Ladder::Report Ladder::report() {
  Lock lock(mutex_);
  Report report{};
  std::copy(std::begin(counts_), std::end(counts_), report.counts);
  report.last.assign(refusals_.begin(), refusals_.end());
  return report;
}

std::string Ladder::summary(int64_t (&counts)[kReasons]) {
  Lock lock(mutex_);
  std::copy(std::begin(counts_), std::end(counts_), counts);
  return refusals_.empty() ? "" : refusals_.back().message;
}

bool Ladder::call_reclaimers(DeviceHeap& heap, bool torch_s, size_t bytes, const std::function<bool()>& again,
                             uint64_t& freed) {
  if (callbacks_off) return false;
  Lock lock(mutex_);
  const std::vector<Reclaimer> all = reclaimers_;
  for (const Reclaimer& one : all) {
    if ((one.priority == PYALLOC_TORCH_CALLBACKS) != torch_s) continue;
    bool still = std::any_of(reclaimers_.begin(), reclaimers_.end(),
                             [&](const Reclaimer& other) { return other.number == one.number; });
    if (!still) continue;  // removed meanwhile
    ++calling_;
    ++inside;
    lock.unlock();
    int64_t before = heap.active_bytes();
    uint64_t gave = 0;
    {
      WithoutCallbacks scope;
      gave = one.fn(one.context, heap.device(), bytes);
    }
    lock.lock();
    --inside;
    --calling_;
    returned_.notify_all();
    lock.unlock();
    freed += gave != PYALLOC_FREED_UNKNOWN ? gave : decrease(before, heap.active_bytes());
    if (gave > 0 && again()) return true;
    lock.lock();
  }
  return false;
}

Status Ladder::insist(DeviceHeap& heap, PoolId pool, bool chosen, cuda::Stream stream, bool owned, size_t bytes,
                      void** pointer) {
  auto attempt = [&] { return heap.allocate(pool, chosen, stream, owned, bytes, pointer); };
  auto borrow = [&] {
    for (PoolId lender : is_private(pool) ? std::vector<PoolId>{} : heap.lenders()) {
      heap.note_capture(lender, stream);
      Status status = heap.allocate(lender, true, stream, owned, bytes, pointer);
      if (status == PYALLOC_WRONG_STATE) continue;  // it sleeps
      // What it has free may be in pieces.
      if (status == PYALLOC_OUT_OF_MEMORY && heap.give_back_private(lender) > 0) status = attempt();
      if (status != PYALLOC_OUT_OF_MEMORY) return status;
    }
    return PYALLOC_OUT_OF_MEMORY;
  };
  return climb(Asked::kBlock, heap, pool, bytes, attempt, borrow);
}

Status Ladder::prepare_lora(DeviceHeap& heap, uint64_t bytes) {
  Status status = heap.prepare_lora(bytes);
  if (status != PYALLOC_OUT_OF_MEMORY) return status;
  return climb(
      Asked::kReserve, heap, PYALLOC_POOL_LORA, bytes, [&] { return heap.prepare_lora(bytes); },
      [] { return PYALLOC_OUT_OF_MEMORY; });
}

Status Ladder::get_up(DeviceHeap& heap, const std::vector<PoolId>& pools, const CopyProgress& progress) {
  Status status = heap.get_up(pools, progress);
  if (status != PYALLOC_OUT_OF_MEMORY) return status;
  auto sleeps = [&](PoolId pool) { return heap.bytes_asleep({pool}) > 0; };
  auto first = std::find_if(pools.begin(), pools.end(), sleeps);
  PoolId named = first != pools.end() ? *first : pools.front();
  return climb(
      Asked::kWake, heap, named == kPrivatePools ? kMostPools : named, heap.bytes_asleep(pools),
      [&] { return heap.get_up(pools, progress); }, [] { return PYALLOC_OUT_OF_MEMORY; });
}

Status Ladder::climb(Asked asked, DeviceHeap& heap, PoolId pool, size_t bytes, const std::function<Status()>& attempt,
                     const std::function<Status()>& borrow) {
  std::string why = last_error();
  Status status = PYALLOC_OUT_OF_MEMORY;
  auto again = [&] {
    heap.release_empty_slabs();  // a rung may have emptied one
    heap.give_back_private(pool);
    status = attempt();
    return status != PYALLOC_OUT_OF_MEMORY;
  };
  Refusal refusal;
  refusal.asked = asked;
  refusal.device = heap.device();
  refusal.pool = pool;
  refusal.bytes = bytes;
  Counters& counters = heap.counters();
  auto served_by = [&](std::atomic<int64_t>& rung) {
    if (status == kOk) count(rung);
    return status;
  };
  int64_t active = heap.active_bytes();
  // What a rung that waits gave is what is neither live nor waiting any more.
  auto gave = [&](Rung rung) {
    int64_t now = heap.active_bytes();
    refusal.freed[rung] = decrease(active, now);
    active = now;
  };
  bool polled = heap.poll_pending();
  gave(kRung_pending);
  if (polled) {
    status = attempt();
    if (status != PYALLOC_OUT_OF_MEMORY) return served_by(counters.rung_pending);
  }
  int64_t idle = heap.idle_bytes();
  heap.release_empty_slabs();
  refusal.freed[kRung_slabs] = decrease(heap.idle_bytes(), idle);
  if (again()) return served_by(counters.rung_slabs);
  if (call_reclaimers(heap, true, bytes, again, refusal.freed[kRung_callbacks]))
    return served_by(counters.rung_callbacks);
  if (call_reclaimers(heap, false, bytes, again, refusal.freed[kRung_reclaimers]))
    return served_by(counters.rung_reclaimers);
  count(counters.num_alloc_retries);
  active = heap.active_bytes();
  bool waited = heap.wait_for_events();
  gave(kRung_events);
  auto note = [&](EventKind kind) { note_event(kind, heap.device(), pool, static_cast<int64_t>(bytes)); };
  auto stalled = [&](std::atomic<int64_t>& rung) {
    note(EventKind::stall);
    return served_by(rung);
  };
  if (waited && again()) return stalled(counters.rung_events);
  bool synchronized = heap.synchronize_context() == kOk;
  gave(kRung_context);
  if (synchronized && again()) return stalled(counters.rung_context);
  if (Status borrowed = borrow(); borrowed != PYALLOC_OUT_OF_MEMORY) {
    status = borrowed;
    return served_by(counters.rung_lenders);
  }

  why = status == PYALLOC_OUT_OF_MEMORY ? why : last_error();
  count(counters.num_ooms);
  note(EventKind::oom);
  bool by_limit = heap.refused_by_limit();
  if (by_limit) count(counters.num_oom_rejections);
  refusal.unix_ms = unix_ms();
  explain(heap, why, refusal);
  {
    Lock lock(mutex_);
    ++counts_[refusal.reason];
    if (refusals_.size() == kKept) refusals_.pop_front();
    refusals_.push_back(refusal);
  }
  if (!callbacks_off) {
    WithoutCallbacks scope;
    std::vector<Observer> observers;
    {
      Lock lock(mutex_);
      observers = observers_;
    }
    for (const Observer& one : observers)
      one.fn(one.context, heap.device(), bytes, heap.total_bytes(), refusal.device_free, by_limit ? 1 : 0);
  }
  return fail(PYALLOC_OUT_OF_MEMORY, "%s", refusal.message.c_str());
}

}  // namespace pyalloc
