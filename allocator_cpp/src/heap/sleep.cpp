// Pools that give their memory to the driver for a while and get it back at the same addresses. Nothing that blocks lie in
// changes its place, so graphs, views and pointers stay good; whoever uses a block in between faults.
//
// No lock is held while contents are copied: the pools hand out nothing then, and their handles are held where they are,
// so frees are all that can happen in them, as they can while they sleep.
#include <algorithm>

#include "driver/context_scope.h"
#include "heap/address_map.h"
#include "heap/device_heap.h"
#include "heap/pool_names.h"

namespace pyalloc {

namespace {

bool names(const std::vector<PoolId>& ids, PoolId id) {
  return std::any_of(ids.begin(), ids.end(),
                     [&](PoolId one) { return one == id || (one == kPrivatePools && is_private(id)); });
}

}  // namespace

Status DeviceHeap::refuse_asleep(const Pool& pool) {
  return fail(PYALLOC_WRONG_STATE, "the pool '%s' sleeps on device %d; pyalloc.wake() brings it back",
              pool_name(pool.id), device_);
}

std::vector<Pool*> DeviceHeap::pools_that(Rest rest) {
  std::vector<Pool*> found;
  for (Pool& pool : pools_)
    if (pool.sleep.rest == rest) found.push_back(&pool);
  return found;
}

std::vector<AddressSpace*> DeviceHeap::memories_of(const Pool& pool) {
  std::vector<AddressSpace*> found;
  each_space([&](Space& space) {
    if (&space.pool() == &pool) found.push_back(&space.memory());
  });
  return found;
}

// With everything locked.
void DeviceHeap::set_rest(Pool& pool, Rest rest) {
  pool.sleep.rest = rest;
  for (AddressSpace* memory : memories_of(pool)) {
    memory->asleep = rest == Rest::kAsleep || rest == Rest::kGettingUp;
    if (rest == Rest::kLyingDown || rest == Rest::kAwake) backing_.hold(*memory, rest == Rest::kLyingDown);
  }
  for (Lane& lane : lanes_)
    if (&lane.pool() == &pool) lane.hide(rest != Rest::kAwake);
}

Status DeviceHeap::lie_down(const std::vector<PoolId>& ids, const std::vector<PoolId>& offload, CopyProgress progress) {
  if (!caching_)
    return fail(PYALLOC_WRONG_STATE,
                "PYTORCH_NO_CUDA_MEMORY_CACHING is set: blocks come straight from the driver, and "
                "cannot sleep");
  for (PoolId id : ids) {
    Pool* pool = nullptr;
    Status status = id == kPrivatePools ? kOk : open_pool(id, pool);
    if (status != kOk) return status;
  }
  release_empty_slabs();
  bool capturing = false;
  while_all_locked([&] {
    ContextScope scope(context_);
    for (StreamIndex stream = 1; stream < clocks_.end(); ++stream) capturing |= clocks_.capturing(stream);
    for (Pool& pool : pools_) {
      bool used = !is_private(pool.id) || key_of(pool) != PoolKey{0, 0};  // a retired number may serve another pool
      if (!capturing && used && names(ids, pool.id) && pool.sleep.rest == Rest::kAwake)
        set_rest(pool, Rest::kLyingDown);
    }
  });
  if (capturing)
    return fail(PYALLOC_WRONG_STATE, "a CUDA graph is being captured on device %d; end the capture first", device_);
  Status status = synchronize_context();  // frees that waited for events are done after it as well
  if (status == kOk) {
    {
      Lock lock(mutex_);
      ContextScope scope(context_);
      backing_.undo_stale(SIZE_MAX);
    }
    undo_departures();
    std::vector<std::pair<Pool*, std::vector<DeviceRun>>> contents;
    while_all_locked([&] {
      for (Pool* pool : pools_that(Rest::kLyingDown)) {
        bool restored = names(offload, pool->id);
        contents.push_back({pool, {}});
        for (const AddressSpace* memory : memories_of(*pool)) {
          if (backing_.has_old_mappings(*memory))
            status =
                fail(PYALLOC_WRONG_STATE,
                     "memory of the pool '%s' still stands at an old address as well, of which observers are being "
                     "told or which the driver does not undo; try again",
                     pool_name(pool->id));
          if (backing_.has_exported(*memory))
            status = fail(PYALLOC_WRONG_STATE,
                          "tensors of the pool '%s' are shared with other processes, which would no longer see them; "
                          "free them first",
                          pool_name(pool->id));
          bool extends = false;
          for (uint32_t index = 0; restored && index < memory->highest_used(); ++index) {
            bool live = memory->slot(index).live > 0;
            if (live && !extends) contents.back().second.push_back({memory->address(index), 0});
            if (live) contents.back().second.back().bytes += granule_bytes_;
            extends = live;
          }
        }
      }
    });
    std::vector<HostCopy> copies(contents.size());  // others may read what the pools hold
    for (const auto& of_pool : contents) progress.total += bytes_of(of_pool.second);
    {
      ContextScope scope(context_);
      for (size_t i = 0; i < contents.size() && status == kOk; ++i)
        status = copies[i].take(contents[i].second, progress);
    }
    while_all_locked([&] {
      for (size_t i = 0; i < contents.size(); ++i) contents[i].first->sleep.copy = std::move(copies[i]);
    });
  }
  if (status != kOk) back_up();
  return status;
}

void DeviceHeap::back_up() {
  std::vector<HostCopy> dropped;
  while_all_locked([&] {
    for (Pool* pool : pools_that(Rest::kLyingDown)) {
      set_rest(*pool, Rest::kAwake);
      dropped.push_back(std::move(pool->sleep.copy));
    }
  });
  ContextScope scope(context_);
  for (HostCopy& copy : dropped) copy.drop();
}

Status DeviceHeap::fall_asleep(uint64_t& released) {
  std::vector<Backing::Stale> leaving;
  std::vector<AddressSpace*> memories;
  while_all_locked([&] {
    for (Pool* pool : pools_that(Rest::kLyingDown)) {
      std::vector<AddressSpace*> more = memories_of(*pool);
      memories.insert(memories.end(), more.begin(), more.end());
    }
    if (!news_.tells_first()) return;
    for (const Backing::Stale& one : backing_.every_mapping()) {
      bool stands = one.space->slot(one.slot).handle != 0;  // old ones are told of when they are undone
      if (stands && std::find(memories.begin(), memories.end(), one.space) != memories.end()) leaving.push_back(one);
    }
  });
  tell_news();
  tell_unmapping(leaving);
  Status status = kOk;
  while_all_locked([&] {
    ContextScope scope(context_);
    int64_t before = backing_.granules().held();
    std::vector<Sleeper> sleepers;
    status = finish_all();  // what was freed since used its memory until then
    if (status == kOk) status = backing_.lay_down(memories, sleepers);
    released += static_cast<uint64_t>(before - backing_.granules().held()) * granule_bytes_;
    if (status != kOk) {  // what was told is mapped after all
      for (const Backing::Stale& one : leaving)
        if (one.space->slot(one.slot).handle != 0)
          news_.mapped(one.space->address(one.slot), uint64_t{one.granules} * granule_bytes_);
    }
    for (Pool* pool : pools_that(Rest::kLyingDown)) {
      for (const Sleeper& one : sleepers)
        if (&find_space(one.space->base())->pool() == pool) pool->sleep.sleepers.push_back(one);
      if (status == kOk || !pool->sleep.sleepers.empty()) set_rest(*pool, Rest::kAsleep);
    }
    observe();
    self_check();
  });
  if (status != kOk) back_up();
  tell_news();
  return status;
}

// With everything locked, so that nothing is freed meanwhile.
Status DeviceHeap::finish_all() {
  cuda::Result result = driver().context_synchronize();
  if (result != cuda::kSuccess) return driver_failure("cuCtxSynchronize", result, "waiting for the device");
  count(counters_.num_sync_all_streams);
  clocks_.all_done(clocks_.position());
  return kOk;
}

uint64_t DeviceHeap::bytes_asleep(const std::vector<PoolId>& ids) {
  int64_t sum = 0;
  while_all_locked([&] {
    for (const Pool& pool : pools_)
      if (names(ids, pool.id)) sum += asleep_granules(pool);
  });
  return static_cast<uint64_t>(sum) * granule_bytes_;
}

// Granules that blocks touch with nothing behind them. With everything locked.
int64_t DeviceHeap::asleep_granules(const Pool& pool) {
  int64_t sum = 0;
  for (const AddressSpace* memory : memories_of(pool))
    for (uint32_t index = 0; memory->asleep && index < memory->highest_used(); ++index)
      sum += memory->slot(index).handle == 0 && memory->slot(index).live > 0;
  return sum;
}

Status DeviceHeap::get_up(const std::vector<PoolId>& ids, const CopyProgress& progress) {
  return settle(try_to_get_up(ids, progress), [&] { return try_to_get_up(ids, progress); });
}

Status DeviceHeap::try_to_get_up(const std::vector<PoolId>& ids, CopyProgress progress) {
  Status status = kOk;
  std::vector<std::pair<Pool*, std::vector<DeviceRun>>> contents;
  while_all_locked([&] {
    ContextScope scope(context_);
    std::vector<Sleeper> sleepers;
    std::vector<Pool*> waking;
    for (Pool* pool : pools_that(Rest::kAsleep)) {
      if (!names(ids, pool->id)) continue;
      waking.push_back(pool);
      sleepers.insert(sleepers.end(), pool->sleep.sleepers.begin(), pool->sleep.sleepers.end());
    }
    if (backing_.granules().idle() > 0) backing_.poll_streams();
    refused_by(kNoPool, false);
    status = backing_.get_up(sleepers);
    if (status != kOk) {
      refused_by(kNoPool, backing_.refused_by_limit());
      return;
    }
    for (Pool* pool : waking) {
      pool->sleep.sleepers.clear();
      set_rest(*pool, Rest::kGettingUp);
      contents.push_back({pool, pool->sleep.copy.parts(granule_bytes_, [&](uint64_t address) {
                            const AddressSpace& memory = find_space(address)->memory();
                            return memory.slot(memory.slot_of(address)).handle != 0;
                          })});
    }
    observe();
  });
  if (status != kOk) return status;
  for (const auto& of_pool : contents) progress.total += bytes_of(of_pool.second);
  {
    ContextScope scope(context_);
    for (const auto& [pool, parts] : contents)
      if (status == kOk) status = pool->sleep.copy.put_back(parts, progress);
  }
  if (status != kOk) lie_back();
  return status;
}

// Copies are kept. What the driver refuses to unmap stays, and is written again when the pool wakes; all of it where the
// device cannot be waited for.
void DeviceHeap::lie_back() {
  std::string why = last_error();
  while_all_locked([&] {
    ContextScope scope(context_);
    bool finished = finish_all() == kOk;  // a copy whose wait failed may be under way
    for (Pool* pool : pools_that(Rest::kGettingUp)) {
      if (finished) backing_.lay_down(memories_of(*pool), pool->sleep.sleepers);
      set_rest(*pool, Rest::kAsleep);
    }
    observe();
    self_check();
  });
  fail(PYALLOC_DRIVER_ERROR, "%s", why.c_str());
}

void DeviceHeap::wake_up() {
  std::vector<HostCopy> restored;
  while_all_locked([&] {
    for (Pool* pool : pools_that(Rest::kGettingUp)) {
      restored.push_back(std::move(pool->sleep.copy));
      set_rest(*pool, Rest::kAwake);
      for (const AddressSpace* memory : memories_of(*pool)) {
        for (uint32_t first = 0, end = 0; first < memory->highest_used(); first = end + 1) {
          for (end = first; end < memory->highest_used() && memory->slot(end).handle != 0;) ++end;
          if (end > first) news_.mapped(memory->address(first), uint64_t{end - first} * granule_bytes_);
        }
      }
    }
    observe();
    self_check();
  });
  tell_news();
  ContextScope scope(context_);
  for (HostCopy& copy : restored) copy.drop();
}

}  // namespace pyalloc
