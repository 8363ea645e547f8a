#include "heap/private_pools.h"

#include <algorithm>

#include "driver/context_scope.h"
#include "heap/device_heap.h"
#include "stream/stream_set.h"

namespace pyalloc {
namespace {

constexpr size_t kMostRemembered = 256;  // retired pools whose figures are remembered

}  // namespace

// Torch's own words: its tests look for them.
Status DeviceHeap::no_such_pool(const PoolKey& key) const {
  return fail(PYALLOC_INVALID_ARGUMENT, "Could not find pool of id (%llu, %llu) on device %d: it is not in use there",
              static_cast<unsigned long long>(key.first), static_cast<unsigned long long>(key.second), device_);
}

// With everything locked, as the next four.
void DeviceHeap::keep(Pool& pool) {
  if (guard_ && !pool.captured) return;  // guarded blocks take fresh addresses each time; old memory must go
  each_space_of(pool, [&](Space& space) {
    if (!space.memory().kept) backing_.keep(space.memory());
  });
}

void DeviceHeap::let_go(Pool& pool) {
  Uses replays;
  if (pool.captured) {
    StreamIndex unfollowed = clocks_.unfollowed();
    replays = {stream_bit(unfollowed), clocks_.free_position(unfollowed)};
  }
  each_space_of(pool, [&](Space& space) {
    if (!space.memory().kept) return;
    Uses uses = replays;
    // Frees in a lane that emptied no granule were not reported one by one.
    if (Lane* lane = space.lane()) uses.add({stream_bit(lane->index()), clocks_.free_position(lane->index())});
    backing_.let_go(space.memory(), uses);
  });
}

uint64_t DeviceHeap::give_back(Pool& pool) {
  bool kept = pool.coarse.memory().kept;
  if (kept && pool.captured) return 0;
  if (kept) let_go(pool);
  backing_.poll_streams();
  uint64_t given = 0;
  each_space_of(pool, [&](Space& space) { given += backing_.give_back(space.memory()); });
  if (kept) keep(pool);
  observe();
  return given;
}

// Pools without uses and memory give up their numbers.
void DeviceHeap::retire_pools() {
  size_t remembered = 0;
  for (auto one = private_pools_.begin(); one != private_pools_.end();) {
    PrivatePool& known = one->second;
    if (known.uses == 0 && known.pool != nullptr && known.pool->mapped.slots == 0 &&
        known.pool->sleep.rest == Rest::kAwake) {
      known.pool->captured = false;
      each_space_of(*known.pool, [](Space& space) { space.memory().replayed = false; });
      retired_pools_.push_back(known.pool->id);
      known.pool = nullptr;
      with_memory_.erase(std::find(with_memory_.begin(), with_memory_.end(), &known));
    }
    bool gone = known.uses == 0 && known.pool == nullptr && ++remembered > kMostRemembered;
    one = gone ? private_pools_.erase(one) : std::next(one);
  }
}

Status DeviceHeap::take_pool_number(Pool*& pool) {
  if (!retired_pools_.empty()) {
    pool = open_pool(retired_pools_.back());
    retired_pools_.pop_back();
    return kOk;
  }
  if (next_private_pool_ == kPoolIds)
    return fail(PYALLOC_INVALID_ARGUMENT, "%d private pools are in use on device %d, or hold memory; delete some",
                int{kMostPrivatePools}, device_);
  Status status = make_pool(next_private_pool_, pool);
  if (status == kOk) ++next_private_pool_;
  return status;
}

Status DeviceHeap::retain_pool(const PoolKey& key, PoolId& id) {
  Status status = kOk;
  while_all_locked([&] {
    retire_pools();
    PrivatePool& one = private_pools_[key];
    if (one.pool == nullptr && caching_) {
      ContextScope scope(context_);
      Pool* pool = nullptr;
      status = take_pool_number(pool);
      if (status != kOk) return;
      one.pool = pool;
      with_memory_.push_back(&one);
    }
    backing_.captures = true;
    if (one.uses == 0) one.life = ++pool_lives_;
    if (one.uses++ == 0 && one.pool != nullptr) keep(*one.pool);
    id = one.pool != nullptr ? one.pool->id : kGeneralPool;
  });
  return status;
}

Status DeviceHeap::release_pool(const PoolKey& key) {
  Status status = kOk;
  while_all_locked([&] {
    auto found = private_pools_.find(key);
    if (found == private_pools_.end() || found->second.uses == 0) {
      status = no_such_pool(key);
      return;
    }
    PrivatePool& one = found->second;
    if (--one.uses > 0) return;
    one.lends = false;
    if (one.pool == nullptr) return;
    ContextScope scope(context_);
    let_go(*one.pool);
  });
  return status;
}

PrivatePool* DeviceHeap::find_private(const PoolKey& key) {
  auto found = private_pools_.find(key);
  return found != private_pools_.end() && found->second.uses > 0 ? &found->second : nullptr;
}

int DeviceHeap::pool_uses(const PoolKey& key) {
  Lock lock(mutex_);
  PrivatePool* one = find_private(key);
  return one != nullptr ? one->uses : 0;
}

Status DeviceHeap::lend_pool(const PoolKey& key, bool lends) {
  Lock lock(mutex_);
  PrivatePool* one = find_private(key);
  if (one == nullptr) return no_such_pool(key);
  one->lends = lends;
  return kOk;
}

std::vector<PoolId> DeviceHeap::lenders() {
  Lock lock(mutex_);
  std::vector<PoolId> all;
  for (const auto& [key, one] : private_pools_)
    if (one.lends && one.pool != nullptr && !one.pool->captured) all.push_back(one.pool->id);
  return all;
}

void DeviceHeap::mark_captured(Pool& pool) {
  pool.captured = true;
  each_space_of(pool, [](Space& space) { space.memory().replayed = true; });
  keep(pool);
}

void DeviceHeap::note_capture(PoolId id, cuda::Stream stream) {
  Pool* pool = open_pool(id);
  if (pool == nullptr || !is_private(id) || pool->captured.load(std::memory_order_relaxed)) return;
  cuda::CaptureStatus status = cuda::kCaptureNone;
  if (driver().stream_is_capturing(stream, &status) != cuda::kSuccess || status == cuda::kCaptureNone) return;
  while_all_locked([&] { mark_captured(*pool); });
}

Status DeviceHeap::note_stream(cuda::Stream stream, bool owned) {
  Lock lock(mutex_);
  if (clocks_.index_of(stream, owned) != 0) return kOk;
  return fail(PYALLOC_INVALID_ARGUMENT, "more than 65,535 streams on device %d", device_);
}

uint64_t DeviceHeap::give_back_private(PoolId id) {
  Pool* pool = is_private(id) ? open_pool(id) : nullptr;
  if (pool == nullptr) return 0;
  release_empty_slabs();
  uint64_t given = 0;
  while_all_locked([&] {
    ContextScope scope(context_);
    given = give_back(*pool);
  });
  return given;
}

uint64_t DeviceHeap::trim_pool(const PoolKey& key) {
  PoolId id = kNoPool;
  {
    Lock lock(mutex_);
    auto found = private_pools_.find(key);
    if (found == private_pools_.end() || found->second.pool == nullptr) return 0;
    id = found->second.pool->id;
  }
  finish_everything();
  return give_back_private(id);
}

// Called with the heap's lock held, by observe().
void DeviceHeap::observe_private() {
  for (PrivatePool* one : with_memory_) {
    int64_t all = one->pool->mapped.slots, large = one->pool->coarse.memory().mapped_slots();
    const int64_t slots[] = {all - large, large, all};  // by Kind, then both
    for (int kind = 0; kind <= kKinds; ++kind)
      one->reserved[kind].move_to(slots[kind] * static_cast<int64_t>(granule_bytes_));
  }
}

void DeviceHeap::reset_private(bool peaks) {
  for (auto one = private_pools_.begin(); one != private_pools_.end();) {
    bool gone = one->second.pool == nullptr && one->second.uses == 0;
    for (History& history : one->second.reserved) {
      if (peaks) history.peak = history.current;
      if (!peaks) history.allocated = history.freed = 0;
    }
    one = gone ? private_pools_.erase(one) : std::next(one);
  }
}

std::vector<std::pair<PoolKey, PrivatePool>> DeviceHeap::private_pools() {
  Lock lock(mutex_);
  return {private_pools_.begin(), private_pools_.end()};
}

PoolKey DeviceHeap::find_key(const Pool& pool) {
  if (!is_private(pool.id)) return {0, 0};
  Lock lock(mutex_);
  return key_of(pool);
}

// With the heap's lock held, or everything locked.
PoolKey DeviceHeap::key_of(const Pool& pool) const {
  for (const auto& [key, one] : private_pools_)
    if (one.pool == &pool) return key;
  return {0, 0};
}

}  // namespace pyalloc
