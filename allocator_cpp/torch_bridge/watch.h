// What makes the bridge look at blocks at all, as bits of one word, so that the hot path asks one question for all of it.
//
// Any thread reads it, relaxed: who turns something on sees every block from then on that its own thread allocates, and
// those of others soon. A forked child starts with none: it may have inherited locks that nobody holds any more.
#pragma once
#include <pthread.h>

#include <atomic>

#include "core.h"

namespace pyalloc_bridge {

enum Watch : uint32_t {
  kUncached = 1,  // freed memory goes straight back to the driver (torch.cuda.memory.caching_allocator_enable)
  kHistory = 2,   // history.h
  kTrackers = 4,  // history.h
  kSamples = 8,   // samples.h
  kRoutes = 16,   // private_pools.h: some allocations go to private pools
  kForeign = 32,  // private_pools.h: there was a block of a foreign allocator
};

inline std::atomic<uint32_t> watched{0};

inline bool watches(uint32_t any_of) { return (watched.load(std::memory_order_relaxed) & any_of) != 0; }

inline void watch(Watch what, bool on) {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { watched.store(0, std::memory_order_relaxed); });
  (void)registered;
  on ? watched.fetch_or(what) : watched.fetch_and(~static_cast<uint32_t>(what));
}

}  // namespace pyalloc_bridge
