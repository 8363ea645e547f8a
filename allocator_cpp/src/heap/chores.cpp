// What the ladder, empty_cache and the maintenance thread ask of a heap (device_heap.h, "rungs and chores").
#include <algorithm>

#include "driver/context_scope.h"
#include "heap/device_heap.h"

namespace pyalloc {

void DeviceHeap::release_empty_slabs() {
  std::vector<Lane*> lanes;
  {
    Lock making(lanes_mutex_);
    for (Lane& lane : lanes_) lanes.push_back(&lane);
  }
  for (Lane* lane : lanes) lane->release_empty_slabs();
}

// Holds the heap's lock while it waits: whoever asks is about to report out-of-memory, and everyone else would be next.
bool DeviceHeap::wait_for_events() {
  bool moved = false;
  {
    Lock lock(mutex_);
    ContextScope scope(context_);
    for (StreamIndex stream = 1; stream < clocks_.end(); ++stream) {
      uint64_t before = clocks_.done(stream);
      clocks_.synchronize(stream);
      moved |= clocks_.done(stream) > before;
    }
    backing_.undo_stale(SIZE_MAX);
  }
  undo_departures();
  return poll_pending() || moved;
}

Status DeviceHeap::synchronize_context() {
  uint64_t position = 0;
  {
    Lock lock(mutex_);
    if (backing_.captures && clocks_.any_capturing())
      return fail(PYALLOC_WRONG_STATE, "a CUDA graph is being captured, and a wait for the device would break it");
    position = clocks_.position();
  }
  {
    ContextScope scope(context_);
    cuda::Result result = driver().context_synchronize();
    count(counters_.num_sync_all_streams);
    if (result != cuda::kSuccess) return driver_failure("cuCtxSynchronize", result, "waiting for the device");
  }
  {
    Lock lock(mutex_);
    clocks_.all_done(position);
  }
  poll_pending();
  return kOk;
}

void DeviceHeap::finish_everything() {
  if (!caching_) return;
  wait_for_events();  // blocks recorded on other streams become free
  release_empty_slabs();
  bool proven = true;
  {
    Lock lock(mutex_);
    ContextScope scope(context_);
    for (StreamIndex stream = 1; stream < clocks_.end(); ++stream)
      proven &= clocks_.synchronize(stream) || clocks_.owned(stream);
  }
  if (!proven) synchronize_context();  // a stream that is gone: only the whole context can prove its work finished
}

uint64_t DeviceHeap::trim() {
  if (!caching_) return 0;
  finish_everything();
  return give_back(EventKind::trim, [this] {
    imports_.undo_left_over();
    backing_.undo_stale(SIZE_MAX);
    backing_.give_back(INT64_MAX, SIZE_MAX);
    self_check();
  });
}

// The bytes that the driver got by it, and by the departures it left.
template <class Body>
uint64_t DeviceHeap::give_back(EventKind kind, Body&& body) {
  int64_t before = 0, after = 0;
  {
    Lock lock(mutex_);
    ContextScope scope(context_);
    before = backing_.granules().held();
    body();
    after = backing_.granules().held();
    observe();
  }
  if (undo_departures()) {
    Lock lock(mutex_);
    after = backing_.granules().held();
  }
  int64_t given = std::max<int64_t>(0, before - after) * static_cast<int64_t>(granule_bytes_);
  if (given > 0) note_event(kind, device_, kNoEventPool, given);
  return static_cast<uint64_t>(given);
}

size_t DeviceHeap::undo_stale(size_t most) {
  size_t left = 0;
  {
    Lock lock(mutex_);
    bool left_over = imports_.has_left_over();
    if (!backing_.has_stale() && !left_over) return 0;
    ContextScope scope(context_);
    if (left_over) imports_.undo_left_over();
    left = backing_.undo_stale(most);
    observe();
  }
  undo_departures();
  return left;
}

uint64_t DeviceHeap::decay(int64_t idle_before_ms, size_t most) {
  {
    Lock lock(mutex_);
    if (!caching_ || (backing_.granules().idle() == 0 && backing_.granules().on_shelf() == 0)) return 0;
  }
  return give_back(EventKind::decay, [&] {
    backing_.poll_streams();
    backing_.give_back(idle_before_ms, most);
  });
}

bool DeviceHeap::has_chores() {
  Lock lock(mutex_);
  return backing_.has_stale();
}

Status DeviceHeap::set_fraction(double fraction) {
  if (!(fraction >= 0.0 && fraction <= 1.0))
    return fail(PYALLOC_INVALID_ARGUMENT, "memory fraction %g; expected 0 to 1", fraction);
  Lock lock(mutex_);
  backing_.policy().fraction = fraction;
  fraction_.store(fraction, std::memory_order_relaxed);
  return kOk;
}

void DeviceHeap::set_limit(uint64_t bytes) {
  Lock lock(mutex_);
  backing_.policy().limit_bytes = bytes;
}

int64_t DeviceHeap::active_bytes() { return block_counters_.totals().active_bytes[kKinds].current; }

int64_t DeviceHeap::idle_bytes() {
  Lock lock(mutex_);
  return backing_.granules().idle() * static_cast<int64_t>(granule_bytes_);
}

Status DeviceHeap::enable_peer(int peer) {
  Lock lock(mutex_);
  ContextScope scope(context_);
  Status status = imports_.add_access({{cuda::kLocationDevice, peer}, cuda::kAccessReadWrite});
  return status == kOk ? backing_.add_peer(peer) : status;
}

}  // namespace pyalloc
