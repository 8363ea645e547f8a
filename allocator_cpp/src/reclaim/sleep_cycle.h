// Pools of every open device that sleep and wake together: all of them, or everything stays as it was. One at a time in a
// process; no lock is held, so that functions of the user may be called on the way. What wakes climbs the ladder for its
// memory.
#pragma once
#include <atomic>
#include <vector>

#include "reclaim/ladder.h"

namespace pyalloc {

class SleepCycle {
 public:
  using Heaps = std::vector<DeviceHeap*>;
  // Pools that sleep already stay as they are. offload: those whose contents come back; of others what is in memory is
  // lost. released: bytes that the driver got.
  Status sleep(const Heaps& heaps, const std::vector<PoolId>& pools, const std::vector<PoolId>& offload,
               CopyProgress progress, uint64_t& released);
  Status wake(Ladder& ladder, const Heaps& heaps, const std::vector<PoolId>& pools, CopyProgress progress);

 private:
  Status begin();
  std::atomic<bool> busy_{false};
};

}  // namespace pyalloc
