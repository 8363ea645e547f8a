// One device's heap: its pools (each with a lane for every stream, for blocks up to 1 MiB, and one coarse space for the
// larger blocks of all streams), the streams' clocks and the memory behind it all.
//
// allocate() tries once and never waits on the host: the ladder (reclaim/ladder.h) is what climbs further. A large
// block goes to
//   1 own or clean ranges that need no granule       no driver call
//   2 the same once other streams' finished ranges have become clean
//   3 own or clean ranges, granules from the shelf or created below the budget
//   4 another stream's range, after a wait on the GPU
//   5 own or clean ranges with stolen granules, then granules created up to the limit
// Lanes come here when a granule of theirs becomes used or idle; their spaces have no ranges of other streams, so 2 and
// 4 do not arise.
//
// Locks: a lane's before the heap's. Public calls are made with none held unless they say otherwise.
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/cold.h"
#include "driver/driver.h"
#include "facts/block_counters.h"
#include "facts/counters.h"
#include "facts/event_log.h"
#include "heap/adapter_loads.h"
#include "heap/backing.h"
#include "heap/checkpoint.h"
#include "heap/lane.h"
#include "heap/mapping_news.h"
#include "heap/pool.h"
#include "heap/private_pools.h"
#include "heap/space.h"
#include "heap/survey.h"
#include "stream/stream_clocks.h"
#include "vm/imports.h"

namespace pyalloc {

enum class Check { kOff, kCheap, kFull };

struct HeapOptions {
  double slack = 0.05;
  uint64_t limit = 0;
  double memory_fraction = 1.0;
  bool cross_stream_wait = true;
  bool guard = false;
  uint64_t lora_reserve = 0;
  std::vector<uint64_t> pool_limits;  // by PoolId
  uint64_t kv_large_threshold = 0;    // KV tensors from this size on share slabs of 16 MiB; 0: never
  bool predict_lifetimes = false;
  bool lora_overflow = true;  // what does not fit the reserve goes to the general pool
  bool caching = true;        // off: PYTORCH_NO_CUDA_MEMORY_CACHING
  Check check = Check::kCheap;
};

// Whole handles around a block, as another process may have them (shared_memory.cpp). The fingerprint is of what lies
// there: it changes when a handle does.
struct SharedRange {
  uint64_t address = 0, bytes = 0, fingerprint = 0;
};

class DeviceHeap {
 public:
  // Refuses a device that is known to lack virtual memory management; makes no context.
  static Status check_device(int ordinal);
  // Opens device `ordinal`: its primary context, two reservations; no memory yet.
  static Status open(int ordinal, const HeapOptions& options, MappingObservers& observers,
                     std::unique_ptr<DeviceHeap>& heap);
  ~DeviceHeap();

  int device() const { return device_; }
  bool guarded() const { return guard_; }
  bool predicts() const { return predict_; }
  uint64_t total_bytes() const { return backing_.device_total(); }
  Counters& counters() { return counters_; }

  // One try. PYALLOC_OUT_OF_MEMORY when this heap cannot serve it now without waiting on the host.
  // chosen: somebody meant this pool; else what is expected to die young goes from the general pool to the workspace.
  Status allocate(PoolId pool, bool chosen, cuda::Stream stream, bool owned, size_t bytes, void** pointer) {
    Lane* lane = owned ? seen_lane(pool, stream, false).load(std::memory_order_acquire) : nullptr;
    Status status = lane != nullptr && lane->serves(pool, chosen, stream, bytes)
                        ? lane->allocate(bytes, pointer)
                        : find_and_allocate(pool, chosen, stream, owned, bytes, pointer);
    return __builtin_expect(status == kOk, 1) ? status
                                              : settle_try(status, pool, chosen, stream, owned, bytes, pointer);
  }
  Status deallocate(Space& space, uint64_t address, pyalloc_freed* freed) {
    return space.lane() != nullptr ? space.lane()->deallocate(address, freed)
                                   : deallocate_coarse(space, address, freed);
  }
  Status record_stream(Space& space, uint64_t address, cuda::Stream stream, bool owned);
  // Charges a block that was just handed out to the tag, until it is freed.
  void set_tag(Space& space, uint64_t address, TagId tag);
  // The live or pending block that starts at `address`, or with `inside` contains it; false: there is none. What starts
  // somewhere is found in constant time.
  bool describe(Space& space, uint64_t address, bool inside, pyalloc_block_view& block);
  Status find_block(Space& space, uint64_t address, pyalloc_block_info& info);
  // Blocks straight from cuMemAlloc (caching off) have no space. False when the address is not one.
  bool deallocate_direct(uint64_t address, pyalloc_freed* freed, Status& status);
  bool find_direct(uint64_t address, pyalloc_block_info& info);  // by any address inside
  // Calls `visit(address, bytes, requested, stream)` for each; with the heap's lock held.
  template <class Visit>
  void each_direct(Visit&& visit) const {
    for (const auto& [address, block] : direct_) visit(address, block.bytes, block.requested, block.stream);
  }

