// The process's pools: their names, and how each lays out its blocks. Five exist from the start; others are added and
// never removed or changed, so what is read stays valid. Guarded by a lock of its own; finding and reading takes none.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/ranked_mutex.h"
#include "base/status.h"

namespace pyalloc {

using PoolId = uint16_t;
constexpr PoolId kGeneralPool = 0;
constexpr PoolId kMostPools = 64;  // in a process; the ids above are private pools' (private_pools.h)
constexpr PoolId kNoPool = UINT16_MAX;

struct PoolPolicy {
  bool packed = false;      // blocks of every size end to end in one space (weights, lora)
  bool arena = false;       // scopes are steps, each stream's in an arena of its own (workspace)
  bool contiguous = false;  // every block in memory of one handle
  size_t slab_bytes = 0;    // blocks from kv_large_threshold to this size share slabs of it (kv); 0: none do
  bool own_slabs = false;   // its maker asked for them: also while kv_large_threshold is 0
};

// Finds the pool named `name`; makes it where `create` says so. Refuses names that could not stand in a configuration.
Status find_pool(const char* name, bool create, PoolId& id);
PoolId pool_count();
RankedMutex& names_mutex();        // for a fork
const char* pool_name(PoolId id);  // null: there is none; "private" for every private pool
const PoolPolicy& pool_policy(PoolId id);
constexpr PoolId kMostPrivatePools = 4096;  // on a device at one time
constexpr PoolId kPoolIds = kMostPools + kMostPrivatePools;
constexpr PoolId kPrivatePools = kNoPool - 1;  // all of them, where pools are named
inline bool is_private(PoolId id) { return id >= kMostPools && id < kPoolIds; }

// Finds the pool or makes it, with the layout of pool `like` but slabs of `slab_bytes`. kNoPool: any layout; kAsLike: the
// slabs of `like`; contiguous: its own layout, whatever `like` has. Refused where the pool exists with another layout.
constexpr uint64_t kAsLike = UINT64_MAX;
Status create_pool(const char* name, PoolId like, uint64_t slab_bytes, bool contiguous, PoolId& id);

}  // namespace pyalloc
