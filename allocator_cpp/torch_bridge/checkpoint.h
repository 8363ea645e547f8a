// Torch's graph trees (torch.compile with mode="reduce-overhead"): which blocks of a pool are live, and the way back to
// those that were at a checkpoint, at the same addresses. The core does it; here its answers become torch's types, and
// are told to whoever listens.
#pragma once
#include <exception>
#include <unordered_set>

#include "blocks.h"
#include "private_pools.h"

namespace pyalloc_bridge {

struct SavedPool final : cca::AllocatorState {
  explicit SavedPool(pyalloc_checkpoint* taken) : checkpoint(taken) {}
  SavedPool(const SavedPool&) = delete;
  SavedPool& operator=(const SavedPool&) = delete;
  ~SavedPool() override { core->checkpoint_drop(checkpoint); }
  pyalloc_checkpoint* const checkpoint;
};

inline std::shared_ptr<cca::AllocatorState> take_checkpoint(c10::DeviceIndex device, Pool pool) {
  pyalloc_checkpoint* taken = nullptr;
  check(core->checkpoint_take(device, key_of(pool), &taken));
  return std::make_shared<SavedPool>(taken);
}

// The blocks that the core tells of. An exception may not cross its C frames.
struct BlockList {
  std::vector<pyalloc_block_view> blocks;
  std::exception_ptr error;

  static void add(void* context, const pyalloc_block_view* view) {
    auto* list = static_cast<BlockList*>(context);
    try {
      if (!list->error) list->blocks.push_back(*view);
    } catch (...) {
      list->error = std::current_exception();
    }
  }
};

struct Restored {
  BlockList freed, allocated;
  static void add_freed(void* context, const pyalloc_block_view* view) {
    BlockList::add(&static_cast<Restored*>(context)->freed, view);
  }
  static void add_allocated(void* context, const pyalloc_block_view* view) {
    BlockList::add(&static_cast<Restored*>(context)->allocated, view);
  }
};

// Torch compares each DataPtr's deleter and context with those of the tensors it knows.
inline cca::CheckpointDelta restore_checkpoint(c10::DeviceIndex device,
                                               const std::shared_ptr<cca::AllocatorState>& state,
                                               c10::DeleterFnPtr deleter) {
  const auto* saved = dynamic_cast<const SavedPool*>(state.get());
  TORCH_CHECK(saved != nullptr, "setCheckpointPoolState: the state is not from pyalloc's getCheckpointState");
  Restored restored;
  check(core->checkpoint_restore(saved->checkpoint, &restored, &Restored::add_freed, &Restored::add_allocated));
  for (const std::exception_ptr& error : {restored.freed.error, restored.allocated.error})
    if (error) std::rethrow_exception(error);
  cca::CheckpointDelta delta;
  for (const pyalloc_block_view& one : restored.freed.blocks) delta.ptrs_freed.push_back(one.address);
  for (const pyalloc_block_view& one : restored.allocated.blocks)
    delta.dataptrs_allocd.emplace_back(one.address, one.address, deleter, cuda_device(device));
  if (C10_UNLIKELY(watched.load(std::memory_order_relaxed) != 0))
    note_restored(restored.freed.blocks, restored.allocated.blocks);
  return delta;
}

inline bool only_live(c10::DeviceIndex device, Pool pool, const std::unordered_set<void*>& expected) {
  BlockList live;
  check(core->private_pool_blocks(device, key_of(pool), &live, &BlockList::add));
  if (live.error) std::rethrow_exception(live.error);
  return live.blocks.size() == expected.size() &&
         std::all_of(live.blocks.begin(), live.blocks.end(),
                     [&](const pyalloc_block_view& one) { return expected.count(one.address) != 0; });
}

}  // namespace pyalloc_bridge
