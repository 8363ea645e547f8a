// Each block as the bridge allocates and frees it, and everybody who is told of it.
//
// Hot path: one look at what is watched (watch.h), one call of the core, the checks of report.h; while nothing is
// watched, no more. Blocks of foreign allocators are theirs: no history has them.
#pragma once
#include "history.h"
#include "out_of_memory.h"
#include "report.h"
#include "samples.h"

namespace pyalloc_bridge {

inline void note_allocated(const void* pointer, size_t bytes) {
  const uint32_t now = watched.load(std::memory_order_relaxed);
  if ((now & kSamples) != 0) samples.allocated(pointer, bytes);
  if ((now & (kHistory | kTrackers)) == 0) return;
  BlockFacts block{};
  if (!block_at(pointer, block)) return;
  History& history = History::instance();
  history.device(block.owner.device).allocated(block, history.context(RecordContext::STATE));
}

// Where it throws, nobody would have the block.
inline void note_or_free(void* pointer, size_t bytes) {
  try {
    note_allocated(pointer, bytes);
  } catch (...) {
    core->deallocate(pointer, nullptr);
    throw;
  }
}

// A free with its history before and after it. That may fail for want of host memory; the free goes on.
inline pyalloc_status free_told(void* pointer, pyalloc_freed& freed) {
  BlockFacts block{};
  if (!block_at(pointer, block) || block.view.state != PYALLOC_BLOCK_LIVE) return core->deallocate(pointer, &freed);
  History& history = History::instance();
  DeviceHistory& device = history.device(block.owner.device);
  auto logged = [](auto&& tell) {
    try {
      tell();
    } catch (const std::exception& error) {
      log_line("recording a free failed", error.what());
    }
  };
  uint64_t ticket = 0;
  logged([&] { ticket = device.free_requested(block, history.context(RecordContext::ALL)); });
  const pyalloc_status status = core->deallocate(pointer, &freed);
  logged([&] { device.free_done(pointer, ticket); });
  return status;
}

inline pyalloc_status free_watched(void* pointer, pyalloc_freed& freed) {
  const uint32_t now = watched.load(std::memory_order_relaxed);
  if ((now & kSamples) != 0) samples.freed(pointer);
  const pyalloc_status status =
      (now & (kHistory | kTrackers)) != 0 ? free_told(pointer, freed) : core->deallocate(pointer, &freed);
  if (status == PYALLOC_OK && (now & kUncached) != 0) core->trim(freed.device, nullptr);
  return status;
}

inline pyalloc_status free_block(void* pointer) {
  pyalloc_freed freed{};
  pyalloc_status status = PYALLOC_OK;
  if (C10_LIKELY(watched.load(std::memory_order_relaxed) == 0)) {
    status = core->deallocate(pointer, &freed);
  } else {
    if (watches(kForeign) && free_foreign(pointer)) return PYALLOC_OK;
    status = free_watched(pointer, freed);
  }
  if (status == PYALLOC_OK) report_freed(pointer, freed);
  return status;
}

// The deleter of every DataPtr of ours; torch compares it by address. It must not throw: a bad free is counted by the
// core and told once. In the wrong state the process is going down, and there is nothing to tell.
inline void delete_block(void* pointer) noexcept {
  try {
    const pyalloc_status status = free_block(pointer);
    if (C10_LIKELY(status == PYALLOC_OK) || status == PYALLOC_WRONG_STATE) return;
    static std::atomic<bool> told{false};
    if (!told.exchange(true))
      log_line("a tensor's memory could not be freed (told once; see bad_frees)", core->last_error());
  } catch (const std::exception& error) {
    log_line("reporting a free failed", error.what());
  }
}

[[noreturn]] inline void raise_not_allocated(pyalloc_status status, int device, size_t bytes) {
  if (status == PYALLOC_OUT_OF_MEMORY) {
    const std::string message = core->last_error();  // before reporting, which may call the core
    rethrow_observer_error();
    report_out_of_memory(bytes, device);
    TORCH_CHECK_WITH(OutOfMemoryError, false, message);
  }
  TORCH_CHECK(false, core->last_error());
}

// In the pool of the route, else in that of the thread's scope.
inline void* allocate_in_core(const Route* route, c10::DeviceIndex device, Stream stream, size_t bytes) {
  void* pointer = nullptr;
  const pyalloc_status status =
      route != nullptr ? core->allocate_in(device, route->number, stream.handle, stream.flags, bytes, &pointer)
                       : core->allocate(device, stream.handle, stream.flags, bytes, &pointer);
  if (C10_UNLIKELY(status != PYALLOC_OK)) raise_not_allocated(status, device, bytes);
  report_allocated(pointer, device);
  return pointer;
}

inline void* allocate_watched(c10::DeviceIndex device, Stream stream, size_t bytes) {
  std::shared_ptr<const Route> route;
  if (watches(kRoutes)) route = private_pools.route(device, stream.handle);
  if (route != nullptr && route->foreign != nullptr)
    return private_pools.allocate_foreign(*route, stream.handle, bytes);
  void* pointer = allocate_in_core(route.get(), device, stream, bytes);
  note_or_free(pointer, bytes);
  return pointer;
}

inline void* allocate_block(c10::DeviceIndex device, Stream stream, size_t bytes) {
  return C10_LIKELY(watched.load(std::memory_order_relaxed) == 0) ? allocate_in_core(nullptr, device, stream, bytes)
                                                                  : allocate_watched(device, stream, bytes);
}

// Blocks of a private pool that a checkpoint's return has freed and allocated: told afterwards, since nobody else may use
// the pool meanwhile.
inline void note_restored(const std::vector<pyalloc_block_view>& freed,
                          const std::vector<pyalloc_block_view>& allocated) {
  for (const pyalloc_block_view& one : freed) {
    if (watches(kSamples)) samples.freed(one.address);
    BlockFacts block{one, {}};
    if (!watches(kHistory | kTrackers) || core->owner_of(one.address, &block.owner) != PYALLOC_OK) continue;
    History& history = History::instance();
    history.device(block.owner.device).freed(block, history.context(RecordContext::ALL));
  }
  for (const pyalloc_block_view& one : allocated) note_allocated(one.address, one.requested);
}

// The stack that allocated a live block; null when none was kept.
inline Context stack_of(const void* pointer) {
  BlockFacts block{};
  if (!watches(kHistory | kTrackers | kSamples) || !block_at(pointer, block)) return nullptr;
  Context stack;
  if (watches(kHistory | kTrackers)) stack = History::instance().device(block.owner.device).context_of(pointer);
  return stack || !watches(kSamples) ? stack : samples.context_of(block.begin());
}

// torch.cuda.memory._annotate_tensor: text for a block that is live already.
inline void annotate(const void* pointer, const std::string& text) {
  BlockFacts block{};
  const std::optional<TraceEntry::Action> action = annotate_action<TraceEntry>();
  if (!watches(kHistory) || !action || !block_at(pointer, block) || block.view.state != PYALLOC_BLOCK_LIVE) return;
  History& history = History::instance();
  history.device(block.owner.device).annotated(*action, block, text, history.context(RecordContext::ALLOC));
}

}  // namespace pyalloc_bridge
