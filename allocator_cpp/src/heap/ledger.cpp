// The device's whole account, and how far its free memory would go if it were moved together.
#include <algorithm>

#include "driver/context_scope.h"
#include "heap/device_heap.h"
#include "pyalloc/stats_page.h"

namespace pyalloc {

// The longest part of a free range that `movable` granules, and memory that lies there and cannot move, would back. What
// moves is idle granules, those that lie there included. Which streams used the memory is not looked at: a wait on the
// GPU orders them.
uint64_t DeviceHeap::largest_remapped_in(const Space& space, int64_t movable) const {
  uint64_t largest = 0;
  // A lane has no blocks over 1 MiB, and none of a large page is longer than the page.
  if (space.kind() == kSmall || space.large_pages()) return 0;
  const AddressSpace& memory = space.memory();
  const Granules& granules = backing_.granules();
  for (NodeId id = space.extents().first(); id != kNoNode; id = space.extents().range(id).next) {
    const Range& range = space.extents().range(id);
    if (range.state != RangeState::kFree) continue;
    uint64_t start = uint64_t{range.start} * kUnit, end = start + uint64_t{range.length} * kUnit;
    auto first = static_cast<uint32_t>(start / granule_bytes_);
    // Beyond the highest slot ever used all are alike: more than can be backed need not be looked at.
    uint64_t last = std::min((end - 1) / granule_bytes_,
                             std::max<uint64_t>(first, memory.highest_used()) + static_cast<uint64_t>(movable));
    int64_t needed = 0;
    auto needs = [&](uint32_t index) {
      HandleId handle = memory.slot(index).handle;
      return handle == 0 || granules.handle(handle).idle;
    };
    for (uint32_t index = first; index <= last; ++index) {
      needed += needs(index);
      if (memory.slot(index).stale) {
        first = index + 1;
        needed = 0;
        continue;
      }
      for (; needed > movable; ++first) needed -= needs(first);
      if (first > index) continue;
      uint64_t from = std::max(start, uint64_t{first} * granule_bytes_),
               to = std::min(end, (uint64_t{index} + 1) * granule_bytes_);
      largest = std::max(largest, to - from);
    }
  }
  return largest;
}

// Every pool's figures, the first `count` of the named ones in `pools` and those of private pools added up, and the
// sums over all in the ledger. With everything locked.
void DeviceHeap::add_pools(Figures figures, pyalloc_ledger& ledger, pyalloc_pool_stats* pools, int count,
                           pyalloc_pool_stats& private_pools) {
  auto figures_of = [&](PoolId id) {
    pyalloc_pool_stats pool{};
    if (figures == Figures::kWithWalks) {
      pool_figures(id, pool);
    } else {
      pool_counts(id, pool);
    }
    ledger.reserved += pool.reserved;
    ledger.requested += pool.requested;
    ledger.allocated += pool.allocated;
    ledger.used += pool.used;
    if (!is_private(id)) ledger.reserve += pool.reserve;
    ledger.asleep += pool.asleep;
    ledger.offloaded += pool.offloaded;
    ledger.set_aside += std::max<int64_t>(0, pool.reserve - pool.allocated);
    int64_t largest = pool.largest_free;
    if (pool.reserve > 0)
      largest = id == PYALLOC_POOL_LORA && figures == Figures::kWithWalks
                    ? static_cast<int64_t>(largest_free_in(open_pool(id)->coarse, true))
                    : 0;
    ledger.largest_free = std::max(ledger.largest_free, largest);
    return pool;
  };
  for (PoolId id = 0; id < static_cast<PoolId>(pool_count()); ++id) {
    pyalloc_pool_stats pool = figures_of(id);
    pool.size = sizeof pool;
    pool.version = PYALLOC_ABI_VERSION;
    if (id < count) pools[id] = pool;
  }
  int64_t largest_free = 0, largest_remapped = 0;
  for (const PrivatePool* one : with_memory_) {
    pyalloc_pool_stats pool = figures_of(one->pool->id);
    largest_free = std::max(largest_free, pool.largest_free);
    largest_remapped = std::max(largest_remapped, pool.largest_remapped);
#define PYALLOC_POOL_FIELD(name, kind, unit, help) private_pools.name += pool.name;
#include "pyalloc/pool_fields.def"
#undef PYALLOC_POOL_FIELD
  }
  private_pools.largest_free = largest_free;
  private_pools.largest_remapped = largest_remapped;
  private_pools.peak = PYALLOC_PAGE_UNKNOWN;  // those of several pools were not at one time
}

// What is of the device and not of a pool, and needs no walk and no driver call.
void DeviceHeap::device_counts(pyalloc_ledger& ledger) const {
  auto granule = static_cast<int64_t>(granule_bytes_);
  ledger.total = static_cast<int64_t>(total_bytes());
  ledger.shelf = backing_.granules().on_shelf() * granule;
  ledger.idle = backing_.granules().idle() * granule;
  ledger.limit = static_cast<int64_t>(backing_.limit_bytes());
  ledger.activation_peak = activations_.peak_used * granule;
}

int64_t DeviceHeap::margin_of(const pyalloc_ledger& ledger) {
  int64_t room = std::max<int64_t>(0, ledger.limit - ledger.reserved - ledger.shelf);
  return ledger.idle + ledger.shelf + std::min(room, ledger.free);
}

Status DeviceHeap::get_ledger(pyalloc_ledger& ledger, pyalloc_pool_stats* pools, int count,
                              pyalloc_pool_stats& private_pools) {
  Status status = kOk;
  while_all_locked([&] {
    // Under the lock that every create and release of ours takes, so that both sides are of one moment.
    ContextScope scope(context_);
    size_t free = 0, unused = 0;
    cuda::Result result = driver().memory_info(&free, &unused);
    if (result != cuda::kSuccess) {
      status = driver_failure("cuMemGetInfo", result, "asking for the device's free memory");
      return;
    }
    add_pools(Figures::kWithWalks, ledger, pools, count, private_pools);
    device_counts(ledger);
    // Should the driver count more than the total leaves room for, that much less is called free.
    ledger.free = std::min(static_cast<int64_t>(free), ledger.total - ledger.reserved - ledger.shelf);
    ledger.outside = ledger.total - ledger.reserved - ledger.shelf - ledger.free;
    ledger.margin = margin_of(ledger);
    ledger.largest_remapped = ledger.largest_free;
    each_space([&](const Space& space) {
      if (in_reserve(space)) return;
      auto moved = static_cast<int64_t>(largest_remapped_in(space, backing_.granules().idle()));
      ledger.largest_remapped = std::max(ledger.largest_remapped, moved);
    });
  });
  return status;
}

}  // namespace pyalloc
