// The blocks up to 1 MiB of one stream, in address space of the lane's own, so that streams share no lock here.
//
// Up to 16 KiB: slots of slabs. Allocation takes the lowest free bit of the first slab with room, a free sets it again:
// no driver call, no event, no search. A slab that becomes empty stays as its class's spare if it is the only one with
// room; else its extent is freed. Up to 256 KiB: slots as well, while the class has at least a few slabs' worth of live
// blocks; a class in little use would waste most of a slab. Otherwise extents. One whose granules are already under
// live blocks is found in constant time and touches nothing shared; only when a granule becomes used or idle is the
// heap asked. Memory freed here is used again here at once, in stream order, so free ranges are all clean.
//
// An arena is the lane of what a stream allocates in scopes of the workspace pool, or of one like it. It has blocks of
// every size, end to end, placed by their order and sizes alone: a step (one scope) that finds the arena empty and asks
// for the same sizes in the same order as the last gets the same addresses, but where a block waits for another stream
// or an old mapping still stands. What is live when a step ends has escaped: it stays valid, and is counted by its size.
//
// One lock a lane (lane.cpp, lane_extents.cpp hold it; the heap's is taken inside it). Lanes live as long as their
// heap.
#pragma once
#include <map>
#include <memory>
#include <string>

#include "base/cold.h"
#include "facts/block_counters.h"
#include "heap/lifetimes.h"
#include "heap/pool.h"
#include "heap/slab.h"
#include "heap/space.h"
#include "stream/stream_clocks.h"

namespace pyalloc {

class DeviceHeap;
struct SavedBlock;

class alignas(kOwnLines) Lane {
 public:
  Lane(DeviceHeap& heap, Pool& pool, BlockCounters& counters, cuda::Stream stream, StreamIndex index, bool owned,
       bool arena);

  // birth: of a block whose death is to be remembered (lifetimes.h); 0 of others. With no lock held: observers know of
  // the memory when it returns.
  Status allocate(size_t bytes, void** pointer, uint64_t birth = 0);  // bytes: from 1; to kLargestFine, but in an arena
  Status deallocate(uint64_t address, pyalloc_freed* freed);
  // At its old place, which is free (checkpoint.cpp).
  // any_slab: a slab over the address may be of any class that the block fits in.
  Status allocate_at(const SavedBlock& block, bool any_slab = false);
  // The block is also used on another stream; its free will wait for that one.
  bool mark_recorded(uint64_t address);
  // The events of a pending slot or extent are complete.
  void finish_pending(Slab* slab, unsigned slot, NodeId range);
  // The live or pending block that starts at `address`, or with `inside` contains it; false: there is none.
  bool describe(uint64_t address, bool inside, pyalloc_block_view& block);
  void release_empty_slabs();
  // The calling thread's step is over. Nothing happens where another thread allocated last.
  void end_step();
  // Charges a block that was just handed out to the tag.
  void set_tag(uint64_t address, TagId tag);
  // What its stream's blocks without a scope were like; shared with the stream's lane of the workspace pool.
  Lifetimes* lifetimes = nullptr;
  void add_escapes(std::map<uint64_t, int64_t>& sizes);
  // Whether the pool sleeps: slabs with room are out of reach then. With the lane's lock held.
  void hide(bool asleep);

  // Whether a request is one for allocate() with nothing else to decide. chosen: as for DeviceHeap::allocate.
  bool serves(PoolId pool, bool chosen, cuda::Stream stream, size_t bytes) const {
    return bytes <= (chosen ? serves_bytes_ : serves_unchosen_) && stream_ == stream && pool_id_ == pool;
  }

  RankedMutex& mutex() { return mutex_; }
  Pool& pool() const { return pool_; }
  StreamIndex index() const { return index_; }
  bool arena() const { return arena_; }
  // What is live in it; with the lane's lock held.
  Usage live() const { return counted_.live(); }
  Usage handed_out() const { return counted_.handed_out; }  // ever
  cuda::Stream stream() const { return stream_; }
  // Null before the first block. Changes once, under the lane's and the heap's lock.
  Space* space() const { return space_.get(); }
  void set_space(std::unique_ptr<Space> space) { space_ = std::move(space); }
  // With the lane's lock held.
  bool validate(std::string& reason);
  size_t metadata_bytes() const {
    return sizeof *this + (space_ != nullptr ? space_->slab_records() * sizeof(Slab) : 0);
  }

 private:
  Kind kind() const { return arena_ ? kLarge : kSmall; }
  Status allocate_slot(int size_class, size_t bytes, void** pointer);
  Status deallocate_slot(Slab& slab, uint64_t address, pyalloc_freed* freed);
  PYALLOC_COLD bool settle_marks(Slab& slab, unsigned slot, const Usage& usage);
  void slot_became_free(Slab& slab, unsigned slot);
  // The rest of an allocation that is not yet counted, or that somebody is to be told of; with no lock held.
  PYALLOC_COLD void tell_hand_out(uint64_t address, const Usage& usage, bool counted);
  void list(Slab& slab);
  void unlist(Slab& slab);
  PYALLOC_COLD Status make_room(int size_class);
  Status add_slab(int size_class);
  void free_slab(Slab& slab);
  void free_empty_slabs();
  void escape(uint64_t bytes);

  static constexpr size_t kMostEscapeSizes = 256;
  static thread_local const char this_thread;  // its address says which thread it is
  static constexpr int kSlabsFrom = 2;         // slabs' worth of live blocks from which a middle class has slabs
  void count_live(int size_class, int by) {
    __atomic_store_n(&live_[size_class], live_[size_class] + by, __ATOMIC_RELAXED);
  }
  void forget_extent(const Range& range);

  Status allocate_extent(size_t bytes, void** pointer, uint64_t birth);
  Status deallocate_extent(uint64_t address, pyalloc_freed* freed);
  Status take_extent(uint32_t units, uint32_t alignment, RangeState state, uint64_t requested, NodeId& taken);
  void give_extent(NodeId id);
  NodeId live_extent_at(uint64_t address) const;
  bool all_slots_live(uint32_t start, uint32_t units, uint32_t least) const;

  DeviceHeap& heap_;
  Pool& pool_;
  BlockCounters& block_counters_;
  const cuda::Stream stream_;
  const size_t serves_bytes_, serves_unchosen_;
  const PoolId pool_id_;
  const StreamIndex index_;
  const bool owned_, arena_;
  RankedMutex mutex_{Rank::kLane};
  BlockCounters::Lane& counters_;
  LaneCounters& counted_;               // those of its kind
  Slab* with_room_[kSizeClasses] = {};  // all null while asleep, and the lists in hidden_
  Slab* hidden_[kSizeClasses] = {};
  Slab** heads_ = with_room_;  // where the lists are
  bool asleep_ = false;
  bool keeps_spares_;  // empty slabs, one a class: not for a stream that may be destroyed, whose event must be recorded
                       // at once, nor while asleep
  int live_[kSizeClasses] = {};  // live blocks that are, or could be, slots of the class
  std::unique_ptr<Space> space_;
  const void* user_ = nullptr;  // arena: the thread that allocated last
  int64_t escaped_live_ = 0;
  std::map<uint64_t, int64_t>
      escapes_;  // by bytes asked for, since the beginning; sizes from the 256th on together, as 0
};

}  // namespace pyalloc