  // Rungs and chores; each says what it achieved.
  bool poll_pending();  // frees whose events are complete; true when some were
  void release_empty_slabs();
  bool wait_for_events();        // host waits for every stream's frees; true when something became free
  Status synchronize_context();  // then everything freed before is finished
  // Waits until everything freed so far is finished, as far as that can be had.
  void finish_everything();
  uint64_t trim();                 // all idle memory to the driver, waiting for its streams; bytes
  size_t undo_stale(size_t most);  // old mappings that are due; returns how many are left
  uint64_t decay(int64_t idle_before_ms, size_t most);
  // The high-water of live bytes forgets half of what lies above the present.
  // Undoes what observers had to be told of first, and tells them. True when there was something.
  bool undo_departures();
  // The heap is about to close: tells of every mapping.
  void tell_closing();
  void age_high_water() { block_counters_.decay_high_water(); }
  bool has_chores();

  // The calling thread left its outermost scope of a pool with arenas: a step of those it used last ends.
  void end_step(PoolId pool);
  // Adds to `sizes`, by bytes asked for, how many blocks outlived the step they were allocated in.
  void add_escapes(std::map<uint64_t, int64_t>& sizes);

  // Zeros for a pool that was never used here.
  void get_pool_stats(PoolId id, pyalloc_pool_stats& stats);
  // The whole device, its first `count` pools and its private ones together, all of one moment (ledger.cpp).
  Status get_ledger(pyalloc_ledger& ledger, pyalloc_pool_stats* pools, int count, pyalloc_pool_stats& private_pools);
  // The same without what takes a walk or a driver call (survey.cpp): largest_free, largest_remapped, and of the ledger
  // also free, outside and margin.
  void get_figures(pyalloc_ledger& ledger, std::vector<pyalloc_pool_stats>& pools, pyalloc_pool_stats& private_pools);
  // What can still be had, of a ledger whose other figures are known.
  static int64_t margin_of(const pyalloc_ledger& ledger);
  // What a walk finds out, one space at a time, so that nobody waits for more than one space's.
  void survey(DeviceSurvey& found);
  // What is neither this heap's nor free; asks the driver, with no lock held.
  Status outside_bytes(int64_t& bytes);
  void reset_pool_peak(PoolId id);
  // 0: none. Below what the pool uses already it is refused, naming both.
  Status set_pool_limit(PoolId id, uint64_t bytes);

  // --- private pools (private_pools.h) ---
  // Makes the pool, or counts one use more; `id` is the pool's for allocate().
  Status retain_pool(const PoolKey& key, PoolId& id);
  Status release_pool(const PoolKey& key);
  bool has_pool(PoolId id) const { return id < pool_count() || open_pool(id) != nullptr; }
  int pool_uses(const PoolKey& key);  // 0: no such pool
  Status lend_pool(const PoolKey& key, bool lends);
  // Before a block of pool `id` is allocated for `stream`: if that is being captured, so is the pool from now on.
  void note_capture(PoolId id, cuda::Stream stream);
  // A stream that may be captured soon is known from now on: nothing is unmapped meanwhile.
  Status note_stream(cuda::Stream stream, bool owned);
  // Pools whose free memory may serve others before they are refused.
  std::vector<PoolId> lenders();
  // Gives back what no block of the pool needs, unless graphs may need it; only what is known to be finished. Bytes.
  uint64_t give_back_private(PoolId id);
  uint64_t trim_pool(const PoolKey& key);  // the same after a wait
  std::vector<std::pair<PoolKey, PrivatePool>> private_pools();
  // The pool's live blocks. settled: as a checkpoint, so none may wait for another stream, and the pool is a captured
  // one from now on.
  Status live_blocks(const PoolKey& key, bool settled, Checkpoint& found);
  // Frees every live block of the pool but those of the checkpoint, and allocates those of them that are gone; `live`
  // receives what was live before. Nobody else uses the pool meanwhile.
  Status restore(const Checkpoint& saved, std::vector<SavedBlock>& live);
  PoolKey key_of(const Pool& pool) const;  // with everything locked; (0, 0) for a named pool
  PoolKey find_key(const Pool& pool);      // the same with no lock held

