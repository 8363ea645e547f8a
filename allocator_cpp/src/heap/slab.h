// One slab: an extent of a lane's space cut into slots of one size class, with a bit for each. Slab records are
// recycled and never freed, so that a stale pointer to one can be looked at safely. Guarded by its lane's lock.
#pragma once
#include <cstdint>

#include "base/bits.h"
#include "heap/extents.h"
#include "heap/size_class.h"

namespace pyalloc {

struct alignas(64) Slab {
  // The first cache line is all that most frees and allocations read, besides the slot's unused_bytes.
  uint64_t base = 0;  // address of slot 0
  uint64_t free_bits[2] = {};
  uint32_t slot_bytes = 0;
  uint32_t inverse = 0;                       // 2^31 / units of a slot, rounded up: exact for offsets inside a slab
  Slab *previous = nullptr, *next = nullptr;  // in its lane's list of slabs with room; `next` also links unused records
  NodeId range = kNoNode;
  uint16_t size_class = 0, slots = 0, free_slots = 0;
  bool listed = false;
  bool marked = false;  // some slot had a tag or a bit in what follows since the slab was empty

  uint16_t unused_bytes[kSlabSlots] = {};  // slot bytes minus requested, of live and pending slots
  uint64_t pending_bits[2] = {};           // freed, waiting for events
  uint64_t recorded_bits[2] = {};          // also used on other streams
  uint64_t escaped_bits[2] = {};           // in an arena: live slots that outlived the step they were allocated in
  uint16_t tagged_slots = 0;               // live slots that a tag pays for (Space::slot_tag)

  uint64_t address(unsigned slot) const { return base + uint64_t{slot} * slot_bytes; }
  size_t requested(unsigned slot) const { return slot_bytes - unused_bytes[slot]; }

  // The slot that holds `address`, which lies in the slab's extent; it may be `slots`, in the tail that holds none.
  unsigned slot_of(uint64_t address) const { return static_cast<unsigned>((address - base) / kUnit * inverse >> 31); }
  // The slot that starts at `address`, or -1.
  int slot_at(uint64_t address) const {
    unsigned slot = slot_of(address);
    return slot < slots && this->address(slot) == address ? static_cast<int>(slot) : -1;
  }
  static bool test(const uint64_t* bits, unsigned slot) { return (bits[slot / 64] >> (slot % 64) & 1) != 0; }
  static void set(uint64_t* bits, unsigned slot) { bits[slot / 64] |= uint64_t{1} << (slot % 64); }
  static void clear(uint64_t* bits, unsigned slot) { bits[slot / 64] &= ~(uint64_t{1} << (slot % 64)); }
  void mark(uint64_t* bits, unsigned slot) {
    set(bits, slot);
    marked = true;
  }
  bool live(unsigned slot) const { return !test(free_bits, slot) && !(marked && test(pending_bits, slot)); }

  // All slots free.
  void reset(uint64_t at, NodeId in, int index) {
    *this = Slab{};
    base = at;
    range = in;
    size_class = static_cast<uint16_t>(index);
    slot_bytes = static_cast<uint32_t>(class_bytes(index));
    uint64_t units = slot_bytes / kUnit;
    inverse = static_cast<uint32_t>(((uint64_t{1} << 31) + units - 1) / units);
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
    if (++free_slots == slots) marked = false;
  }
};

}  // namespace pyalloc
