// Which physical memory stands behind which addresses: the policy between the extents (addresses) and the granules
// (memory).
//
// A slot is backed while a live block touches it; when the last one of a handle goes, the handle stays mapped, idle, and
// may later be
//   - used again in place, when a block is put there: no driver call;
//   - stolen: mapped at the address that needs it; the old mapping goes on the stale list and is undone off the
//     allocation path, once the last use at the old address is finished;
//   - given back to the driver: by trim or decay, or, on the allocation path, to make smaller handles of its memory.
// Missing memory is found in this order: shelf, creating below the budget, stealing the longest idle, breaking up idle
// handles that are too large to be stolen, creating up to the limit. The limit is what the user set. A run of missing
// slots gets the largest handles that fit into it, and the last one, where the addresses behind it were never used, a
// larger one.
//
// The budget is the recent high-water of live bytes and the slack. A handle that lies partly under a block cannot move,
// so idle parts of it are stranded; handles are therefore small on small devices and where little room is left
// (largest_handle), and split handles are at most 7/8 of the limit. Where next to nothing may be lost (no slack, or a
// device with no room for any), memory is tight: every new handle is one granule, and a place that strands little is
// preferred.
//
// Where observers want to hear of an unmapping first, none happens here: old mappings that are due become departures, and
// an idle handle that is given back goes to the shelf, its old mapping a departure. The heap takes them, tells of them
// with no lock held, and comes back to undo them. Until then the memory may serve anyone at another address, as memory
// that was stolen may.
//
// Order of use: a handle remembers which streams freed memory in it (`uses`) and, after a steal, which streams' uses
// at its old address may not be finished (`inherited`). Whoever gets a handle is ordered after both, by completed
// events or by GPU-side waits. Guarded by the heap's lock, with the context current.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "facts/block_counters.h"
#include "heap/mapping_news.h"
#include "heap/sleep.h"
#include "stream/stream_clocks.h"
#include "vm/address_space.h"
#include "vm/granules.h"
#include "vm/mapping.h"

namespace pyalloc {

struct BackingPolicy {
  double slack = 0.05;
  bool cross_stream_wait = true;
  uint64_t limit_bytes = 0;  // 0: none
  double fraction = 1.0;
  uint64_t device_total = 0;
  bool reach_ahead = true;  // handles may be larger than the block for which they are made
};

class Backing {
 public:
  // What a placement would cost: handles to be found, and, while memory is tight, granules of idle handles that it would
  // strand. waits: other streams may have to be waited for. impossible: a slot is stale, or memory there is in use on a
  // stream that `stream` cannot be ordered after.
  struct Cost {
    int64_t missing = 0, handles = 0, stranded = 0;
    bool impossible = false, waits = false;
    // Mapping a handle weighs as much as stranding 8 granules: chosen on the traces of tools/bench.
    int64_t score() const { return impossible ? INT64_MAX : 8 * handles + stranded; }
  };

  // An old mapping that still stands.
  struct Stale {
    AddressSpace* space;
    uint32_t slot, granules;
    HandleId handle;  // 0: the driver refused to undo a mapping that was never used
    Uses uses;
    bool give_back = false;  // the handle goes to the driver then, if it still lies on the shelf
    bool told = false;       // observers know
  };

  Backing(int device, size_t granule_bytes, StreamClocks& clocks, const BlockCounters& blocks, Counters& counters,
          MappingNews& news);

  BackingPolicy& policy() { return policy_; }
  Granules& granules() { return granules_; }
  const Granules& granules() const { return granules_; }
  uint64_t device_total() const { return policy_.device_total; }
  uint16_t next_space() const { return static_cast<uint16_t>(spaces_.size()); }
  // For as long as it is set, placements may split what they like: addresses are running out.
  bool split_freely = false;
  // Set once CUDA graphs may be captured here: from then on nothing is unmapped while a stream is.
  bool captures = false;
  void add_space(AddressSpace& space) { spaces_.push_back(&space); }

  Cost cost(const AddressSpace& space, uint64_t offset, uint64_t bytes, StreamIndex stream) const;
  bool affordable(int64_t missing) const;  // without stealing: shelf, and creating below the budget
  // Whether every stream that had the memory there before, at another address, is done with it.
  bool taken_over(const AddressSpace& space, uint64_t offset, uint64_t bytes) const;

  // Puts memory behind [offset, offset + bytes) of `space` for use on `stream`. All or nothing.
  Status commit(AddressSpace& space, uint64_t offset, uint64_t bytes, StreamIndex stream);
  // The block there is gone; `user` freed it at `position`.
  void uncommit(AddressSpace& space, uint64_t offset, uint64_t bytes, StreamIndex user, uint64_t position);

  // All memory of the space stays in use from now on, also what comes later, whether blocks lie in it or not.
  void keep(AddressSpace& space);
  // No longer; `uses` are those by which memory there may be in use apart from those that were reported block by block.
  void let_go(AddressSpace& space, const Uses& uses);

