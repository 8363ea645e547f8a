// The C ABI of checkpoints (pyalloc.h).
#include "api/registry.h"

using namespace pyalloc;

struct pyalloc_checkpoint {
  int device;
  Checkpoint saved;
};

namespace {

DeviceHeap* open_heap(int device, Status& status) {
  Registry& registry = Registry::instance();
  status = registry.usable();
  if (status == kOk) status = registry.check_device(device);
  if (status != kOk) return nullptr;
  DeviceHeap* heap = registry.open_heap(device);
  if (heap == nullptr)
    status = fail(PYALLOC_INVALID_ARGUMENT, "Could not find the pool: device %d has not been used", device);
  return heap;
}

void tell(const std::vector<SavedBlock>& blocks, void* context, pyalloc_block_fn fn) {
  for (const SavedBlock& one : blocks) {
    pyalloc_block_view view{reinterpret_cast<void*>(one.address),
                            one.allocated,
                            one.requested,
                            PYALLOC_BLOCK_LIVE,
                            one.stream,
                            0};
    if (fn != nullptr) fn(context, &view);
  }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

pyalloc_status pyalloc_private_pool_blocks(int device, pyalloc_pool_key key, void* context, pyalloc_block_fn block) {
  if (block == nullptr) return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_private_pool_blocks: block is null");
  Status status = kOk;
  DeviceHeap* heap = open_heap(device, status);
  if (heap == nullptr) return status;
  Checkpoint live;
  status = heap->live_blocks({key.first, key.second}, false, live);
  if (status == kOk) tell(live.blocks, context, block);
  return status;
}

pyalloc_status pyalloc_checkpoint_take(int device, pyalloc_pool_key key, pyalloc_checkpoint** made) {
  if (made == nullptr) return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_checkpoint_take: made is null");
  Status status = kOk;
  DeviceHeap* heap = open_heap(device, status);
  if (heap == nullptr) return status;
  Checkpoint saved;
  status = heap->live_blocks({key.first, key.second}, true, saved);
  if (status == kOk) *made = new pyalloc_checkpoint{device, std::move(saved)};
  return status;
}

void pyalloc_checkpoint_drop(pyalloc_checkpoint* checkpoint) { delete checkpoint; }

pyalloc_status pyalloc_checkpoint_restore(const pyalloc_checkpoint* checkpoint, void* context, pyalloc_block_fn freed,
                                          pyalloc_block_fn allocated) {
  if (checkpoint == nullptr) return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_checkpoint_restore: checkpoint is null");
  Status status = kOk;
  DeviceHeap* heap = open_heap(checkpoint->device, status);
  if (heap == nullptr) return status;
  std::vector<SavedBlock> live;
  status = heap->restore(checkpoint->saved, live);
  if (status != kOk) return status;
  tell(live, context, freed);
  tell(checkpoint->saved.blocks, context, allocated);
  return kOk;
}

}  // extern "C"
#pragma GCC visibility pop
