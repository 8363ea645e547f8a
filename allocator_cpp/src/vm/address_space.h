// One reservation of addresses, cut into slots of a granule each, and what is mapped where. Base and end lie on 4 GiB
// boundaries, so that the top bits of an address name its space (heap/address_map.h).
//
// A slot is unmapped, mapped (its granule is here), or stale: its granule has moved on but the old mapping still
// stands, and nothing may be mapped here until it is undone. Segments are maximal runs of mapped slots. Guarded by the
// heap's lock, except `live`: in a lane's space it changes under the lane's lock, and from or to 0 under both.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

#include "base/lazy_array.h"
#include "base/status.h"
#include "facts/counters.h"
#include "vm/granules.h"

namespace pyalloc {

struct Slot {
  HandleId handle;  // the handle of which a granule is mapped here; 0: none
  uint32_t live;    // live blocks and slabs that touch the slot
  bool stale;
};

// Sums over the address spaces of one kind or one pool, so that reading them costs nothing.
struct MappedTotals {
  int64_t slots = 0, segments = 0;
  int64_t used = 0, peak_used = 0;  // slots that live blocks touch; of a pool
  int64_t limit = INT64_MAX;        // of `used`
  MappedTotals* group = nullptr;    // of several pools, whose use counts there as well

  void use(int64_t more) {
    used += more;
    if (group != nullptr) group->used += more;
  }
  // After use(), once it is certain.
  void note_peak() {
    peak_used = std::max(peak_used, used);
    if (group != nullptr) group->peak_used = std::max(group->peak_used, group->used);
  }
};

class AddressSpace {
 public:
  static constexpr uint64_t kRegion = uint64_t{4} << 30;

  AddressSpace(uint16_t id, size_t granule_bytes, MappedTotals& of_kind, MappedTotals& of_pool)
      : id_(id), granule_bytes_(granule_bytes), of_kind_(of_kind), of_pool_(of_pool) {}
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  // Reserves about `bytes`; takes less when the driver refuses so much, at least `least`.
  Status reserve(uint64_t bytes, uint64_t least);
  // Returns the reservation; nothing may be mapped in it.
  void free_reservation();
  // Leaves the reservation to the process's end: the driver did not let go of a mapping in it.
  void leave_reservation() { reserved_bytes_ = 0; }

  // Set when one stream alone uses this space: whoever is ordered after an earlier use of a granule then is so for
  // good.
  bool one_stream = false;
  // Set where a block over a granule has memory of one handle (contiguous pools): handles do not reach beyond blocks.
  bool whole_blocks = false;
  // Handles do not reach beyond what was asked for, and the last granule, in which the next block may begin, has one of
  // its own: what is prepared for an adapter goes whole when the adapter does.
  bool exact = false;
  // Every mapped slot is touched once more than blocks do, so that no memory here becomes idle (Backing::keep).
  bool kept = false;
  // Blocks here are used by CUDA graphs, which may be replayed on any stream: memory that comes here must be finished
  // everywhere, since waits on a GPU order only the work enqueued after them.
  bool replayed = false;
  // The pool sleeps: its blocks keep their addresses, with nothing behind them.
  bool asleep = false;
  // Memory comes and goes in slabs of so many slots, from a multiple of it on; no block lies over the border of two.
  uint32_t slab_slots = 1;

  uint16_t id() const { return id_; }
  uint64_t base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  size_t granule_bytes() const { return granule_bytes_; }
  uint32_t slots() const { return static_cast<uint32_t>(bytes_ / granule_bytes_); }
  uint64_t address(uint32_t slot) const { return base_ + uint64_t{slot} * granule_bytes_; }
  uint32_t slot_of(uint64_t address) const { return static_cast<uint32_t>((address - base_) / granule_bytes_); }
  Slot& slot(uint32_t index) { return slots_[index]; }
  const Slot& slot(uint32_t index) const { return slots_[index]; }

  // Books only; the driver has been told (or will be) by mapping.h.
  void set_mapped(uint32_t index, HandleId handle);
  void set_unmapped(uint32_t index);

  MappedTotals& pool_totals() { return of_pool_; }
  int64_t mapped_slots() const { return mapped_; }
  int64_t segments() const { return segments_; }
  uint32_t highest_used() const { return highest_used_; }  // slots from here up were never mapped
  bool validate(const Granules& granules, std::string& reason) const;

 private:
  bool mapped(uint32_t index) const { return slots_[index].handle != 0; }
  // Segments that appear (1), merge (-1) or neither when `index` becomes mapped.
  int segment_change(uint32_t index) const;

  const uint16_t id_;
  const size_t granule_bytes_;
  MappedTotals &of_kind_, &of_pool_;
  uint64_t base_ = 0, bytes_ = 0, reserved_at_ = 0, reserved_bytes_ = 0;
  LazyArray<Slot> slots_;
  int64_t mapped_ = 0, segments_ = 0;
  uint32_t highest_used_ = 0;
};

}  // namespace pyalloc