  // Why a block of the lora pool is refused where it may not overflow.
  static constexpr const char* kReserveFull = "the reserve for LoRA adapters has no room for it";
  // Maps `bytes` more for the lora pool, ahead of a load; 0: no more than the reserve. All or nothing; one try.
  Status prepare_lora(uint64_t bytes);
  // The calling thread left its outermost scope of the lora pool: its load has ended, and what was prepared.
  void end_lora_load();

  Status set_fraction(double fraction);
  double fraction() const { return fraction_.load(std::memory_order_relaxed); }
  void set_limit(uint64_t bytes);
  Status enable_peer(int peer);

  // --- sleep (sleep.cpp): one at a time (reclaim/sleep_cycle.h); 1 is undone by back_up, 3 by lie_back ---
  // 1  The pools hand out nothing any more, the device is waited for, and the contents of some are copied to the host.
  Status lie_down(const std::vector<PoolId>& pools, const std::vector<PoolId>& offload, CopyProgress progress);
  void back_up();
  // 2  Their memory goes to the driver, after observers were told; its bytes.
  Status fall_asleep(uint64_t& released);
  // 3  One try: memory is back at the old addresses, with what was copied.
  Status get_up(const std::vector<PoolId>& pools, const CopyProgress& progress);
  void lie_back();
  // 4  The pools hand out blocks again.
  void wake_up();
  uint64_t bytes_asleep(const std::vector<PoolId>& pools);  // that get_up() would need
  Status refuse_asleep(const Pool& pool);                   // with the heap's lock, or a lane's
  // --- memory shared with other processes (shared_memory.cpp) ---
  cuda::HandleType handle_type() const { return backing_.granules().handle_type(); }
  // The range around the live block that holds `address`. Its handles stay where they are until no live block touches
  // them.
  Status share(Space& space, uint64_t address, SharedRange& range);
  // File descriptors, which the caller closes, of up to `most` handles of a range that still stands, from its `from`-th
  // on; `left`: how many come after them.
  struct Exported {
    int descriptor;
    uint64_t bytes;
  };
  Status export_handles(Space& space, const SharedRange& range, uint32_t from, uint32_t most,
                        std::vector<Exported>& exported, uint32_t& left);
  // A handle from a descriptor of another process; release_received() lets it go.
  Status receive_handle(int descriptor, cuda::MemHandle& memory);
  void release_received(const std::vector<ReceivedHandle>& handles);
  Status map_import(const std::vector<ReceivedHandle>& handles, uint64_t& address);
  Status unmap_import(uint64_t address);  // nothing may use it any more
  bool reachable_from(int device);        // whether the device may use our mappings

  void get_stats(pyalloc_device_stats& stats);
  void reset_peak_stats();
  void reset_accumulated_stats();
  uint64_t largest_free();
  bool refused_by_limit() const { return refused_by_limit_.load(std::memory_order_relaxed); }
  // The pool whose limit it was, or kNoPool.
  PoolId refused_by_pool() const { return refused_by_pool_.load(std::memory_order_relaxed); }
  int64_t active_bytes();  // live, or freed and waiting for events
  int64_t idle_bytes();
  bool validate(std::string& reason);

  // Calls `body()` with every lane's and the heap's lock held.
  template <class Body>
  void while_all_locked(Body&& body);
  // Calls `visit(space)` for each space in the same way; for the view.
  template <class Visit>
  void with_everything_locked(Visit&& visit) {
    while_all_locked([&] { each_space(visit); });
  }
  cuda::Stream stream_of(StreamIndex index) const { return clocks_.stream(index); }
  // After fork: forgets everything without a driver call.
  void abandon();

  // A freed block that waits for other streams: a slot or an extent of a lane, or an extent of the coarse space.
  struct PendingFree {
    Space* space = nullptr;
    NodeId range = kNoNode;
    Slab* slab = nullptr;
    unsigned slot = 0;
    Kind kind = kSmall;
    int64_t bytes = 0;
    std::vector<std::pair<StreamIndex, uint64_t>> waits;
  };

