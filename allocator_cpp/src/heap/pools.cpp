// A heap's pools, made where they are first used, their lanes, and the steps of the workspace pool's arenas.
#include <algorithm>

#include "driver/context_scope.h"
#include "heap/address_map.h"
#include "heap/device_heap.h"

namespace pyalloc {
namespace {

constexpr uint64_t kAddressesPerByte = 16;     // addresses of the general pool's coarse space per byte of device memory
constexpr uint64_t kPoolAddressesPerByte = 4;  // and of each other pool's
constexpr uint64_t kLaneAddressesPerByte = 2;  // and of each lane's
// Private pools may be many, and their memory moves little.
constexpr uint64_t kPrivateAddressesPerByte = 2, kPrivateLaneAddressesPerByte = 1;
constexpr uint64_t kFewestAddresses = 16 * kGiB;

}  // namespace

// Finds the pool, or makes it.
Status DeviceHeap::open_pool(PoolId id, Pool*& opened) {
  PYALLOC_ASSERT(id < kPoolIds);
  if ((opened = open_pool(id)) != nullptr) return kOk;
  Lock making(lanes_mutex_);
  Lock lock(mutex_);
  if ((opened = open_pool(id)) != nullptr) return kOk;
  ContextScope scope(context_);
  return make_pool(id, opened);
}

Status DeviceHeap::make_pool(PoolId id, Pool*& made) {
  const PoolPolicy& policy = pool_policy(id);
  bool contiguous = policy.contiguous && !guard_;
  Layout layout = contiguous ? Layout::kWhole : policy.packed ? Layout::kPacked : Layout::kCoarse;
  Pool& pool = pools_.emplace_back(*this, id, layout, backing_.next_space(), granule_bytes_, mapped_);
  uint64_t per_byte = id == kGeneralPool ? kAddressesPerByte
                      : is_private(id)   ? kPrivateAddressesPerByte
                                         : kPoolAddressesPerByte;
  uint64_t wanted = std::max(kFewestAddresses, per_byte * total_bytes());
  Status status = pool.coarse.create(wanted, total_bytes());
  size_t slab = policy.slab_bytes;
  bool wanted_slabs = policy.own_slabs || kv_slabs_;
  bool large_pages = wanted_slabs && slab > 0 && slab % granule_bytes_ == 0 && !guard_;
  if (status == kOk && (large_pages || contiguous)) {
    if (contiguous) slab = granule_bytes_;
    auto number = static_cast<uint16_t>(backing_.next_space() + 1);
    pool.large_pages = std::make_unique<Space>(*this, pool, nullptr, contiguous ? Layout::kShared : Layout::kLargePages,
                                               number, granule_bytes_, mapped_, pool.mapped);
    pool.large_pages->memory().slab_slots = static_cast<uint32_t>(slab / granule_bytes_);
    status = pool.large_pages->create(wanted, total_bytes());
    if (status != kOk) pool.coarse.memory().free_reservation();
  }
  if (status != kOk) {
    pools_.pop_back();
    return status;
  }
  set_limit(pool, is_private(id) ? 0 : pool_limits_[id]);
  if (holds_activations(pool.policy)) pool.mapped.group = &activations_;
  for (Space* space : {&pool.coarse, pool.large_pages.get()}) {
    if (space == nullptr) continue;
    space->memory().whole_blocks = contiguous;
    backing_.add_space(space->memory());
    add_to_address_map(*space);
  }
  made = &pool;
  pools_by_id_[id].store(made, std::memory_order_release);
  return kOk;
}

Lane* DeviceHeap::lane_of(Pool& pool, cuda::Stream stream, bool owned, bool arena) {
  owned = owned || reinterpret_cast<uintptr_t>(stream) <= 2;
  std::atomic<Lane*>& seen = seen_lane(pool.id, stream, arena);
  if (Lane* lane = seen.load(std::memory_order_acquire);
      owned && lane != nullptr && lane->stream() == stream && &lane->pool() == &pool && lane->arena() == arena)
    return lane;
  Lock making(lanes_mutex_);
  StreamIndex index = 0;
  {
    Lock lock(mutex_);
    index = clocks_.index_of(stream, owned);
    while (lifetimes_.size() <= index) lifetimes_.push_back(std::make_unique<Lifetimes>());
  }
  if (index == 0) {
    fail(PYALLOC_INVALID_ARGUMENT, "more than 65,535 streams on device %d; reuse streams instead of creating new ones",
         device_);
    return nullptr;
  }
  std::vector<Lane*>& by_stream = arena ? pool.arenas_by_stream : pool.lanes_by_stream;
  if (by_stream.size() <= index) by_stream.resize(index + size_t{1});
  Lane*& lane = by_stream[index];
  if (lane == nullptr) {
    lane = &lanes_.emplace_back(*this, pool, block_counters_, stream, index, owned, arena);
    lane->lifetimes = lifetimes_[index].get();
    lane->hide(pool.sleep.rest != Rest::kAwake);
  }
  if (owned) seen.store(lane, std::memory_order_release);
  return lane;
}

Status DeviceHeap::make_space(Lane& lane) {
  Lock lock(mutex_);
  ContextScope scope(context_);
  auto space = std::make_unique<Space>(*this, lane.pool(), &lane, lane.arena() ? Layout::kArena : Layout::kLane,
                                       backing_.next_space(), granule_bytes_, mapped_, lane.pool().mapped);
  uint64_t per_byte = lane.arena()                 ? kPoolAddressesPerByte
                      : is_private(lane.pool().id) ? kPrivateLaneAddressesPerByte
                                                   : kLaneAddressesPerByte;
  Status status = space->create(std::max(kFewestAddresses, per_byte * total_bytes()), kFewestAddresses / 4);
  if (status != kOk) return status;
  space->memory().one_stream = true;
  space->memory().kept = lane.pool().coarse.memory().kept;
  space->memory().replayed = lane.pool().captured;
  backing_.add_space(space->memory());
  add_to_address_map(*space);
  lane.set_space(std::move(space));
  return kOk;
}

void DeviceHeap::end_step(PoolId id) {
  Pool* pool = open_pool(id);
  if (pool == nullptr) return;
  std::vector<Lane*> arenas;
  {
    Lock making(lanes_mutex_);
    arenas = pool->arenas_by_stream;
  }
  for (Lane* arena : arenas)
    if (arena != nullptr) arena->end_step();
}

void DeviceHeap::add_escapes(std::map<uint64_t, int64_t>& sizes) {
  std::vector<Lane*> lanes;
  {
    Lock making(lanes_mutex_);
    for (Lane& lane : lanes_)
      if (lane.arena()) lanes.push_back(&lane);
  }
  for (Lane* lane : lanes) lane->add_escapes(sizes);
}

}  // namespace pyalloc
