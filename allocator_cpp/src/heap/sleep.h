// What a pool leaves behind while it sleeps: addresses and blocks stay, the memory goes to the driver, and the contents
// to the host where they are to be restored (sleep.cpp says in which steps). Guarded by all locks of the heap together:
// lanes read their own share of it (Lane::hide) under their own.
#pragma once
#include <vector>

#include "vm/address_space.h"
#include "vm/host_copy.h"

namespace pyalloc {

// Only a pool that is awake hands out blocks. Lying down: its contents are being copied, its memory stays where it is;
// asleep: there is no memory; getting up: it is back, its contents are not yet.
enum class Rest : uint8_t { kAwake, kLyingDown, kAsleep, kGettingUp };

// A handle that was there, and is to be there again if a block still lies in it.
struct Sleeper {
  AddressSpace* space;
  uint32_t slot, granules;
  bool split, own;
};

struct Sleep {
  Rest rest = Rest::kAwake;
  std::vector<Sleeper> sleepers;
  HostCopy copy;
};

}  // namespace pyalloc
