// A lane's slots: blocks up to 16 KiB.
#include "heap/lane.h"

#include <algorithm>

#include "base/check.h"
#include "heap/device_heap.h"

namespace pyalloc {

thread_local const char Lane::this_thread = 0;

Lane::Lane(DeviceHeap& heap, Pool& pool, BlockCounters& counters, cuda::Stream stream, StreamIndex index, bool owned,
           bool arena)
    : heap_(heap),
      pool_(pool),
      block_counters_(counters),
      stream_(stream),
      serves_bytes_(pool.policy.arena || pool.policy.packed || pool.policy.contiguous || heap.guarded() ? 0
                                                                                                        : kLargestFine),
      serves_unchosen_(pool.id == kGeneralPool && heap.predicts() ? std::min(serves_bytes_, kLargestSmall)
                                                                  : serves_bytes_),
      pool_id_(pool.id),
      index_(index),
      owned_(owned),
      arena_(arena),
      counters_(counters.add_lane(mutex_)),
      counted_(counters_.counters[kind()]),
      keeps_spares_(owned) {}

Status Lane::allocate(size_t bytes, void** pointer, uint64_t birth) {
  if (bytes <= kLargestSmall) return allocate_slot(size_class(bytes), bytes, pointer);
  if (bytes <= kLargestMiddle && !arena_) {
    int index = size_class(bytes);
    // Read without the lock: a guess that is off costs a slab more or less.
    if (__atomic_load_n(&live_[index], __ATOMIC_RELAXED) >= kSlabsFrom * kSlotsOfSlab[index])
      return allocate_slot(index, bytes, pointer);
  }
  return allocate_extent(bytes, pointer, birth);
}

Status Lane::deallocate(uint64_t address, pyalloc_freed* freed) {
  Slab* slab = space_->slab_at(address);
  if (slab == nullptr) return deallocate_extent(address, freed);
  return deallocate_slot(*slab, address, freed);
}

void Lane::list(Slab& slab) {
  Slab*& head = heads_[slab.size_class];
  slab.previous = nullptr;
  slab.next = head;
  if (head != nullptr) head->previous = &slab;
  head = &slab;
  slab.listed = true;
}

void Lane::unlist(Slab& slab) {
  (slab.previous != nullptr ? slab.previous->next : heads_[slab.size_class]) = slab.next;
  if (slab.next != nullptr) slab.next->previous = slab.previous;
  slab.previous = slab.next = nullptr;
  slab.listed = false;
}

Status Lane::add_slab(int index) {
  NodeId id = kNoNode;
  Status status =
      take_extent(static_cast<uint32_t>(slab_bytes(index) / kUnit), Space::kFineCell / kUnit, RangeState::kSlab, 0, id);
  if (status != kOk) return status;
  list(space_->add_slab(id, index));
  return kOk;
}

void Lane::free_slab(Slab& slab) {
  NodeId range = slab.range;
  space_->remove_slab(slab);
  give_extent(range);
}

// With the lock held, but for a moment: there is no slab with room.
Status Lane::make_room(int index) {
  mutex_.unlock();
  heap_.poll_pending();  // may free a slot here
  mutex_.lock();
  return with_room_[index] != nullptr ? kOk : add_slab(index);
}

Status Lane::allocate_slot(int index, size_t bytes, void** pointer) {
  uint64_t address = 0;
  Usage usage;
  bool counted = false;
  {
    std::lock_guard<RankedMutex> lock(mutex_);
    if (__builtin_expect(with_room_[index] == nullptr, 0)) {
      Status status = make_room(index);
      if (status != kOk) return status;
    }
    Slab& slab = *with_room_[index];
    unsigned slot = slab.take();
    if (slab.free_slots == 0) unlist(slab);
    count_live(index, 1);
    if (arena_) user_ = &this_thread;
    slab.unused_bytes[slot] = static_cast<uint16_t>(slab.slot_bytes - bytes);
    address = slab.address(slot);
    usage = {1, slab.slot_bytes, static_cast<int64_t>(bytes)};
    counted = counted_.hand_out(usage);
  }
  *pointer = reinterpret_cast<void*>(address);
  if (__builtin_expect(!counted || heap_.has_listeners(), 0)) tell_hand_out(address, usage, counted);
  return kOk;
}

void Lane::tell_hand_out(uint64_t address, const Usage& usage, bool counted) {
  heap_.note_alloc(address, static_cast<size_t>(usage.bytes), stream_);
  if (!counted) block_counters_.settle(&counters_, kind(), usage);
  heap_.tell_news();
}

// Called with the lock held. May free the slab's extent, so the slab must not be used afterwards.
inline void Lane::slot_became_free(Slab& slab, unsigned slot) {
  slab.give(slot);
  count_live(slab.size_class, -1);
  if (!slab.listed) list(slab);
  if (slab.free_slots < slab.slots) return;
  bool only_one = slab.previous == nullptr && slab.next == nullptr;
  if (only_one && keeps_spares_ && slab.size_class < kSmallClasses) return;
  unlist(slab);
  free_slab(slab);
}

// What frees of few slots have to do. False: the slot waits for another stream.
bool Lane::settle_marks(Slab& slab, unsigned slot, const Usage& usage) {
  if (slab.tagged_slots != 0) {
    TagId& tag = *space_->slot_tag(slab, slot);
    if (tag != kNoTag) {
      tag_account(tag).discharge(usage.requested);
      tag = kNoTag;
      --slab.tagged_slots;
    }
  }
  if (arena_ && Slab::test(slab.escaped_bits, slot)) {
    Slab::clear(slab.escaped_bits, slot);
    --escaped_live_;
  }
  if (!Slab::test(slab.recorded_bits, slot)) return true;
  Slab::clear(slab.recorded_bits, slot);
  Slab::set(slab.pending_bits, slot);
  counted_.take_back_pending(usage);
  block_counters_.pending_started(kind(), usage);
  heap_.free_later({space_.get(), kNoNode, &slab, slot, kind(), usage.bytes, {}}, slab.address(slot), stream_);
  return false;
}

Status Lane::deallocate_slot(Slab& slab, uint64_t address, pyalloc_freed* freed) {
  std::lock_guard<RankedMutex> lock(mutex_);
  int slot = slab.slot_at(address);
  if (slot < 0 || !slab.live(static_cast<unsigned>(slot))) return heap_.bad_free(address);
  auto index = static_cast<unsigned>(slot);
  Usage usage{1, slab.slot_bytes, static_cast<int64_t>(slab.requested(index))};
  if (freed != nullptr) *freed = {heap_.device(), stream_, slab.requested(index), slab.slot_bytes};
  if (__builtin_expect(slab.marked, 0) && !settle_marks(slab, index, usage)) return kOk;
  counted_.take_back(usage);
  heap_.note_free(address, slab.slot_bytes, stream_);
  slot_became_free(slab, index);
  return kOk;
}

void Lane::finish_pending(Slab* slab, unsigned slot, NodeId range) {
  Lock lock(mutex_);
  if (slab != nullptr) {
    Slab::clear(slab->pending_bits, slot);
    block_counters_.pending_ended(kind(), {1, slab->slot_bytes, 0});
    slot_became_free(*slab, slot);
  } else {
    const Range& one = space_->extents().range(range);
    block_counters_.pending_ended(kind(), {1, static_cast<int64_t>(one.length * kUnit), 0});
    space_->set_start(space_->address(one), kNoNode);
    forget_extent(one);
    give_extent(range);
  }
}

bool Lane::mark_recorded(uint64_t address) {
  Lock lock(mutex_);
  if (Slab* slab = space_->slab_at(address)) {
    int slot = slab->slot_at(address);
    if (slot < 0 || !slab->live(static_cast<unsigned>(slot))) return false;
    slab->mark(slab->recorded_bits, static_cast<unsigned>(slot));
    return true;
  }
  NodeId id = live_extent_at(address);
  if (id == kNoNode) return false;
  space_->extents().range(id).recorded = true;
  return true;
}

void Lane::set_tag(uint64_t address, TagId tag) {
  Lock lock(mutex_);
  if (Slab* slab = space_->slab_at(address)) {
    auto slot = static_cast<unsigned>(slab->slot_at(address));
    TagId* kept = space_->slot_tag(*slab, slot);
    if (kept == nullptr) return;  // the host has no address space left: nobody pays
    *kept = tag;
    ++slab->tagged_slots;
    slab->marked = true;
    tag_account(tag).charge(static_cast<int64_t>(slab->requested(slot)));
    return;
  }
  NodeId id = live_extent_at(address);
  PYALLOC_ASSERT(id != kNoNode);
  Range& range = space_->extents().range(id);
  range.tag = tag;
  tag_account(tag).charge(static_cast<int64_t>(range.requested));
}

bool Lane::describe(uint64_t address, bool inside, pyalloc_block_view& block) {
  Lock lock(mutex_);
  if (const Slab* slab = space_->slab_at(address)) {
    unsigned slot = slab->slot_of(address);
    if (slot >= slab->slots || Slab::test(slab->free_bits, slot)) return false;
    if (!inside && slab->address(slot) != address) return false;
    block = {reinterpret_cast<void*>(slab->address(slot)),
             slab->slot_bytes,
             slab->requested(slot),
             slab->live(slot) ? PYALLOC_BLOCK_LIVE : PYALLOC_BLOCK_PENDING,
             stream_,
             slab->tagged_slots != 0 ? space_->tag_of(*slab, slot) : kNoTag};
    return true;
  }
  NodeId id = inside ? space_->covering(address) : space_->start_in_cell(address);
  if (id == kNoNode) return false;
  const Range& range = space_->extents().range(id);
  if (range.state != RangeState::kLive && range.state != RangeState::kPending) return false;
  if (!inside && space_->address(range) != address) return false;
  block = {reinterpret_cast<void*>(space_->address(range)),
           range.length * kUnit,
           range.requested,
           range.state == RangeState::kLive ? PYALLOC_BLOCK_LIVE : PYALLOC_BLOCK_PENDING,
           stream_,
           range.tag};
  return true;
}

void Lane::hide(bool asleep) {
  if (asleep == asleep_) return;
  std::swap(with_room_, hidden_);
  heads_ = asleep ? hidden_ : with_room_;
  asleep_ = asleep;
  keeps_spares_ = owned_ && !asleep;
}

void Lane::release_empty_slabs() {
  Lock lock(mutex_);
  free_empty_slabs();
}

void Lane::free_empty_slabs() {
  for (int index = 0; index < kSizeClasses; ++index) {
    for (Slab *slab = heads_[index], *next = nullptr; slab != nullptr; slab = next) {
      next = slab->next;
      if (slab->free_slots < slab->slots) continue;
      unlist(*slab);
      free_slab(*slab);
    }
  }
}

bool Lane::validate(std::string& reason) {
  for (int index = 0; index < kSizeClasses; ++index) {
    const Slab* previous = nullptr;
    for (const Slab* slab = heads_[index]; slab != nullptr; slab = slab->next) {
      if (slab->size_class != index || !slab->listed || slab->previous != previous)
        return reason = "lane: its list of slabs is broken", false;
      int free_seen = __builtin_popcountll(slab->free_bits[0]) + __builtin_popcountll(slab->free_bits[1]);
      if (free_seen != slab->free_slots || free_seen == 0)
        return reason = "lane: a slab miscounts its free slots", false;
      for (int word = 0; word < 2; ++word) {
        if ((slab->free_bits[word] & (slab->pending_bits[word] | slab->recorded_bits[word])) != 0)
          return reason = "lane: a free slot is marked as in use", false;
        uint64_t marks = slab->pending_bits[word] | slab->recorded_bits[word] | slab->escaped_bits[word];
        if (!slab->marked && (marks != 0 || slab->tagged_slots != 0))
          return reason = "lane: a slab has marks that frees will not look for", false;
      }
      previous = slab;
    }
  }
  return true;
}

}  // namespace pyalloc
