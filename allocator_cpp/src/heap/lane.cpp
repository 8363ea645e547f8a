#include "heap/lane.h"

#include "heap/device_heap.h"

namespace pyalloc {

Lane::Lane(DeviceHeap& heap, BlockCounters& counters, cuda::Stream stream, StreamIndex index, bool owned)
    : heap_(heap), block_counters_(counters), stream_(stream), index_(index), owned_(owned), counters_(counters.add_lane(mutex_)) {}

void Lane::list(Slab& slab) {
  Slab*& head = with_room_[slab.size_class];
  slab.previous = nullptr;
  slab.next = head;
  if (head != nullptr) head->previous = &slab;
  head = &slab;
  slab.listed = true;
}

void Lane::unlist(Slab& slab) {
  (slab.previous != nullptr ? slab.previous->next : with_room_[slab.size_class]) = slab.next;
  if (slab.next != nullptr) slab.next->previous = slab.previous;
  slab.previous = slab.next = nullptr;
  slab.listed = false;
}

bool Lane::add_slab(int size_class_index, Status& status) {
  Slab* slab = nullptr;
  status = heap_.take_slab(*this, size_class_index, slab);
  if (status != kOk) return false;
  list(*slab);
  return true;
}

Status Lane::allocate(size_t bytes, void** pointer) {
  int index = size_class(bytes);
  Lock lock(mutex_);
  if (with_room_[index] == nullptr) {
    lock.unlock();
    heap_.poll_pending();  // may free a slot here
    lock.lock();
    Status status = kOk;
    if (with_room_[index] == nullptr && !add_slab(index, status)) return status;
  }
  Slab& slab = *with_room_[index];
  unsigned slot = slab.take();
  if (slab.free_slots == 0) unlist(slab);
  slab.unused_bytes[slot] = static_cast<uint16_t>(class_bytes(index) - bytes);
  uint64_t address = slab.address(slot);
  Usage usage{1, static_cast<int64_t>(class_bytes(index)), static_cast<int64_t>(bytes)};
  bool counted = counters_.counters.hand_out(kSmall, usage);
  heap_.note_alloc(address, class_bytes(index), stream_);
  lock.unlock();
  if (!counted) block_counters_.settle(&counters_, kSmall, usage);
  *pointer = reinterpret_cast<void*>(address);
  return kOk;
}

// Called with the lock held. May hand the slab's extent back, so the slab must not be used afterwards.
void Lane::slot_became_free(Slab& slab, unsigned slot) {
  slab.give(slot);
  if (!slab.listed) list(slab);
  if (slab.free_slots < slab.slots) return;
  bool only_one = with_room_[slab.size_class] == &slab && slab.next == nullptr;
  if (only_one && owned_) return;  // a stream that may be destroyed keeps nothing: its event must be recorded now
  unlist(slab);
  heap_.give_slab(slab);
}

Status Lane::deallocate(Slab& slab, uint64_t address, pyalloc_freed* freed) {
  Lock lock(mutex_);
  int slot = slab.lane == this ? slab.slot_at(address) : -1;
  if (slot < 0 || !slab.live(static_cast<unsigned>(slot))) return heap_.bad_free(address);
  auto index = static_cast<unsigned>(slot);
  size_t bytes = slab.slot_bytes(), requested = slab.requested(index);
  if (freed != nullptr) *freed = {heap_.device(), stream_, requested, bytes};
  Usage usage{1, static_cast<int64_t>(bytes), static_cast<int64_t>(requested)};
  if (Slab::test(slab.recorded_bits, index)) {
    Slab::clear(slab.recorded_bits, index);
    Slab::set(slab.pending_bits, index);
    counters_.counters.take_back_pending(kSmall, usage);
    block_counters_.pending_started(kSmall, usage);
    heap_.slot_pending(slab, index);
    return kOk;
  }
  counters_.counters.take_back(kSmall, usage);
  heap_.note_free(address, bytes, stream_);
  slot_became_free(slab, index);
  return kOk;
}

void Lane::finish_pending(Slab& slab, unsigned slot) {
  Lock lock(mutex_);
  Slab::clear(slab.pending_bits, slot);
  block_counters_.pending_ended(kSmall, {1, static_cast<int64_t>(slab.slot_bytes()), 0});
  slot_became_free(slab, slot);
}

Status Lane::mark_recorded(Slab& slab, uint64_t address) {
  Lock lock(mutex_);
  int slot = slab.lane == this ? slab.slot_at(address) : -1;
  if (slot < 0 || !slab.live(static_cast<unsigned>(slot))) return PYALLOC_UNKNOWN_POINTER;
  Slab::set(slab.recorded_bits, static_cast<unsigned>(slot));
  return kOk;
}

bool Lane::describe(const Slab& slab, uint64_t address, pyalloc_block_info& info) {
  Lock lock(mutex_);
  if (slab.lane != this || address < slab.base || address >= slab.base + slab.slots * slab.slot_bytes()) return false;
  auto slot = static_cast<unsigned>((address - slab.base) / slab.slot_bytes());
  if (!slab.live(slot)) return false;
  info.block = reinterpret_cast<void*>(slab.address(slot));
  info.stream = stream_;
  info.requested = slab.requested(slot);
  info.allocated = slab.slot_bytes();
  return true;
}

void Lane::release_empty_slabs() {
  Lock lock(mutex_);
  for (Slab*& head : with_room_) {
    for (Slab *slab = head, *next = nullptr; slab != nullptr; slab = next) {
      next = slab->next;
      if (slab->free_slots < slab->slots) continue;
      unlist(*slab);
      heap_.give_slab(*slab);
    }
  }
}

bool Lane::validate(std::string& reason) {
  for (int index = 0; index < kSizeClasses; ++index) {
    const Slab* previous = nullptr;
    for (const Slab* slab = with_room_[index]; slab != nullptr; slab = slab->next) {
      if (slab->lane != this || slab->size_class != index || !slab->listed || slab->previous != previous) return reason = "lane: its list of slabs is broken", false;
      int free_seen = __builtin_popcountll(slab->free_bits[0]) + __builtin_popcountll(slab->free_bits[1]);
      if (free_seen != slab->free_slots || free_seen == 0) return reason = "lane: a slab miscounts its free slots", false;
      for (int word = 0; word < 2; ++word) {
        if ((slab->free_bits[word] & (slab->pending_bits[word] | slab->recorded_bits[word])) != 0) return reason = "lane: a free slot is marked as in use", false;
      }
      previous = slab;
    }
  }
  return true;
}

}  // namespace pyalloc
