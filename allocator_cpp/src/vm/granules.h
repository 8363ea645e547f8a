// The device's physical memory: one record per handle this heap holds. A handle is one granule, or several that were
// created together and move together: a call costs nearly the same for 2 MiB and for 32, and kernels read memory mapped
// in large pieces faster (on an H200, copies reach 3.1 TB/s over handles of 2 MiB and 4.2 over 32). The driver maps a
// handle whole or not at all. A handle is mapped at one place (the newest; older addresses of it are the stale list of
// Backing), or lies on the shelf, unmapped and ready. A mapped handle that no live block touches is idle, and stands in
// the list of its size by how long it has been so. A handle of several granules is split while a block lies over a part
// of it only: what no live block touches of it then is stranded, for it can serve blocks where it is, but not move.
// A handle of its own (contiguous pools) has any number of granules and serves blocks of just that many where it is; it
// never moves, and idle ones are in a list apart.
//
// A handle of which a block was shared with another process is exported, with a number that no other export has, until
// no live block touches it: for so long it is not idle, and so stays what it is, where it is.
//
// Invariants (validate): every held handle is mapped or on the shelf; `live_slots` is 0 exactly for the idle ones; an
// idle list holds exactly the idle handles of its size, oldest first. Counts are in granules. Guarded by the heap's
// lock; create and release call the driver and need its context current.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bits.h"
#include "base/status.h"
#include "driver/cuda_abi.h"
#include "facts/counters.h"

namespace pyalloc {

using HandleId = uint32_t;  // 0 is none

// Granules a handle may have: powers of two, so that any run of slots is made of few.
constexpr uint32_t kHandleSizes[] = {16, 8, 4, 2, 1};
constexpr int kHandleKinds = 5;
constexpr int kOwnKind = kHandleKinds;  // the list of handles of their own
constexpr int kIdleLists = kHandleKinds + 1;
// The index of the largest size that is at most `granules`, which is not 0.
inline int handle_kind(uint32_t granules) { return granules >= 16 ? 0 : 4 - static_cast<int>(highest_bit(granules)); }
// How many handles of at most `largest` granules, a power of two, a run of so many slots takes.
inline int64_t handles_for(uint32_t granules, uint32_t largest) {
  return granules / largest + __builtin_popcount(granules % largest);
}

// Streams, and the latest position up to which they used something.
struct Uses {
  uint64_t streams = 0, stamp = 0;  // StreamSet
  void add(const Uses& more) {
    streams |= more.streams;
    stamp = std::max(stamp, more.stamp);
  }
};

struct Handle {
  cuda::MemHandle memory = 0;
  Uses uses;               // by those that freed memory in it since it was mapped where it is
  Uses inherited;          // of it at an earlier address, by those that may not be finished
  int64_t idle_since = 0;  // milliseconds
  HandleId older = 0, newer = 0;
  uint32_t slot = 0;        // where its first granule is mapped
  uint32_t granules = 0;    // 0: not held
  uint32_t live_slots = 0;  // slots of it that live blocks touch
  uint32_t stale = 0;       // old mappings that still stand: the driver frees the memory only after them
  uint32_t exported = 0;    // the number of its export; 0: no other process knows it
  uint16_t space = 0;
  bool mapped = false, shelved = false, idle = false, pinned = false, split = false, own = false;
  Uses all_uses() const {
    Uses all = uses;
    all.add(inherited);
    return all;
  }
};

class Granules {
 public:
  Granules(const cuda::AllocationProp& prop, size_t granule_bytes, Counters& counters);

  size_t granule_bytes() const { return granule_bytes_; }
  // What other processes may have handles as; kHandleNone: they may not.
  cuda::HandleType handle_type() const { return prop_.requested_handle_types; }
  size_t bytes(HandleId id) const { return handles_[id].granules * granule_bytes_; }
  // Makes a handle of so many granules (one of kHandleSizes, but for handles of their own); it is neither mapped nor on
  // the shelf until the caller says so. Leaves nothing behind on failure.
  Status create(uint32_t granules, HandleId& made, bool own = false);
  // Gives an unmapped handle back to the driver. False when the driver refused: it lies on the shelf then, to be used
  // or offered again.
  bool release(HandleId id);

  // A handle of at most `most` granules, the larger the better, but none of its own; 0 when there is none.
  HandleId take_from_shelf(uint32_t most);
  // Any that can be released, since no old mapping of it stands.
  HandleId take_settled();
  void take_off_shelf(HandleId id);
  void put_on_shelf(HandleId id);

  void mapped_at(HandleId id, uint16_t space, uint32_t slot, const Uses& inherited);
  void unmapped(HandleId id);
  // A block was put over a part of it; until it is idle again.
  void split(HandleId id);
  // So many slots of the handle got their first live block, or lost their last.
  void slots_live(HandleId id, uint32_t slots);
  void slots_dead(HandleId id, uint32_t slots, int64_t now_ms);
  void add_stale(HandleId id) { ++handles_[id].stale; }
  void remove_stale(HandleId id) { --handles_[id].stale; }
  void used(HandleId id, const Uses& uses) { handles_[id].uses.add(uses); }
  void forget_inherited(HandleId id) { handles_[id].inherited = Uses{}; }
  // Stays mapped where it is, idle or not, while the pool falls asleep or wakes.
  void pin(HandleId id, bool on) { handles_[id].pinned = on; }
  // A block over it is shared with another process; from now on until it is idle.
  void mark_exported(HandleId id);
  // An idle handle is taken off its list to be moved, and put back, as the oldest, when that failed.
  void take_idle(HandleId id);
  void put_idle(HandleId id);

  const Handle& handle(HandleId id) const { return handles_[id]; }
  HandleId oldest_idle(int kind) const { return lists_[kind].oldest; }
  HandleId newer_idle(HandleId id) const { return handles_[id].newer; }

  int64_t held() const { return held_; }
  int64_t idle() const { return idle_; }
  int64_t stranded() const { return stranded_; }
  int64_t in_split() const { return in_split_; }
  int64_t on_shelf() const { return on_shelf_; }
  int64_t exported() const { return exported_; }
  size_t metadata_bytes() const {
    return handles_.capacity() * sizeof(Handle) + (shelf_.capacity() + unused_.capacity()) * sizeof(HandleId);
  }
  bool validate(std::string& reason) const;

 private:
  struct IdleList {
    HandleId oldest = 0, newest = 0;
  };
  static int kind_of(const Handle& one) { return one.own ? kOwnKind : handle_kind(one.granules); }
  IdleList& list_of(const Handle& one) { return lists_[kind_of(one)]; }

  const cuda::AllocationProp prop_;
  const size_t granule_bytes_;
  Counters& counters_;
  std::vector<Handle> handles_;
  std::vector<HandleId> shelf_, unused_;
  IdleList lists_[kIdleLists];
  int64_t held_ = 0, idle_ = 0, stranded_ = 0, in_split_ = 0, on_shelf_ = 0, exported_ = 0;
  uint32_t exports_ = 0;  // numbers given so far
};

// What every cuMemCreate of this project asks for: device memory that can be exported as a file descriptor, and that
// network cards may reach, where the device says that it can do each. What it does not answer it cannot do.
cuda::AllocationProp granule_properties(int device);

}  // namespace pyalloc
