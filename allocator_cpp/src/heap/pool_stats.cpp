// What one pool of a heap uses, and its limit.
#include <algorithm>

#include "heap/device_heap.h"

namespace pyalloc {

void DeviceHeap::set_limit(Pool& pool, uint64_t bytes) const {
  pool.mapped.limit = bytes == 0 ? INT64_MAX : static_cast<int64_t>(bytes / granule_bytes_);
}

Status DeviceHeap::set_pool_limit(PoolId id, uint64_t bytes) {
  release_empty_slabs();  // they count as used
  Lock lock(mutex_);
  if (Pool* pool = open_pool(id); pool != nullptr) {
    uint64_t used = static_cast<uint64_t>(pool->mapped.used) * granule_bytes_;
    if (bytes != 0 && bytes < used)
      return fail(PYALLOC_INVALID_ARGUMENT,
                  "a limit of %llu bytes for a pool that uses %llu on device %d; expected no less, or 0 for none: free "
                  "blocks of the pool first",
                  static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(used), device_);
    set_limit(*pool, bytes);
  }
  pool_limits_[id] = bytes;
  return kOk;
}

void DeviceHeap::reset_pool_peak(PoolId id) {
  Lock lock(mutex_);
  Pool* pool = open_pool(id);
  if (pool == nullptr) return;
  pool->mapped.peak_used = pool->mapped.used;
  if (pool->mapped.group != nullptr) pool->mapped.group->peak_used = pool->mapped.group->used;
}

void DeviceHeap::get_pool_stats(PoolId id, pyalloc_pool_stats& stats) {
  while_all_locked([&] { pool_figures(id, stats); });
}

// With everything locked: what needs no walk. Null: the pool was never used here.
Pool* DeviceHeap::pool_counts(PoolId id, pyalloc_pool_stats& stats) {
  if (!is_private(id)) stats.limit = static_cast<int64_t>(pool_limits_[id]);
  if (!caching_ && id == kGeneralPool) {  // every block straight from the driver
    stats.blocks = static_cast<int64_t>(direct_.size());
    stats.requested = stats.allocated = stats.used = stats.reserved = static_cast<int64_t>(direct_bytes_);
  }
  Pool* pool = open_pool(id);
  if (pool == nullptr) return nullptr;
  Usage live = pool->live_coarse;
  stats.requested_total = pool->handed_out_coarse;
  each_space([&](const Space& space) {
    if (&space.pool() != pool || space.lane() == nullptr) return;
    live += space.lane()->live();
    stats.requested_total += space.lane()->handed_out().requested;
  });
  auto granule = static_cast<int64_t>(granule_bytes_);
  stats.blocks = live.blocks;
  stats.requested = live.requested;
  stats.allocated = live.bytes;
  stats.asleep = asleep_granules(*pool) * granule;
  stats.offloaded = static_cast<int64_t>(pool->sleep.copy.bytes());
  stats.used = pool->mapped.used * granule - stats.asleep;
  stats.reserved = pool->mapped.slots * granule;
  stats.peak = pool->mapped.peak_used * granule;
  if (id == PYALLOC_POOL_LORA && !pool->coarse.memory().asleep)
    stats.reserve = static_cast<int64_t>(lora_reserve_.bytes + lora_prepared_.bytes);
  if (pool->coarse.memory().kept) stats.reserve = stats.reserved;
  return pool;
}

// With everything locked.
void DeviceHeap::pool_figures(PoolId id, pyalloc_pool_stats& stats) {
  Pool* pool = pool_counts(id, stats);
  if (pool == nullptr) return;
  int64_t idle = 0;
  uint64_t largest = 0;
  each_space([&](const Space& space) {
    if (&space.pool() != pool) return;
    largest = std::max(largest, largest_free_in(space));
    const AddressSpace& memory = space.memory();
    for (uint32_t index = 0; index < memory.highest_used(); ++index)
      idle += memory.slot(index).handle != 0 && backing_.granules().handle(memory.slot(index).handle).idle;
  });
  stats.largest_free = static_cast<int64_t>(largest);
  // In a reserve nothing moves.
  each_space([&](const Space& space) {
    if (&space.pool() == pool && stats.reserve == 0) largest = std::max(largest, largest_remapped_in(space, idle));
  });
  stats.largest_remapped = static_cast<int64_t>(largest);
}

}  // namespace pyalloc
