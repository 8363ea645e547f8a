// The live blocks of a private pool at one moment, so that they can be had again at the same addresses: what torch's
// graph trees do before they record or replay another branch (getCheckpointState, setCheckpointPoolState).
//
// Only live blocks are remembered: where else memory of the pool is free does not matter to a graph. A pool of which a
// checkpoint was taken is a captured one, so its memory is still where it was, and going back needs no driver call.
#pragma once
#include <vector>

#include "heap/private_pools.h"
#include "stream/stream_clocks.h"

namespace pyalloc {

struct SavedBlock {
  Space* space = nullptr;
  uint32_t start = 0, length = 0;  // of its extent, or of the slab it is a slot of; units
  int slab_class = -1;             // -1: it is an extent
  uint64_t address = 0;
  size_t requested = 0, allocated = 0;
  StreamIndex owner = 0;
  cuda::Stream stream = nullptr;  // the owner's

  bool same_block(const SavedBlock& other) const {
    return address == other.address && requested == other.requested && slab_class == other.slab_class &&
           owner == other.owner;
  }
};

struct Checkpoint {
  PoolKey key;
  uint64_t life = 0;               // PrivatePool::life
  std::vector<SavedBlock> blocks;  // by address
};

}  // namespace pyalloc
