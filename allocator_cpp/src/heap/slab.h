// One slab: an extent of the fine space cut into slots of one size class, with a bit for each. Slab records are recycled and never
// freed, so that a stale pointer to one can be looked at safely.
// Guarded by its lane's lock.
#pragma once
#include <cstdint>

#include "base/bits.h"
#include "heap/extents.h"
#include "heap/size_class.h"

namespace pyalloc {

class Lane;

struct Slab {
  Lane* lane = nullptr;
  uint64_t base = 0;  // address of slot 0
  NodeId range = kNoNode;
  uint16_t size_class = 0, slots = 0, free_slots = 0;
  bool listed = false;                         // in its lane's list of slabs with free slots
  Slab *previous = nullptr, *next = nullptr;   // in that list; `next` also links unused records
  uint64_t free_bits[2] = {};
  uint64_t pending_bits[2] = {};   // freed, waiting for events
  uint64_t recorded_bits[2] = {};  // also used on other streams
  uint16_t unused_bytes[kSlabSlots] = {};  // class bytes minus requested, of live and pending slots

  size_t slot_bytes() const { return class_bytes(size_class); }
  uint64_t address(unsigned slot) const { return base + slot * slot_bytes(); }
  size_t requested(unsigned slot) const { return slot_bytes() - unused_bytes[slot]; }

  // The slot that starts at `address`, or -1.
  int slot_at(uint64_t address) const {
    uint64_t offset = address - base;
    if (address < base || offset % slot_bytes() != 0 || offset / slot_bytes() >= slots) return -1;
    return static_cast<int>(offset / slot_bytes());
  }
  static bool test(const uint64_t* bits, unsigned slot) { return (bits[slot / 64] >> (slot % 64) & 1) != 0; }
  static void set(uint64_t* bits, unsigned slot) { bits[slot / 64] |= uint64_t{1} << (slot % 64); }
  static void clear(uint64_t* bits, unsigned slot) { bits[slot / 64] &= ~(uint64_t{1} << (slot % 64)); }
  bool live(unsigned slot) const { return !test(free_bits, slot) && !test(pending_bits, slot); }

  // All slots free.
  void reset(Lane* to, uint64_t at, NodeId in, int index) {
    *this = Slab{};
    lane = to;
    base = at;
    range = in;
    size_class = static_cast<uint16_t>(index);
    slots = free_slots = static_cast<uint16_t>(slab_slots(index));
    free_bits[0] = slots >= 64 ? ~uint64_t{0} : (uint64_t{1} << slots) - 1;
    free_bits[1] = slots <= 64 ? 0 : slots == 128 ? ~uint64_t{0} : (uint64_t{1} << (slots - 64)) - 1;
  }
  // Lowest free slot; there is one.
  unsigned take() {
    unsigned slot = free_bits[0] != 0 ? lowest_bit(free_bits[0]) : 64 + lowest_bit(free_bits[1]);
    clear(free_bits, slot);
    --free_slots;
    return slot;
  }
  void give(unsigned slot) {
    set(free_bits, slot);
    ++free_slots;
  }
};

}  // namespace pyalloc
