// A heap's statistics: histories kept as the heap changes, and the struct torch's figures come from.
#include <algorithm>

#include "base/bits.h"
#include "heap/device_heap.h"

namespace pyalloc {
namespace {

pyalloc_stat stat_of(const History& history) {
  return {history.current, history.peak, history.allocated, history.freed};
}

}  // namespace

// Called with the heap's lock held after every change of spaces or granules.
void DeviceHeap::observe() {
  if (!caching_) {
    reserved_[kKinds].move_to(static_cast<int64_t>(direct_bytes_));
    return;
  }
  int64_t segments = 0, reserved = 0;
  for (Kind kind : {kSmall, kLarge}) {
    int64_t bytes = mapped_[kind].slots * static_cast<int64_t>(granule_bytes_);
    segments_[kind].move_to(mapped_[kind].segments);
    reserved_[kind].move_to(bytes);
    segments += mapped_[kind].segments;
    reserved += bytes;
  }
  segments_[kKinds].move_to(segments);
  reserved_[kKinds].move_to(reserved);
  observe_private();
}

void DeviceHeap::get_stats(pyalloc_device_stats& stats) {
  BlockCounters::Totals totals = block_counters_.totals();
  int64_t free_ranges[kKinds] = {};
  size_t metadata = sizeof *this;
  with_everything_locked([&](const Space& space) {
    const Extents& extents = space.extents();
    // The fresh end of a space is no split block.
    free_ranges[space.kind()] +=
        extents.free_ranges() - (extents.range(extents.last()).state == RangeState::kFree ? 1 : 0);
    metadata += metadata_bytes(space);
  });
  Lock lock(mutex_);
  observe();
  auto set = [](pyalloc_stat(&to)[PYALLOC_KINDS], const History& small, const History& large, const History& all) {
    to[PYALLOC_KIND_SMALL] = stat_of(small);
    to[PYALLOC_KIND_LARGE] = stat_of(large);
    to[PYALLOC_KIND_ALL] = stat_of(all);
  };
  auto set_totals = [&](pyalloc_stat(&to)[PYALLOC_KINDS], const History(&from)[kKinds + 1]) {
    set(to, from[kSmall], from[kLarge], from[kKinds]);
  };
  set_totals(stats.allocation, totals.blocks);
  set_totals(stats.active, totals.active_blocks);
  set_totals(stats.allocated_bytes, totals.bytes);
  set_totals(stats.active_bytes, totals.active_bytes);
  set_totals(stats.requested_bytes, totals.requested);
  for (int kind = 0; kind <= kKinds; ++kind) {
    free_ranges_[kind].move_to(kind == kKinds ? free_ranges[kSmall] + free_ranges[kLarge] : free_ranges[kind]);
    inactive_bytes_[kind].move_to(std::max<int64_t>(0, reserved_[kind].current - totals.active_bytes[kind].current));
  }
  set_totals(stats.segment, segments_);
  set_totals(stats.reserved_bytes, reserved_);
  set_totals(stats.inactive_split, free_ranges_);
  set_totals(stats.inactive_split_bytes, inactive_bytes_);

  const Granules& granules = backing_.granules();
  auto granule = static_cast<int64_t>(granule_bytes_);
  counters_.shelf_bytes = granules.on_shelf() * granule;
  counters_.idle_bytes = granules.idle() * granule;
  counters_.stale_mappings = static_cast<int64_t>(backing_.stale_mappings());
  counters_.exported_bytes = granules.exported() * granule;
  counters_.imported_bytes = imports_.bytes();
  counters_.pending_frees = static_cast<int64_t>(pending_.size()) + finishing_;
  counters_.metadata_bytes =
      static_cast<int64_t>(metadata + backing_.granules().metadata_bytes() + (recorded_.size() + direct_.size()) * 64 +
                           pending_.capacity() * sizeof(PendingFree));
#define PYALLOC_STAT_GROUP(name, unit, help)
#define PYALLOC_STAT_VALUE(name, kind, unit, help) stats.name = counters_.name.load(std::memory_order_relaxed);
#include "pyalloc/stat_fields.def"
#undef PYALLOC_STAT_GROUP
#undef PYALLOC_STAT_VALUE
}

// Books in use, not the address space set aside for them.
size_t DeviceHeap::metadata_bytes(const Space& space) const {
  const AddressSpace& memory = space.memory();
  uint64_t cells = uint64_t{memory.highest_used()} * granule_bytes_ / space.cell_bytes();
  size_t lane = space.lane() != nullptr ? space.lane()->metadata_bytes() : 0;
  return lane + space.starts_bytes() + space.extents().metadata_bytes() + memory.highest_used() * sizeof(Slot) +
         cells * sizeof(uint32_t);
}

void DeviceHeap::reset_peak_stats() {
  block_counters_.reset_peaks();
  Lock lock(mutex_);
  observe();
  for (int kind = 0; kind <= kKinds; ++kind) {
    for (History* history : {&segments_[kind], &reserved_[kind], &free_ranges_[kind], &inactive_bytes_[kind]})
      history->peak = history->current;
  }
  reset_private(true);
}

void DeviceHeap::reset_accumulated_stats() {
  block_counters_.reset_accumulated();
  Lock lock(mutex_);
  for (int kind = 0; kind <= kKinds; ++kind) {
    for (History* history : {&segments_[kind], &reserved_[kind], &free_ranges_[kind], &inactive_bytes_[kind]})
      history->allocated = history->freed = 0;
  }
  reset_private(false);
  for (std::atomic<int64_t>* counter :
       {&counters_.num_alloc_retries, &counters_.num_ooms, &counters_.num_sync_all_streams, &counters_.num_device_alloc,
        &counters_.num_device_free, &counters_.num_oom_rejections}) {
    counter->store(0, std::memory_order_relaxed);
  }
}

// outside: of what others may have, so that runs end where a reserve begins.
uint64_t DeviceHeap::largest_free_in(const Space& space, bool outside) const {
  uint64_t largest = 0;
  const AddressSpace& memory = space.memory();
  if (outside && memory.kept) return 0;
  bool reserves = outside && space.pool().id == PYALLOC_POOL_LORA;
  auto in = [](const Reserve& one, uint64_t at) { return at >= one.offset && at - one.offset < one.bytes; };
  for (NodeId id = space.extents().first(); id != kNoNode; id = space.extents().range(id).next) {
    const Range& range = space.extents().range(id);
    if (range.state != RangeState::kFree) continue;
    uint64_t start = uint64_t{range.start} * kUnit, run = 0;
    // Only mapped parts of the range count; beyond the highest slot ever used nothing is mapped.
    uint64_t end = std::min(start + uint64_t{range.length} * kUnit, uint64_t{memory.highest_used()} * granule_bytes_);
    for (uint64_t at = start; at < end;) {
      uint64_t next = std::min(end, (at / granule_bytes_ + 1) * granule_bytes_);
      bool counts = memory.slot(static_cast<uint32_t>(at / granule_bytes_)).handle != 0 &&
                    !(reserves && (in(lora_reserve_, at) || in(lora_prepared_, at)));
      run = counts ? run + next - at : 0;
      largest = std::max(largest, run);
      at = next;
    }
  }
  return largest;
}

uint64_t DeviceHeap::largest_free() {
  uint64_t largest = 0;
  with_everything_locked([&](const Space& space) { largest = std::max(largest, largest_free_in(space)); });
  return largest;
}

bool DeviceHeap::validate(std::string& reason) {
  if (!caching_) return true;
  bool good = false;
  while_all_locked([&] { good = validate_locked(reason); });
  return good;
}

bool DeviceHeap::validate_locked(std::string& reason) {
  for (Lane& lane : lanes_)
    if (!lane.validate(reason)) return false;
  if (!backing_.validate(reason) || !adapter_loads_.validate(reason)) return false;
  bool good = true;
  int64_t live = 0, waiting = 0;
  MappedTotals totals[kKinds];
  std::vector<MappedTotals> of_pools(kPoolIds);
  each_space([&](const Space& space) {
    good = good && space.validate(reason);
    MappedTotals& of_pool = of_pools[space.pool().id];
    of_pool.slots += space.memory().mapped_slots();
    of_pool.segments += space.memory().segments();
    for (uint32_t index = 0; index < space.memory().highest_used(); ++index)
      of_pool.used += space.memory().slot(index).live > 0;
    totals[space.kind()].slots += space.memory().mapped_slots();
    totals[space.kind()].segments += space.memory().segments();
    for (NodeId id = space.extents().first(); good && id != kNoNode; id = space.extents().range(id).next) {
      const Range& range = space.extents().range(id);
      if (range.state == RangeState::kLive)
        live += static_cast<int64_t>(space.coarse() ? block_bytes(range) : range.length * kUnit);
      waiting += range.state == RangeState::kPending;
      if (range.state != RangeState::kSlab) continue;
      const Slab* slab = space.slab_at(space.address(range));
      int in_use = 0, pending = 0;
      for (unsigned slot = 0; slot < slab->slots; ++slot) {
        in_use += slab->live(slot);
        pending += Slab::test(slab->pending_bits, slot);
      }
      if (in_use + pending + slab->free_slots != slab->slots)
        good = false, reason = "heap: a slab's slots do not add up";
      live += in_use * static_cast<int64_t>(slab->slot_bytes);
      waiting += pending;
    }
  });
  if (!good) return false;
  // While another thread finishes pending frees of lanes, some of them are free already.
  auto listed = static_cast<int64_t>(pending_.size());
  if (waiting < listed || waiting > listed + finishing_)
    return reason = "heap: pending frees and pending blocks disagree", false;
  for (Kind kind : {kSmall, kLarge}) {
    if (totals[kind].slots != mapped_[kind].slots || totals[kind].segments != mapped_[kind].segments)
      return reason = "heap: its sums over spaces are wrong", false;
  }
  int64_t activations = 0;
  for (const Pool& pool : pools_) {
    if (holds_activations(pool.policy)) activations += pool.mapped.used;
    const MappedTotals& sums = of_pools[pool.id];
    if (sums.slots != pool.mapped.slots || sums.segments != pool.mapped.segments || sums.used != pool.mapped.used)
      return reason = "heap: the sums of pool " + std::to_string(pool.id) + " are wrong", false;
    if (pool.mapped.used > pool.mapped.limit)
      return reason = "heap: pool " + std::to_string(pool.id) + " uses more than its limit", false;
  }
  if (activations != activations_.used || activations > activations_.peak_used)
    return reason = "heap: the sum of the pools that hold activations is wrong", false;
  int64_t counted = block_counters_.live_bytes_locked();
  // A block is counted after it is placed; only the first of a new peak is so without a lock in between.
  if (counted > live)
    return reason =
               "heap: the counters say " + std::to_string(counted) + " live bytes, the blocks " + std::to_string(live),
           false;
  return true;
}

}  // namespace pyalloc
