#include "heap/checkpoint.h"

#include <algorithm>

#include "driver/context_scope.h"
#include "heap/device_heap.h"

namespace pyalloc {
namespace {

Status occupied(uint64_t address) {
  return fail(PYALLOC_WRONG_STATE,
              "0x%llx cannot be allocated again: other blocks of the pool lie there; allocate nothing in a pool while "
              "it goes back to a checkpoint",
              static_cast<unsigned long long>(address));
}

Status waits_for_capture(size_t blocks, const PoolKey& key) {
  return fail(PYALLOC_WRONG_STATE,
              "%zu blocks of pool (%llu, %llu) are freed but wait for another stream (record_stream), which is being "
              "captured; end the capture first",
              blocks, static_cast<unsigned long long>(key.first), static_cast<unsigned long long>(key.second));
}

bool by_address(const SavedBlock& a, const SavedBlock& b) { return a.address < b.address; }

// Those of `some` that are not, the same, in `others`; both by address.
std::vector<SavedBlock> without(const std::vector<SavedBlock>& some, const std::vector<SavedBlock>& others) {
  std::vector<SavedBlock> left;
  auto other = others.begin();
  for (const SavedBlock& one : some) {
    while (other != others.end() && other->address < one.address) ++other;
    if (other == others.end() || !one.same_block(*other)) left.push_back(one);
  }
  return left;
}

}  // namespace

// With everything locked. `waiting`: blocks of the pool that wait for other streams.
void DeviceHeap::add_live_blocks(Pool& pool, std::vector<SavedBlock>& blocks, int64_t& waiting) {
  each_space_of(pool, [&](Space& space) {
    for (NodeId id = space.extents().first(); id != kNoNode; id = space.extents().range(id).next) {
      const Range& range = space.extents().range(id);
      uint64_t at = space.address(range);
      waiting += range.state == RangeState::kPending;
      if (range.state == RangeState::kLive) {
        size_t bytes = space.coarse() ? block_bytes(range) : size_t{range.length} * kUnit;
        blocks.push_back({&space, range.start, range.length, -1, space.coarse() ? block_address(space, range) : at,
                          range.requested, bytes, range.owner, clocks_.stream(range.owner)});
      }
      if (range.state != RangeState::kSlab) continue;
      const Slab& slab = *space.slab_at(at);
      for (unsigned slot = 0; slot < slab.slots; ++slot) {
        waiting += Slab::test(slab.pending_bits, slot);
        if (slab.live(slot))
          blocks.push_back({&space, range.start, range.length, slab.size_class, slab.address(slot),
                            slab.requested(slot), slab.slot_bytes, space.lane()->index(), space.lane()->stream()});
      }
    }
  });
  std::sort(blocks.begin(), blocks.end(), by_address);
}

Status DeviceHeap::live_blocks(const PoolKey& key, bool settled, Checkpoint& found) {
  found = {};
  found.key = key;
  int64_t waiting = 0;
  auto look = [&] {
    Status status = kOk;
    while_all_locked([&] {
      PrivatePool* one = find_private(key);
      if (one == nullptr) {
        status = no_such_pool(key);
        return;
      }
      found.blocks.clear();
      waiting = 0;
      found.life = one->life;
      if (one->pool == nullptr) return;
      if (settled) mark_captured(*one->pool);
      add_live_blocks(*one->pool, found.blocks, waiting);
    });
    return status;
  };
  poll_pending();
  Status status = look();
  if (status != kOk || waiting == 0 || !settled) return status;
  wait_for_events();
  status = look();
  if (status != kOk || waiting == 0) return status;
  return waits_for_capture(static_cast<size_t>(waiting), key);
}

// What could refuse half way does so here, or is waited for: a block that leaves was used on a stream that is captured;
// memory that a block comes back to is not known to be finished where it was before.
Status DeviceHeap::prepare_to_go_back(const PoolKey& key, const std::vector<SavedBlock>& leaving,
                                      const std::vector<SavedBlock>& coming) {
  size_t held_up = 0;
  {
    Lock lock(mutex_);
    ContextScope scope(context_);
    for (const SavedBlock& one : leaving) {
      auto found = recorded_.find(one.address);
      if (found == recorded_.end()) continue;
      held_up += std::any_of(found->second.begin(), found->second.end(), [&](StreamIndex stream) {
        return clocks_.owned(stream) ? clocks_.capturing(stream) : clocks_.any_capturing();  // it may be gone
      });
    }
  }
  if (held_up > 0) return waits_for_capture(held_up, key);
  auto finished = [&] {
    Lock lock(mutex_);
    return std::all_of(coming.begin(), coming.end(), [&](const SavedBlock& one) {
      return backing_.taken_over(one.space->memory(), uint64_t{one.start} * kUnit, uint64_t{one.length} * kUnit);
    });
  };
  if (finished()) return kOk;
  wait_for_events();
  return finished() ? kOk : synchronize_context();
}

Status DeviceHeap::restore(const Checkpoint& saved, std::vector<SavedBlock>& live) {
  Checkpoint now;
  {
    Lock lock(mutex_);
    PrivatePool* one = find_private(saved.key);
    if (one != nullptr && one->pool != nullptr && one->pool->sleep.rest != Rest::kAwake)
      return refuse_asleep(*one->pool);
  }
  Status status = live_blocks(saved.key, true, now);
  if (status != kOk) return status;
  if (now.life != saved.life)
    return fail(PYALLOC_WRONG_STATE, "the pool (%llu, %llu) was given up since the checkpoint was taken",
                static_cast<unsigned long long>(saved.key.first), static_cast<unsigned long long>(saved.key.second));
  const std::vector<SavedBlock> leaving = without(now.blocks, saved.blocks);
  status = prepare_to_go_back(saved.key, leaving, without(saved.blocks, now.blocks));
  if (status != kOk) return status;
  live = now.blocks;
  for (const SavedBlock& one : leaving) {
    status = deallocate(*one.space, one.address, nullptr);
    if (status != kOk) return status;
  }
  status = live_blocks(saved.key, true, now);  // frees of recorded blocks wait
  if (status == PYALLOC_WRONG_STATE && synchronize_context() == kOk) status = live_blocks(saved.key, true, now);
  release_empty_slabs();  // slabs of another class may lie where blocks are to be
  for (const SavedBlock& one : without(saved.blocks, now.blocks)) {
    if (status == kOk)
      status = one.space->lane() != nullptr ? one.space->lane()->allocate_at(one) : allocate_coarse_at(one);
  }
  tell_news();
  return status;
}

// Puts an extent at its old place, with the heap's lock held.
Status DeviceHeap::place_at(const SavedBlock& block, RangeState state, NodeId& placed) {
  Space& space = *block.space;
  if (space.pool().sleep.rest != Rest::kAwake) return refuse_asleep(space.pool());
  NodeId id = space.extents().free_range_over(block.start, block.length);
  if (id == kNoNode) return occupied(block.address);
  Choice choice{id, block.start, {}};
  ContextScope scope(context_);
  uint64_t requested = state == RangeState::kLive ? block.requested : 0;
  Status status = put(space, choice, block.length, block.owner, state, requested, placed);
  observe();
  return status;
}

Status DeviceHeap::place_in_lane_at(const SavedBlock& block, RangeState state, NodeId& placed) {
  Lock lock(mutex_);
  return place_at(block, state, placed);
}

Status DeviceHeap::allocate_coarse_at(const SavedBlock& block) {
  bool counted = false;
  Usage usage{1, static_cast<int64_t>(block.allocated), static_cast<int64_t>(block.requested)};
  Kind kind = block.allocated > kMiB ? kLarge : kSmall;
  {
    Lock lock(mutex_);
    NodeId id = kNoNode;
    Status status = place_at(block, RangeState::kLive, id);
    if (status != kOk) return status;
    counted = enter_coarse(*block.space, id, kind, usage);
    self_check();
  }
  if (!counted) block_counters_.settle(&block_counters_.extents(), kind, usage);
  return kOk;
}

Status Lane::allocate_at(const SavedBlock& wanted, bool any_slab) {
  Lock lock(mutex_);
  if (asleep_) return heap_.refuse_asleep(pool_);
  NodeId id = kNoNode;
  SavedBlock block = wanted;
  if (const Slab* over = any_slab ? space_->slab_at(block.address) : nullptr;
      over != nullptr && block.requested <= over->slot_bytes && over->slot_bytes - block.requested <= UINT16_MAX) {
    block.slab_class = over->size_class;
    block.allocated = over->slot_bytes;
  }
  if (block.slab_class < 0) {
    Status status = heap_.place_in_lane_at(block, RangeState::kLive, id);
    if (status != kOk) return status;
    space_->set_start(block.address, id);
    if (block.requested <= kLargestMiddle) count_live(size_class(block.requested), 1);
  } else {
    Slab* slab = space_->slab_at(block.address);
    if (slab == nullptr) {
      Status status = heap_.place_in_lane_at(block, RangeState::kSlab, id);
      if (status != kOk) return status;
      slab = &space_->add_slab(id, block.slab_class);
      list(*slab);
    }
    int slot = slab->slot_at(block.address);
    auto index = static_cast<unsigned>(slot);
    if (slab->size_class != block.slab_class || slot < 0 || !Slab::test(slab->free_bits, index))
      return occupied(block.address);
    Slab::clear(slab->free_bits, index);
    if (--slab->free_slots == 0) unlist(*slab);
    slab->unused_bytes[index] = static_cast<uint16_t>(slab->slot_bytes - block.requested);
    count_live(block.slab_class, 1);
  }
  Usage usage{1, static_cast<int64_t>(block.allocated), static_cast<int64_t>(block.requested)};
  bool counted = counted_.hand_out(usage);
  heap_.note_alloc(block.address, block.allocated, stream_);
  lock.unlock();
  if (!counted) block_counters_.settle(&counters_, kind(), usage);
  return kOk;
}

}  // namespace pyalloc
