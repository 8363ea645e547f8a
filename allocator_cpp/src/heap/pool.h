// A purpose pool on one device: address space of its own, so that no granule of it is ever under a block of another
// pool. A coarse space holds blocks over 1 MiB of all streams; each stream has a lane for the smaller ones. In the
// packed pools (weights, lora) the coarse space holds blocks of every size. What all pools share is the physical memory
// (Backing): what is idle in one serves the next need of any.
//
// Where `kv_large_threshold` asks for it, KV tensors from there to 16 MiB lie in large pages: a space in which memory comes
// and goes by slabs of 16 MiB, so that what a few of them leave together moves together. So do those of pools made with
// slabs of their own.
//
// A contiguous pool has memory of one handle behind every block, for NCCL, network cards and other processes: blocks of a
// granule and more have a handle of just their granules (contiguous.cpp), smaller ones share granules. It has no lanes.
//
// What is allocated in a scope of the workspace pool lies in an arena of its stream: a lane with blocks of every size.
//
// The lora pool has a reserve (reserve.cpp): mapped memory that is never idle, so that nobody takes it, in which loads
// need no driver call. While there is one, the pool's blocks go nowhere else in it. Loads that are known not to fit it
// (adapter_loads.h) go to the general pool.
//
// Torch's private pools are pools as well, laid out as the general one; what is special about them is in
// private_pools.h.
//
// Pools are made on a device when first used there, and live as long as its heap. Guarded by the heap's lock, but for
// `lanes_by_stream` (the lock for making lanes) and what never changes.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "facts/usage.h"
#include "heap/pool_names.h"
#include "heap/sleep.h"
#include "heap/space.h"
#include "pyalloc/pyalloc.h"

namespace pyalloc {

class Lane;

// What is neither kept for long nor sized ahead of time: all but weights, kv, lora, and pools that are packed or
// have slabs as they do.
inline bool holds_activations(const PoolPolicy& policy) { return !policy.packed && policy.slab_bytes == 0; }

struct Pool {
  Pool(DeviceHeap& heap, PoolId number, Layout layout, uint16_t space_id, size_t granule_bytes,
       MappedTotals (&of_kinds)[kKinds])
      : id(number),
        policy(pool_policy(number)),
        coarse(heap, *this, nullptr, layout, space_id, granule_bytes, of_kinds, mapped) {}

  const PoolId id;
  const PoolPolicy policy;
  MappedTotals mapped;  // of all its spaces, and its limit
  Space coarse;
  std::unique_ptr<Space> large_pages;  // where the policy has slabs, or is contiguous
  std::vector<Lane*> lanes_by_stream, arenas_by_stream;
  std::atomic<bool> captured{false};  // a private pool in which a CUDA graph was captured; set once in its life
  int64_t handed_out_coarse = 0;      // bytes asked for, ever
  Usage live_coarse;                  // blocks of the spaces without a lane
  Sleep sleep;
};

}  // namespace pyalloc
