// The lora pool's reserve, and what is prepared on top of it for a load that is about to come.
#include <algorithm>

#include "base/bits.h"
#include "base/log.h"
#include "driver/context_scope.h"
#include "heap/device_heap.h"

namespace pyalloc {

// The touches themselves are made by commit and uncommit.
void DeviceHeap::keep(Pool& pool, Reserve& which, Reserve now) {
  auto slots = [this](const Reserve& one) {
    return one.bytes == 0 ? 0 : (one.offset + one.bytes - 1) / granule_bytes_ - one.offset / granule_bytes_ + 1;
  };
  pool.coarse.kept_slots += slots(now);
  pool.coarse.kept_slots -= slots(which);
  which = now;
}

// At the device's opening, while nothing is in use yet. A reserve that cannot be had is one line in the log: the
// program runs without.
void DeviceHeap::open_reserve(uint64_t bytes) {
  Pool* pool = nullptr;
  Status status = open_pool(PYALLOC_POOL_LORA, pool);
  uint64_t wanted = align_up(bytes, granule_bytes_);
  if (status == kOk && wanted > backing_.limit_bytes() / 2)
    status = fail(PYALLOC_INVALID_ARGUMENT, "it is more than half of the %llu bytes that pyalloc may use there",
                  static_cast<unsigned long long>(backing_.limit_bytes()));
  if (status == kOk) {
    Lock lock(mutex_);
    ContextScope scope(context_);
    StreamIndex stream = clocks_.index_of(nullptr, true);
    status = backing_.commit(pool->coarse.memory(), 0, wanted, stream);
    if (status == kOk) keep(*pool, lora_reserve_, {0, wanted});
    pool->coarse.memory().exact = true;
    observe();
  }
  if (status != kOk)
    log_line(
        "lora_reserve:%llu cannot be set aside on device %d: %s; adapters go where other memory goes. Set a "
        "smaller lora_reserve, or 0",
        static_cast<unsigned long long>(bytes), device_, last_error());
}

// Addresses of `bytes` behind the reserve that are free and wait for nobody: the low end of the shortest range of such,
// so that what an adapter left is taken by one of its size. They begin where a neighbour ends and so share its last
// granule, and end with a granule where there is room for that: the parts of an adapter are rounded one by one.
DeviceHeap::Reserve DeviceHeap::find_clean(const Space& space, uint64_t from, uint64_t bytes) const {
  const Extents& extents = space.extents();
  Reserve found;
  uint64_t shortest = UINT64_MAX;
  for (NodeId id = extents.first(); id != kNoNode; id = extents.range(id).next) {
    const Range& range = extents.range(id);
    if (range.state != RangeState::kFree || range.owner != kClean) continue;
    uint64_t start = std::max(from, uint64_t{range.start} * kUnit);
    uint64_t end = (uint64_t{range.start} + range.length) * kUnit;
    if (end < start || end - start >= shortest) continue;
    for (uint64_t at = start; at < end && start + bytes <= end;) {
      uint64_t next = align_down(at, granule_bytes_) + granule_bytes_;
      if (space.memory().slot(static_cast<uint32_t>(at / granule_bytes_)).stale) start = next;
      at = next;
      if (at < start + bytes) continue;
      shortest = end - start;
      found = {start, std::min(align_up(start + bytes, granule_bytes_), end) - start};
      break;
    }
  }
  return found;
}

Status DeviceHeap::prepare_lora(uint64_t bytes) {
  return settle(set_aside_for_lora(bytes), [&] { return set_aside_for_lora(bytes); });
}

Status DeviceHeap::set_aside_for_lora(uint64_t bytes) {
  Lock lock(mutex_);
  if (bytes == 0) return end_prepared(), kOk;
  if (lora_reserve_.bytes == 0)
    return fail(PYALLOC_WRONG_STATE,
                "there is no reserve for LoRA adapters on device %d: lora_reserve is 0, or could not be set aside, as "
                "the log then says; set it to a size that fits, at most half of what pyalloc may use",
                device_);
  Pool& pool = *open_pool(PYALLOC_POOL_LORA);
  if (pool.sleep.rest != Rest::kAwake) return refuse_asleep(pool);
  refused_by(kNoPool, false);
  if (bytes > pool.coarse.memory().bytes() / 2) return fail(PYALLOC_OUT_OF_MEMORY, "it is more than the device has");
  ContextScope scope(context_);
  Reserve before = lora_prepared_;
  NodeId rest = prepared_rest_;
  end_prepared();  // its memory comes first
  clean_finished(pool.coarse);
  backing_.undo_stale(SIZE_MAX);
  Reserve wanted = find_clean(pool.coarse, lora_reserve_.bytes, align_up(bytes, kUnit));
  if (wanted.bytes == 0) {
    prepare_again(before, rest);
    return fail(PYALLOC_OUT_OF_MEMORY, "the lora pool has no addresses left for it");
  }
  if (backing_.granules().idle() > 0) backing_.poll_streams();
  // What adapters left elsewhere, or would share a handle with this one, is put together from the shelf, by whoever needs
  // it next: so the pool's free memory does not lie about in pieces.
  if (before.bytes == 0) backing_.shelve_around(pool.coarse.memory(), wanted.offset, wanted.bytes);
  // The null stream asks for it; whoever uses it later is ordered after its earlier uses, which Backing remembers.
  StreamIndex stream = clocks_.index_of(nullptr, true);
  Status status = backing_.commit(pool.coarse.memory(), wanted.offset, wanted.bytes, stream);
  if (status == kOk) {
    keep(pool, lora_prepared_, wanted);
    adapter_loads_.end(false);  // what goes on here says nothing of the reserve
    prepared_rest_ = pool.coarse.extents().free_range_over(static_cast<uint32_t>(wanted.offset / kUnit),
                                                           static_cast<uint32_t>(wanted.bytes / kUnit));
    count(counters_.lora_prepares);
    note_event(EventKind::prepare, device_, pool.id, static_cast<int64_t>(bytes));
  } else {
    refused_by(backing_.refused_by_pool() ? pool.id : kNoPool, backing_.refused_by_limit());
    std::string why = last_error();
    prepare_again(before, rest);
    fail(status, "%s", why.c_str());
  }
  observe();
  self_check();
  return status;
}

// What was prepared before a call that was refused: idle since a moment ago, so it is had again, but where the search for
// memory has given some of it to the driver.
void DeviceHeap::prepare_again(const Reserve& before, NodeId rest) {
  if (before.bytes == 0) return;
  Pool& pool = *open_pool(PYALLOC_POOL_LORA);
  AddressSpace& memory = pool.coarse.memory();
  auto last = static_cast<uint32_t>((before.offset + before.bytes - 1) / granule_bytes_);
  for (auto index = static_cast<uint32_t>(before.offset / granule_bytes_); index <= last; ++index)
    if (memory.slot(index).stale) return;
  if (backing_.commit(memory, before.offset, before.bytes, clocks_.index_of(nullptr, true)) != kOk) return;
  keep(pool, lora_prepared_, before);
  prepared_rest_ = rest;
}

void DeviceHeap::end_lora_load() {
  Lock lock(mutex_);
  adapter_loads_.end();
  end_prepared();
}

// Blocks that lie there keep what they touch; the rest becomes idle memory, which any pool may take.
void DeviceHeap::end_prepared() {
  if (lora_prepared_.bytes == 0) return;
  Pool& pool = *open_pool(PYALLOC_POOL_LORA);
  StreamIndex stream = clocks_.index_of(nullptr, true);
  ContextScope scope(context_);
  backing_.uncommit(pool.coarse.memory(), lora_prepared_.offset, lora_prepared_.bytes, stream,
                    clocks_.free_position(stream));
  keep(pool, lora_prepared_, {});
  observe();
  self_check();
}

// The next place in what was prepared for the load that is under way.
DeviceHeap::Choice DeviceHeap::prepared_fit(const Space& space, uint32_t units, StreamIndex stream) const {
  const Extents& extents = space.extents();
  if (lora_prepared_.bytes == 0 || !extents.is_range(prepared_rest_)) return {};
  const Range& range = extents.range(prepared_rest_);
  if (range.state != RangeState::kFree || (range.owner != stream && range.owner != kClean)) return {};
  uint64_t start = std::max(uint64_t{range.start} * kUnit, lora_prepared_.offset);
  uint64_t end = std::min((uint64_t{range.start} + range.length) * kUnit, lora_prepared_.offset + lora_prepared_.bytes);
  if (start + uint64_t{units} * kUnit > end) return {};
  Choice choice{prepared_rest_, static_cast<uint32_t>(start / kUnit), {}};
  choice.cost = cost_of(space, choice.start, units, stream);
  return choice.cost.impossible ? Choice{} : choice;
}

// The shortest range, of those first in the bins, whose low end is mapped: what a load finds nearly always.
DeviceHeap::Choice DeviceHeap::mapped_fit(const Space& space, uint32_t units, StreamIndex stream) const {
  constexpr int kLooks = 8;
  Choice choice;
  uint32_t shortest = UINT32_MAX;
  auto mapped = [&](uint32_t start) {
    uint64_t offset = uint64_t{start} * kUnit;
    auto last = static_cast<uint32_t>((offset + uint64_t{units} * kUnit - 1) / granule_bytes_);
    for (auto index = static_cast<uint32_t>(offset / granule_bytes_); index <= last; ++index)
      if (space.memory().slot(index).handle == 0) return false;
    return true;
  };
  for (uint16_t owner : {uint16_t{stream}, kClean}) {
    space.extents().fitting(owner, units, kLooks, [&](NodeId id) {
      const Range& range = space.extents().range(id);
      if (range.length >= shortest) return false;
      if (!mapped(range.start)) return true;
      Backing::Cost cost = cost_of(space, range.start, units, stream);
      if (cost.impossible) return true;
      choice = {id, range.start, cost};
      shortest = range.length;
      return false;
    });
  }
  return choice;
}

// A block of a load that begins or goes on. Whether it goes to the general pool at once, for the load as a whole is known
// not to fit.
bool DeviceHeap::enter_load(const Pool& pool, uint64_t bytes) {
  if (pool.sleep.rest != Rest::kAwake) return false;  // it is refused
  AdapterLoads::Load* load = adapter_loads_.current();
  if (load != nullptr) return load->elsewhere();
  if (lora_prepared_.bytes > 0) return false;  // it says nothing of the reserve
  load = &adapter_loads_.begin(bytes);
  uint64_t need = adapter_loads_.need(bytes), free = 0;
  const Extents& extents = pool.coarse.extents();
  for (NodeId id = extents.first(); need > 0 && id != kNoNode; id = extents.range(id).next) {
    const Range& range = extents.range(id);
    uint64_t start = uint64_t{range.start} * kUnit;
    if (start >= lora_reserve_.bytes) break;
    if (range.state == RangeState::kFree) free += std::min(uint64_t{range.length} * kUnit, lora_reserve_.bytes - start);
  }
  if (need > free) load->known = need;
  return load->elsewhere();
}

// A block of the lora pool while there is a reserve. What overflows goes to the general pool; what is to go there and
// cannot, for whatever reason, is tried here.
Status DeviceHeap::allocate_adapter(Lane& lane, cuda::Stream stream, bool owned, size_t bytes, void** pointer) {
  Pool& pool = lane.pool();
  uint64_t rounded = align_up(bytes, kUnit);
  bool elsewhere = false;
  {
    Lock lock(mutex_);
    elsewhere = lora_overflow_ && enter_load(pool, rounded);
  }
  auto overflow = [&] {
    Status status = allocate_in(kGeneralPool, stream, owned, bytes, pointer);
    if (status != kOk) return status;
    {
      Lock lock(mutex_);
      adapter_loads_.took(rounded, true);
    }
    count(counters_.lora_overflows);
    note_event(EventKind::overflow, device_, pool.id, static_cast<int64_t>(bytes));
    return status;
  };
  if (elsewhere && overflow() == kOk) return kOk;
  Status status = allocate_coarse(lane, pool.coarse, bytes, pointer);
  return status == PYALLOC_OUT_OF_MEMORY && lora_overflow_ ? overflow() : status;
}

// A block of the lora pool while there is a reserve: in what was prepared, so that the reserve stays for others, else
// where memory is mapped already, in a short mapped run that fits; own and clean ranges first, then, after a wait on
// the GPU, those of other streams.
Status DeviceHeap::place_mapped(Space& space, uint32_t units, StreamIndex stream, uint64_t requested, NodeId& placed) {
  Extents& extents = space.extents();
  const AddressSpace& memory = space.memory();
  uint64_t bytes = uint64_t{units} * kUnit, used_end = uint64_t{memory.highest_used()} * granule_bytes_;
  auto shortest = [&](bool foreign) {
    Choice choice;
    uint64_t length = UINT64_MAX;
    for (NodeId id = extents.first(); id != kNoNode; id = extents.range(id).next) {
      const Range& range = extents.range(id);
      bool mine = range.owner == stream || range.owner == kClean;
      if (range.state != RangeState::kFree || mine == foreign) continue;
      uint64_t end = std::min((uint64_t{range.start} + range.length) * kUnit, used_end);
      for (uint64_t at = uint64_t{range.start} * kUnit, start = at; at < end;) {
        uint64_t next = std::min(end, (at / granule_bytes_ + 1) * granule_bytes_);
        bool mapped = memory.slot(static_cast<uint32_t>(at / granule_bytes_)).handle != 0;
        if (!mapped) start = next;
        at = next;
        bool ends = at == end || memory.slot(static_cast<uint32_t>(at / granule_bytes_)).handle == 0;
        if (!mapped || !ends || at - start < bytes || at - start >= length) continue;
        Backing::Cost cost = backing_.cost(memory, start, bytes, stream);
        if (cost.impossible) continue;
        choice = {id, static_cast<uint32_t>(start / kUnit), cost};
        length = at - start;
      }
    }
    return choice;
  };
  Choice choice = prepared_fit(space, units, stream);
  bool prepared = choice.range != kNoNode;
  if (!prepared) choice = mapped_fit(space, units, stream);
  ContextScope scope(context_, choice.range == kNoNode || choice.cost.waits);
  if (choice.range == kNoNode) choice = shortest(false);
  if (choice.range == kNoNode) {
    clean_finished(space);
    choice = shortest(false);
  }
  if (choice.range == kNoNode && backing_.policy().cross_stream_wait) {
    choice = shortest(true);
    if (choice.range != kNoNode) {
      const Range& range = extents.range(choice.range);
      if (!clocks_.wait(stream, range.owner, range.stamp)) choice = {};
    }
  }
  if (choice.range != kNoNode) {
    Status status = put(space, choice, units, stream, RangeState::kLive, requested, placed);
    if (status == kOk) adapter_loads_.took(bytes);
    if (prepared && status == kOk) prepared_rest_ = extents.range(placed).next;
    return status;
  }
  refused_by(kNoPool, false);
  return fail(PYALLOC_OUT_OF_MEMORY, "%s", kReserveFull);
}

}  // namespace pyalloc
