// For tests of pools that sleep: the two calls, and blocks of every layout that know what they hold.
#pragma once
#include <vector>

#include "pools.h"

namespace test {

inline constexpr int kWeights = PYALLOC_POOL_WEIGHTS, kKv = PYALLOC_POOL_KV, kGeneral = PYALLOC_POOL_GENERAL;

struct Seen {
  int calls = 0;
  uint64_t done = 0, total = 0;
  static void hear(void* context, int, uint64_t done, uint64_t total) {
    auto& self = *static_cast<Seen*>(context);
    ++self.calls;
    CHECK(done > self.done || total != self.total);
    self.done = done;
    self.total = total;
  }
};

inline pyalloc_status sleep(const std::vector<int>& pools, const std::vector<int>& offload = {},
                            uint64_t* released = nullptr, Seen* seen = nullptr) {
  std::vector<int> flags;
  for (int pool : pools) {
    bool wanted = false;
    for (int one : offload) wanted |= one == pool;
    flags.push_back(wanted ? 1 : 0);
  }
  return pyalloc_sleep(pools.data(), flags.data(), static_cast<int>(pools.size()),
                       seen != nullptr ? &Seen::hear : nullptr, seen, released);
}

inline pyalloc_status wake(const std::vector<int>& pools, Seen* seen = nullptr) {
  return pyalloc_wake(pools.data(), static_cast<int>(pools.size()), seen != nullptr ? &Seen::hear : nullptr, seen);
}

inline bool unmapped(const void* at) {
  uint8_t byte = 0;
  return simgpu_read(address(at), &byte, 1) != 0;
}

struct Block {
  void* at;
  size_t bytes;
  uint8_t value;
};

// Blocks of every layout in a pool: slots, extents, large ones, some freed again, so that handles are split.
inline std::vector<Block> furnish(int pool, void* stream, uint64_t seed) {
  Random random(seed);
  std::vector<Block> blocks;
  for (int i = 0; i < 60; ++i) {
    size_t bytes = i % 3 == 0   ? 1 + random.below(3000)
                   : i % 3 == 1 ? 1 + random.below(900 * kKiB)
                                : random.bytes(9 * kMiB);
    Block one{in_pool(pool, bytes, stream), bytes, static_cast<uint8_t>(seed * 50 + static_cast<uint64_t>(i))};
    CHECK(one.at != nullptr && fill(stream, one.at, bytes, one.value));
    blocks.push_back(one);
  }
  for (size_t i = 0; i < blocks.size(); i += 2) {
    deallocate(blocks[i].at);
    blocks[i] = blocks.back();
    blocks.pop_back();
  }
  return blocks;
}

inline bool intact(const std::vector<Block>& blocks) {
  for (const Block& one : blocks)
    if (!holds(one.at, one.bytes, one.value)) return false;
  return true;
}

inline void free_all(std::vector<Block>& blocks) {
  for (const Block& one : blocks) CHECK_EQ(deallocate(one.at), PYALLOC_OK);
  blocks.clear();
}

}  // namespace test