  // --- for lanes, called with the lane's lock held ---
  Status make_space(Lane& lane);
  Status place_in_lane(Lane& lane, uint32_t units, uint32_t alignment, RangeState state, uint64_t requested,
                       NodeId& placed);
  Status place_in_lane_at(const SavedBlock& block, RangeState state, NodeId& placed);
  // A block at this address of the space, which must be free (exact_address.cpp).
  Status allocate_at(Space& space, uint64_t address, cuda::Stream stream, bool owned, size_t bytes);
  void uncommit_in_lane(Lane& lane, const Range& range);
  void free_later(PendingFree pending, uint64_t address, cuda::Stream stream);
  Status bad_free(uint64_t address);
  Status too_large();
  void note_alloc(uint64_t address, size_t bytes, cuda::Stream stream) const {
    if (oracle_) driver().oracle_alloc(address, bytes, stream);
  }
  // Whether somebody is to be told of a block, or of what was mapped, before it is handed out.
  bool has_listeners() const { return oracle_ || news_.untold(); }
  // Tells observers of what was mapped, by whichever thread: with no lock held, before a block is handed out.
  void tell_news() {
    if (news_.untold()) tell_mapped();
  }
  void note_free(uint64_t address, size_t bytes, cuda::Stream stream) const {
    if (oracle_) driver().oracle_free(address, bytes, stream);
  }

 private:
  struct Choice {
    NodeId range = kNoNode;
    uint32_t start = 0;
    Backing::Cost cost;
    int64_t score() const { return range == kNoNode ? INT64_MAX : cost.score(); }
  };
  // Memory of a pool that stays mapped also while no block lies in it: every slot of it is touched once more.
  struct Reserve {
    uint64_t offset = 0, bytes = 0;
  };
  struct Direct {
    size_t requested, bytes;
    cuda::Stream stream;
  };
  DeviceHeap(int ordinal, const HeapOptions& options, MappingObservers& observers, cuda::Context context,
             size_t granule_bytes, uint64_t total);
  void open_reserve(uint64_t bytes);
  void keep(Pool& pool, Reserve& which, Reserve now);
  std::vector<Pool*> pools_that(Rest rest);
  std::vector<AddressSpace*> memories_of(const Pool& pool);
  void set_rest(Pool& pool, Rest rest);
  int64_t asleep_granules(const Pool& pool);
  Status finish_all();
  Status try_to_get_up(const std::vector<PoolId>& pools, CopyProgress progress);
  Status set_aside_for_lora(uint64_t bytes);
  Status allocate_adapter(Lane& lane, cuda::Stream stream, bool owned, size_t bytes, void** pointer);
  bool enter_load(const Pool& pool, uint64_t bytes);
  void end_prepared();
  void prepare_again(const Reserve& before, NodeId rest);
  Choice prepared_fit(const Space& space, uint32_t units, StreamIndex stream) const;
  Choice mapped_fit(const Space& space, uint32_t units, StreamIndex stream) const;
  Reserve find_clean(const Space& space, uint64_t from, uint64_t bytes) const;
  Status place_whole(Space& space, uint32_t units, StreamIndex stream, uint64_t requested, NodeId& placed);
  Choice whole_fit(const Space& space, uint32_t units, StreamIndex stream, bool foreign) const;
  Choice unmapped_fit(const Space& space, uint32_t units) const;
  Status place_mapped(Space& space, uint32_t units, StreamIndex stream, uint64_t requested, NodeId& placed);
  void refused_by(PoolId pool, bool by_limit) {
    refused_by_limit_.store(by_limit, std::memory_order_relaxed);
    refused_by_pool_.store(pool, std::memory_order_relaxed);
  }
  Status open_pool(PoolId id, Pool*& opened);
  Status make_pool(PoolId id, Pool*& made);  // with the locks for making lanes and the heap's held, the context current
  void set_limit(Pool& pool, uint64_t bytes) const;
  Pool* open_pool(PoolId id) const { return pools_by_id_[id].load(std::memory_order_acquire); }  // or null

