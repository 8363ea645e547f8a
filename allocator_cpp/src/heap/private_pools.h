// Torch's private pools on one device: those of MemPool and of CUDA graphs. Torch names one by a pair of numbers and
// counts its uses.
//
// While it is in use (uses > 0) its memory is kept: blocks or not, it stays where it is mapped, and no other pool gets
// any of it. A pool in which a graph was captured keeps it whatever happens, since replays use addresses that no live
// block covers any more; any other may give what no block needs back to the driver, when memory runs out for itself or
// somebody asks (trim_pool). Once nobody uses the pool, what is idle is like any idle memory, but for a captured pool
// only after a wait for the whole device: nobody tells when a replay ends. Live blocks stay valid and are freed by
// address.
//
// Memory that comes to a captured pool is finished on every stream: a wait on the GPU orders what is enqueued after it,
// not what a replay enqueues elsewhere. For the same reason streams do not share free ranges there.
//
// Numbers: a pool without uses and memory is retired, and its number, with its address space and lanes, serves the next
// new pool. So the hot path finds the lanes of private pools as those of named ones, and a program may make pools for
// ever. Guarded by the heap's lock; keeping and letting go touch slots of lanes as well, and take every lock.
#pragma once
#include <cstdint>
#include <utility>

#include "facts/block_counters.h"
#include "heap/pool.h"

namespace pyalloc {

using PoolKey = std::pair<uint64_t, uint64_t>;  // torch's MempoolId_t

struct PrivatePool {
  Pool* pool = nullptr;  // null: retired, or caching is off
  int uses = 0;
  bool lends = false;            // its free memory serves other pools before they are refused (use_on_oom)
  uint64_t life = 0;             // another number each time it is used anew
  History reserved[kKinds + 1];  // bytes; kept after the pool is gone, as torch does, until statistics are reset
};

}  // namespace pyalloc
