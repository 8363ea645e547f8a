// A request that the ladder could not serve: why, what each rung gave, and the message a user reads. Made from one
// snapshot of the device, with no lock held.
#pragma once
#include <string>

#include "heap/device_heap.h"

namespace pyalloc {

enum Rung {
#define RUNG(name, what) kRung_##name,
#include "reclaim/rungs.def"
#undef RUNG
  kRungs
};
const char* rung_name(int rung);

// capacity: there is not so much memory. limit: one of ours refused, or a reserve that may not overflow.
// fragmentation: there is enough, but in pieces that cannot move. pinned: there would be, on the device and within its
// limit, with what is set aside (for LoRA adapters, or free in private pools) and waits unused.
enum Reason { kCapacity, kLimit, kFragmentation, kPinned, kReasons };
const char* reason_name(int reason);

enum class Asked { kBlock, kReserve, kWake };  // kReserve: memory beyond lora_reserve, for lora_prepare

struct Refusal {
  Asked asked = Asked::kBlock;
  int64_t unix_ms = 0;
  int device = 0;
  PoolId pool = kGeneralPool;
  uint64_t bytes = 0;
  uint64_t freed[kRungs] = {};  // what the rungs gave, or said that they gave
  Reason reason = kCapacity;
  std::string message;
  uint64_t device_free = 0;
};

// Fills in the last three members of `one`; `why` is what the heap said.
void explain(DeviceHeap& heap, const std::string& why, Refusal& one);

}  // namespace pyalloc