  // Unmaps stale mappings whose last use is finished; at most `most`. Returns how many are left.
  size_t undo_stale(size_t most);
  // Gives idle granules that were idle before `idle_before_ms`, and the shelf, back to the driver. Returns the bytes.
  uint64_t give_back(int64_t idle_before_ms, size_t most);
  // Gives back what is idle in one space.
  uint64_t give_back(const AddressSpace& space);
  // Puts what is idle in an exact space, and finished, on the shelf, but for handles that [offset, offset + bytes) can
  // use as they are.
  void shelve_around(const AddressSpace& space, uint64_t offset, uint64_t bytes);
  // Lets device `peer` use every mapping, those that stand and those to come.
  Status add_peer(int peer);
  // The devices that may use every mapping: the own one, and its peers.
  const std::vector<cuda::AccessDesc>& access() const { return access_; }
  size_t stale_mappings() const { return stale_.size() + departures_.size() + departing_; }
  bool has_stale() const { return !stale_.empty() || !departures_.empty(); }
  bool has_departures() const { return !departures_.empty(); }
  // Old mappings that are due and wait to be told of, but for those of which it is not yet told that they were made;
  // whoever takes them brings them back to undo().
  std::vector<Stale> take_departures();
  void undo_departures(std::vector<Stale> departures);
  std::vector<Stale> every_mapping() const;  // old and new
  static void sort_by_place(std::vector<Stale>& mappings);
  // Idle granules may be given back only when their streams are done: asks every stream.
  void poll_streams();

  // --- sleep (backing_sleep.cpp); the slots of a sleeping space keep counting blocks ---
  // Whether every handle there is kept from moving and from the driver.
  void hold(const AddressSpace& space, bool on);
  bool has_old_mappings(const AddressSpace& space) const;
  bool has_exported(const AddressSpace& space) const;  // whether another process knows some of its memory
  // Unmaps all memory of the spaces and gives it to the driver; what blocks lie in is added to `sleepers`. All or
  // nothing, but where the driver also refuses to map again what it had just unmapped: that sleeps all the same.
  Status lay_down(const std::vector<AddressSpace*>& spaces, std::vector<Sleeper>& sleepers);
  // Maps memory where it was for those in which blocks still lie, held; `sleepers` is empty then. All or nothing.
  Status get_up(std::vector<Sleeper>& sleepers);

  // Of the last failed commit; a pool's limit is one too.
  bool refused_by_limit() const { return refused_by_limit_ || refused_by_pool_; }
  bool refused_by_pool() const { return refused_by_pool_; }
  uint64_t limit_bytes() const;
  // Unmaps and releases everything (the heap is closing and nothing uses it).
  void close();
  bool validate(std::string& reason) const;

 private:
  enum class Origin : uint8_t { kShelf, kCreated, kStolen };
  struct Found {
    Placement placement;
    Origin origin;
  };
  struct Run {
    uint32_t slot, slots;
  };

  int64_t limit_granules() const;
  int64_t budget_granules(int64_t needed) const;
  bool tight() const;
  bool may_split(int64_t granules) const;
  uint32_t largest_handle() const;
  bool may_unmap() const { return !captures || !clocks_.any_capturing(); }
  // Whether blocks lie there, with nothing behind them.
  static bool asleep(const AddressSpace& space, uint32_t slot) {
    return space.asleep && space.slot(slot).handle == 0 && space.slot(slot).live > 0;
  }
  static bool covers(const AddressSpace& space, uint64_t offset, uint64_t bytes, const Handle& handle);
  bool finished(const Uses& uses) const;
  bool order_after(const AddressSpace& space, StreamIndex stream, const Uses& uses);
  bool could_order(const AddressSpace& space, StreamIndex stream, const Uses& uses) const;
  Status find(const AddressSpace& space, const std::vector<Run>& missing, StreamIndex stream,
              std::vector<Found>& found);
  uint32_t unused_behind(const AddressSpace& space, uint32_t last) const;
  HandleId steal(const AddressSpace& space, uint32_t most, StreamIndex stream, HandleId (&next)[kHandleKinds]);
  Status find_whole(const Run& missing, std::vector<Found>& found);
  int64_t break_up(int64_t wanted, bool singles = false);
  std::vector<HandleId> finished_idle(const AddressSpace& space) const;
  void return_idle(std::vector<HandleId> due, bool to_shelf = false);
  void depart(HandleId id, bool give_back);
  void undo(std::vector<Stale> due);
  std::vector<Placement> placements_in(const AddressSpace& space, uint32_t first, uint32_t end) const;
  void note_stuck(AddressSpace& space, const std::vector<Placement>& stuck);
  void retire(AddressSpace& space, const Placement& placement, int64_t now, std::vector<Sleeper>& sleepers);
  Status create_for(const std::vector<Sleeper>& sleepers, std::vector<HandleId>& made);
  uint64_t live_high_water() const;
  void note_mapped(const AddressSpace& space, const std::vector<Found>& found);
  void put_back(const std::vector<Found>& found);
  void adopt(AddressSpace& space, uint64_t offset, uint64_t bytes, const std::vector<Found>& found);
  void release_touch(AddressSpace& space, uint32_t first, uint32_t last);

  StreamClocks& clocks_;
  const BlockCounters& blocks_;
  Counters& counters_;
  MappingNews& news_;
  BackingPolicy policy_;
  Granules granules_;
  std::vector<AddressSpace*> spaces_;     // by id
  std::vector<cuda::AccessDesc> access_;  // every device that may use our mappings: the own one first
  std::deque<Stale> stale_;               // oldest first
  std::vector<Stale> departures_;
  size_t departing_ = 0;  // taken and not yet back
  int64_t asleep_ = 0;    // granules of all sleepers
  bool refused_by_limit_ = false, refused_by_pool_ = false;
  int64_t full_at_ = INT64_MAX;  // granules held when the driver last had no more
};

}  // namespace pyalloc
