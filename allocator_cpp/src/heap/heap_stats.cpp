// A heap's statistics: histories kept as the heap changes, and the struct torch's figures come from.
#include <algorithm>

#include "base/bits.h"
#include "heap/device_heap.h"

namespace pyalloc {
namespace {

void move_to(History& history, int64_t now) {
  int64_t change = now - history.current;
  (change > 0 ? history.allocated : history.freed) += change > 0 ? change : -change;
  history.current = now;
  history.peak = std::max(history.peak, now);
}

pyalloc_stat stat_of(const History& history) { return {history.current, history.peak, history.allocated, history.freed}; }

}  // namespace

// Called with the heap's lock held after every change of spaces or granules.
void DeviceHeap::observe() {
  if (!caching_) {
    move_to(history_[kKinds].reserved, static_cast<int64_t>(direct_bytes_));
    return;
  }
  int64_t segments = 0, reserved = 0, free_ranges = 0;
  for (Kind kind : {kSmall, kLarge}) {
    const Space& space = kind == kSmall ? fine_ : coarse_;
    int64_t mapped = space.memory().mapped_slots() * static_cast<int64_t>(granule_bytes_);
    // The fresh end of a space is no split block.
    int64_t fresh = space.extents().range(space.extents().last()).state == RangeState::kFree ? 1 : 0;
    move_to(history_[kind].segments, space.memory().segments());
    move_to(history_[kind].reserved, mapped);
    move_to(history_[kind].free_ranges, space.extents().free_ranges() - fresh);
    segments += history_[kind].segments.current;
    reserved += mapped;
    free_ranges += history_[kind].free_ranges.current;
  }
  move_to(history_[kKinds].segments, segments);
  move_to(history_[kKinds].reserved, reserved);
  move_to(history_[kKinds].free_ranges, free_ranges);
}

void DeviceHeap::get_stats(pyalloc_device_stats& stats) {
  BlockCounters::Totals totals = block_counters_.totals();
  Lock lock(mutex_);
  observe();
  auto set = [](pyalloc_stat(&to)[PYALLOC_KINDS], const History& small, const History& large, const History& all) {
    to[PYALLOC_KIND_SMALL] = stat_of(small);
    to[PYALLOC_KIND_LARGE] = stat_of(large);
    to[PYALLOC_KIND_ALL] = stat_of(all);
  };
  auto set_totals = [&](pyalloc_stat(&to)[PYALLOC_KINDS], const History(&from)[kKinds + 1]) { set(to, from[kSmall], from[kLarge], from[kKinds]); };
  set_totals(stats.allocation, totals.blocks);
  set_totals(stats.active, totals.active_blocks);
  set_totals(stats.allocated_bytes, totals.bytes);
  set_totals(stats.active_bytes, totals.active_bytes);
  set_totals(stats.requested_bytes, totals.requested);
  set(stats.segment, history_[kSmall].segments, history_[kLarge].segments, history_[kKinds].segments);
  set(stats.reserved_bytes, history_[kSmall].reserved, history_[kLarge].reserved, history_[kKinds].reserved);
  set(stats.inactive_split, history_[kSmall].free_ranges, history_[kLarge].free_ranges, history_[kKinds].free_ranges);
  for (int kind = 0; kind <= kKinds; ++kind) {
    move_to(inactive_bytes_[kind], std::max<int64_t>(0, history_[kind].reserved.current - totals.active_bytes[kind].current));
  }
  set_totals(stats.inactive_split_bytes, inactive_bytes_);

  const Granules& granules = backing_.granules();
  auto granule = static_cast<int64_t>(granule_bytes_);
  counters_.shelf_bytes = granules.on_shelf() * granule;
  counters_.idle_bytes = granules.idle() * granule;
  counters_.stale_mappings = static_cast<int64_t>(backing_.stale_mappings());
  counters_.pending_frees = static_cast<int64_t>(pending_.size());
  counters_.metadata_bytes = static_cast<int64_t>(metadata_bytes());
#define PYALLOC_STAT_GROUP(name, unit, help)
#define PYALLOC_STAT_VALUE(name, kind, unit, help) stats.name = counters_.name.load(std::memory_order_relaxed);
#include "pyalloc/stat_fields.def"
#undef PYALLOC_STAT_GROUP
#undef PYALLOC_STAT_VALUE
}

// Books in use, not the address space set aside for them.
size_t DeviceHeap::metadata_bytes() const {
  size_t bytes = sizeof *this + slabs_.size() * sizeof(Slab) + lanes_.size() * sizeof(Lane) + backing_.granules().metadata_bytes() +
                 (recorded_.size() + direct_.size()) * 64 + pending_.capacity() * sizeof(PendingFree);
  if (!caching_) return bytes;
  for (const Space* space : {&fine_, &coarse_}) {
    bytes += space->extents().metadata_bytes();
    uint64_t used = uint64_t{space->memory().highest_used()} * granule_bytes_;
    bytes += space->memory().highest_used() * sizeof(Slot) + used / space->cell_bytes() * (sizeof(NodeId) + (space->coarse() ? 0 : sizeof(Slab*)));
  }
  return bytes;
}

void DeviceHeap::reset_peak_stats() {
  block_counters_.reset_peaks();
  Lock lock(mutex_);
  observe();
  for (int kind = 0; kind <= kKinds; ++kind) {
    for (History* history : {&history_[kind].segments, &history_[kind].reserved, &history_[kind].free_ranges, &inactive_bytes_[kind]}) history->peak = history->current;
  }
}

void DeviceHeap::reset_accumulated_stats() {
  block_counters_.reset_accumulated();
  Lock lock(mutex_);
  for (int kind = 0; kind <= kKinds; ++kind) {
    for (History* history : {&history_[kind].segments, &history_[kind].reserved, &history_[kind].free_ranges, &inactive_bytes_[kind]}) history->allocated = history->freed = 0;
  }
  for (std::atomic<int64_t>* counter : {&counters_.num_alloc_retries, &counters_.num_ooms, &counters_.num_sync_all_streams, &counters_.num_device_alloc, &counters_.num_device_free,
                                        &counters_.num_oom_rejections}) {
    counter->store(0, std::memory_order_relaxed);
  }
}

uint64_t DeviceHeap::largest_free() {
  Lock lock(mutex_);
  if (!caching_) return 0;
  uint64_t largest = 0;
  for (const Space* space : {&fine_, &coarse_}) {
    for (NodeId id = space->extents().first(); id != kNoNode; id = space->extents().range(id).next) {
      const Range& range = space->extents().range(id);
      if (range.state != RangeState::kFree) continue;
      uint64_t start = uint64_t{range.start} * kUnit, end = start + uint64_t{range.length} * kUnit, run = 0;
      // Only mapped parts of the range count; beyond the highest slot ever used nothing is mapped.
      end = std::min(end, uint64_t{space->memory().highest_used()} * granule_bytes_);
      for (uint64_t at = start; at < end;) {
        uint64_t next = std::min(end, (at / granule_bytes_ + 1) * granule_bytes_);
        run = space->memory().slot(static_cast<uint32_t>(at / granule_bytes_)).handle != 0 ? run + next - at : 0;
        largest = std::max(largest, run);
        at = next;
      }
    }
  }
  return largest;
}

bool DeviceHeap::validate(std::string& reason) {
  if (!caching_) return true;
  bool good = true;
  Lock making(lanes_mutex_);
  for (Lane& lane : lanes_) lane.mutex().lock();
  mutex_.lock();
  for (Lane& lane : lanes_) good = good && lane.validate(reason);
  good = good && fine_.validate(reason) && coarse_.validate(reason) && backing_.validate(reason);
  int64_t live = 0, listed = static_cast<int64_t>(pending_.size());
  for (const Space* space : {&fine_, &coarse_}) {
    for (NodeId id = space->extents().first(); id != kNoNode; id = space->extents().range(id).next) {
      const Range& range = space->extents().range(id);
      if (range.state == RangeState::kLive) live += static_cast<int64_t>(block_bytes(range));
      if (range.state == RangeState::kPending) --listed;
      if (range.state == RangeState::kSlab) {
        const Slab* slab = space->slab_at(space->address(range));
        int in_use = 0, waiting = 0;
        for (unsigned slot = 0; slot < slab->slots; ++slot) {
          in_use += slab->live(slot);
          waiting += Slab::test(slab->pending_bits, slot);
        }
        if (in_use + waiting + slab->free_slots != slab->slots) good = false, reason = "heap: a slab's slots do not add up";
        live += in_use * static_cast<int64_t>(slab->slot_bytes());
        listed -= waiting;
      }
    }
  }
  if (good && listed != 0) good = false, reason = "heap: pending frees and pending blocks disagree";
  int64_t counted = block_counters_.live_bytes_locked();
  // A block is counted after it is placed, and no lock is held in between only for the very first of a new peak.
  if (good && counted > live) good = false, reason = "heap: counters say " + std::to_string(counted) + " live bytes, the blocks " + std::to_string(live);
  mutex_.unlock();
  for (Lane& lane : lanes_) lane.mutex().unlock();
  return good;
}

}  // namespace pyalloc
