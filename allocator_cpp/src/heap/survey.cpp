// What the stats page shows of a heap: figures that are at hand, and those that take a walk.
#include <algorithm>

#include "driver/context_scope.h"
#include "heap/device_heap.h"

namespace pyalloc {
namespace {

constexpr size_t kTriesForFree = 3;

}  // namespace

void DeviceHeap::get_figures(pyalloc_ledger& ledger, std::vector<pyalloc_pool_stats>& pools,
                             pyalloc_pool_stats& private_pools) {
  while_all_locked([&] {
    add_pools(Figures::kAtHand, ledger, pools.data(), static_cast<int>(pools.size()), private_pools);
    device_counts(ledger);
  });
}

// A driver call, so made with no lock held, and again where memory was taken or given back meanwhile.
Status DeviceHeap::outside_bytes(int64_t& bytes) {
  auto held = [&] {
    Lock lock(mutex_);
    return caching_ ? backing_.granules().held() * static_cast<int64_t>(granule_bytes_)
                    : static_cast<int64_t>(direct_bytes_);
  };
  for (size_t tries = 0; tries < kTriesForFree; ++tries) {
    int64_t before = held();
    size_t free = 0, unused = 0;
    {
      ContextScope scope(context_);
      cuda::Result result = driver().memory_info(&free, &unused);
      if (result != cuda::kSuccess)
        return driver_failure("cuMemGetInfo", result, "asking for the device's free memory");
    }
    bytes = std::max<int64_t>(0, static_cast<int64_t>(total_bytes()) - static_cast<int64_t>(free) - before);
    if (held() == before) break;
  }
  return kOk;
}

// One space at a time under its locks, so that nobody waits for more than one space's walk. What the figures say of
// several spaces is of moments apart.
template <class Walk>
void DeviceHeap::each_space_alone(Walk&& walk) {
  struct Place {
    const Space* space;
    Lane* lane;
  };
  std::vector<Place> places;
  while_all_locked([&] { each_space([&](const Space& space) { places.push_back({&space, space.lane()}); }); });
  for (const Place& place : places) {
    if (place.lane != nullptr) place.lane->mutex().lock();
    mutex_.lock();
    walk(*place.space);
    mutex_.unlock();
    if (place.lane != nullptr) place.lane->mutex().unlock();
  }
}

// The mapped slots of a space, in order, and how much of each blocks take.
void DeviceHeap::add_slots(const Space& space, PoolSurvey& pool) const {
  const AddressSpace& memory = space.memory();
  std::vector<uint32_t> live(memory.highest_used());
  auto add = [&](uint64_t from, uint64_t to) {
    for (uint64_t at = from; at < to;) {
      uint64_t next = std::min(to, (at / granule_bytes_ + 1) * granule_bytes_);
      if (size_t slot = at / granule_bytes_; slot < live.size()) live[slot] += static_cast<uint32_t>(next - at);
      at = next;
    }
  };
  for (NodeId id = space.extents().first(); id != kNoNode; id = space.extents().range(id).next) {
    const Range& range = space.extents().range(id);
    if (range.state == RangeState::kFree) continue;
    uint64_t start = uint64_t{range.start} * kUnit, bytes = uint64_t{range.length} * kUnit;
    if (range.state == RangeState::kSlab) {  // blocks spread evenly over it are near enough
      const Slab* slab = space.slab_at(space.address(range));
      bytes = uint64_t{slab->slots} * slab->slot_bytes * unsigned(slab->slots - slab->free_slots) / slab->slots;
    } else if (space.coarse()) {
      bytes = std::min<uint64_t>(bytes, block_bytes(range));
    }
    add(start, start + bytes);
  }
  bool before = false;
  for (uint32_t index = 0; index < memory.highest_used(); ++index) {
    HandleId handle = memory.slot(index).handle;
    if (handle != 0) {
      bool idle = backing_.granules().handle(handle).idle;
      pool.slots.push_back({live[index], idle});
      pool.idle += idle;
      pool.segments += !before;
    }
    before = handle != 0;
  }
}

void DeviceHeap::survey(DeviceSurvey& found) {
  found.granule_bytes = granule_bytes_;
  int64_t idle = 0;
  auto pool_of = [&](const Space& space) -> PoolSurvey& {
    return is_private(space.pool().id) ? found.private_pools : found.pools[space.pool().id];
  };
  each_space_alone([&](const Space& space) {
    PoolSurvey& pool = pool_of(space);
    int64_t idle_before = pool.idle;
    add_slots(space, pool);
    idle += pool.idle - idle_before;
    auto largest = static_cast<int64_t>(largest_free_in(space));
    pool.largest_free = std::max(pool.largest_free, largest);
    pool.largest_remapped = pool.largest_free;  // in a reserve nothing moves
    if (in_reserve(space)) largest = static_cast<int64_t>(largest_free_in(space, true));
    found.largest_free = std::max(found.largest_free, largest);
  });
  found.largest_remapped = found.largest_free;
  each_space_alone([&](const Space& space) {
    if (in_reserve(space)) return;
    PoolSurvey& pool = pool_of(space);
    auto within = static_cast<int64_t>(largest_remapped_in(space, pool.idle));
    auto across = static_cast<int64_t>(largest_remapped_in(space, idle));
    pool.largest_remapped = std::max(pool.largest_remapped, within);
    found.largest_remapped = std::max(found.largest_remapped, across);
  });
}

}  // namespace pyalloc