  // departures.cpp
  void tell_mapped();
  // The rest of a try that failed.
  PYALLOC_COLD Status settle_try(Status status, PoolId pool, bool chosen, cuda::Stream stream, bool owned, size_t bytes,
                                 void** pointer);
  Status settle(Status status, const std::function<Status()>& again);
  void tell_unmapping(std::vector<Backing::Stale> leaving);
  // private_pools.cpp
  template <class Visit>
  void each_space_of(Pool& pool, Visit&& visit);
  void keep(Pool& pool);
  void let_go(Pool& pool);
  uint64_t give_back(Pool& pool);
  void mark_captured(Pool& pool);
  void retire_pools();
  Status take_pool_number(Pool*& pool);
  PrivatePool* find_private(const PoolKey& key);
  void observe_private();
  void reset_private(bool peaks);
  Status no_such_pool(const PoolKey& key) const;
  void add_live_blocks(Pool& pool, std::vector<SavedBlock>& blocks, int64_t& waiting);
  Status prepare_to_go_back(const PoolKey& key, const std::vector<SavedBlock>& leaving,
                            const std::vector<SavedBlock>& coming);
  Status place_at(const SavedBlock& block, RangeState state, NodeId& placed);
  Status allocate_coarse_at(const SavedBlock& block);
  bool free_for(Space& space, const SavedBlock& block);

  Status find_and_allocate(PoolId pool, bool chosen, cuda::Stream stream, bool owned, size_t bytes, void** pointer);
  Lane* lane_of(Pool& pool, cuda::Stream stream, bool owned, bool arena);  // null: too many streams
  Status allocate_in(PoolId pool, cuda::Stream stream, bool owned, size_t bytes, void** pointer);
  Status allocate_followed(cuda::Stream stream, bool owned, size_t bytes, void** pointer);
  Status allocate_coarse(Lane& lane, Space& space, size_t bytes, void** pointer, uint64_t birth = 0);
  bool enter_coarse(Space& space, NodeId id, Kind kind, const Usage& usage);
  Status allocate_direct(cuda::Stream stream, size_t bytes, void** pointer);
  Status deallocate_coarse(Space& space, uint64_t address, pyalloc_freed* freed);
  NodeId live_coarse_at(const Space& space, uint64_t address) const;

  // placement.cpp; with the heap's lock held
  Status place(Space& space, uint32_t units, uint32_t alignment, StreamIndex stream, RangeState state,
               uint64_t requested, NodeId& placed);
  void consider(Space& space, uint32_t units, uint32_t alignment, StreamIndex stream, uint16_t owner, Choice& choice);
  void consider_range(Space& space, NodeId id, uint32_t units, uint32_t alignment, StreamIndex stream, Choice& choice);
  Backing::Cost cost_of(const Space& space, uint32_t start, uint32_t units, StreamIndex stream) const;
  void consider_in_order(Space& space, uint32_t units, uint32_t alignment, StreamIndex stream, Choice& choice);
  void consider_fresh_end(Space& space, uint32_t units, uint32_t alignment, StreamIndex stream, Choice& choice);
  Status put(Space& space, const Choice& choice, uint32_t units, StreamIndex stream, RangeState state,
             uint64_t requested, NodeId& placed);
  bool clean_finished(Space& space);
  void release_coarse(Space& space, NodeId id);

  uint64_t block_address(const Space& space, const Range& range) const;  // of a coarse block
  size_t block_bytes(const Range& range) const;
  struct Piece {
    uint64_t offset, bytes;
  };
  Piece committed(const Space& space, uint32_t start, uint32_t units) const;
  Piece committed(const Space& space, const Range& range) const { return committed(space, range.start, range.length); }
  void stamp_recorded(PendingFree& pending, uint64_t address, cuda::Stream home);
  void observe();
  template <class Body>
  uint64_t give_back(EventKind kind, Body&& body);
  template <class Visit>
  void each_space(
      Visit&& visit);  // with every lane's lock held, or the heap's where its lanes' `space()` is all that is read
  size_t metadata_bytes(const Space& space) const;
  uint64_t largest_free_in(const Space& space, bool outside = false) const;
  uint64_t largest_remapped_in(const Space& space, int64_t movable) const;
  void pool_figures(PoolId id, pyalloc_pool_stats& stats);
  Pool* pool_counts(PoolId id, pyalloc_pool_stats& stats);
  enum class Figures { kAtHand, kWithWalks };
  void add_pools(Figures figures, pyalloc_ledger& ledger, pyalloc_pool_stats* pools, int count,
                 pyalloc_pool_stats& private_pools);
  void device_counts(pyalloc_ledger& ledger) const;
  template <class Walk>
  void each_space_alone(Walk&& walk);
  void add_slots(const Space& space, PoolSurvey& pool) const;
  bool in_reserve(const Space& space) const {
    return space.memory().kept || (space.pool().id == PYALLOC_POOL_LORA && lora_reserve_.bytes > 0);
  }
  bool validate_locked(std::string& reason);
  void self_check();

  const int device_;
  const cuda::Context context_;
  const size_t granule_bytes_;
  const bool oracle_, guard_, caching_, lora_overflow_, predict_;
  const bool kv_slabs_;        // else only pools made with slabs have any
  const uint64_t slabs_from_;  // bytes
  const Check check_;

  RankedMutex mutex_{Rank::kHeap};
  Counters counters_;
  BlockCounters block_counters_{mutex_};
  StreamClocks clocks_{counters_};
  MappingNews news_;
  Backing backing_;
  MappedTotals mapped_[kKinds];
  MappedTotals activations_;  // `used` and its peak, of the pools that hold them
  std::deque<Pool> pools_;
  std::atomic<Pool*> pools_by_id_[kPoolIds] = {};  // of pools_
  uint64_t pool_limits_[kMostPools] = {};          // also of pools not yet opened
  std::map<PoolKey, PrivatePool> private_pools_;
  std::vector<PrivatePool*> with_memory_;  // those of them that have a pool
  std::vector<PoolId> retired_pools_;      // numbers of private pools that serve the next ones
  PoolId next_private_pool_ = kMostPools;
  uint64_t pool_lives_ = 0;
  Reserve lora_reserve_, lora_prepared_;  // of the lora pool
  AdapterLoads adapter_loads_;
  NodeId prepared_rest_ = kNoNode;  // where the last block of a prepared load ended; a guess: ranges come and go
  std::deque<Lane> lanes_;
  std::deque<std::unique_ptr<Lifetimes>> lifetimes_;  // by stream
  // By a hash of the pool and the stream, the lane seen there last: the hot path takes no lock to find one. Only of
  // streams that keep their identity.
  static constexpr int kSeenLanesBits = 8;
  std::atomic<Lane*> seen_lanes_[1 << kSeenLanesBits] = {};
  std::atomic<Lane*>& seen_lane(PoolId pool, cuda::Stream stream, bool arena) {
    uint64_t key = (reinterpret_cast<uintptr_t>(stream) >> 4) + pool + (arena ? kPoolIds : 0);
    return seen_lanes_[key * 0x9E3779B97F4A7C15ull >> (64 - kSeenLanesBits)];
  }
  RankedMutex lanes_mutex_{Rank::kMaintenance};                      // for making lanes
  std::unordered_map<uint64_t, std::vector<StreamIndex>> recorded_;  // by address, streams of record_stream
  RankedMutex pending_mutex_{Rank::kPending};                        // one round of poll_pending at a time
  std::vector<PendingFree> pending_;
  std::atomic<size_t> pending_count_{0};  // and those of finishing_
  int64_t finishing_ = 0;                 // taken off the list, not yet free in their lanes
  std::map<uint64_t, Direct> direct_;     // by address
  uint64_t direct_bytes_ = 0;
  Imports imports_;
  std::atomic<size_t> direct_count_{0};
  // Index kKinds is both kinds together. The last two are looked at when somebody reads them.
  History segments_[kKinds + 1], reserved_[kKinds + 1], free_ranges_[kKinds + 1], inactive_bytes_[kKinds + 1];
  std::atomic<double> fraction_;
  std::atomic<bool> refused_by_limit_{false};  // why the last failed try failed
  std::atomic<PoolId> refused_by_pool_{kNoPool};
};

template <class Visit>
void DeviceHeap::each_space(Visit&& visit) {
  for (Lane& lane : lanes_)
    if (lane.space() != nullptr) visit(*lane.space());
  for (Pool& pool : pools_) {
    visit(pool.coarse);
    if (pool.large_pages != nullptr) visit(*pool.large_pages);
  }
}

template <class Visit>
void DeviceHeap::each_space_of(Pool& pool, Visit&& visit) {
  each_space([&](Space& space) {
    if (&space.pool() == &pool) visit(space);
  });
}

template <class Body>
void DeviceHeap::while_all_locked(Body&& body) {
  Lock making(lanes_mutex_);
  for (Lane& lane : lanes_) lane.mutex().lock();
  mutex_.lock();
  body();
  mutex_.unlock();
  for (Lane& lane : lanes_) lane.mutex().unlock();
}

}  // namespace pyalloc
