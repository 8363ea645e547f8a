// Address to space: the top bits of an address index one flat table for the whole process, each entry one 4 GiB region.
// Entries are written once, when a space is created, and cleared when its heap closes; reading takes no lock.
#pragma once
#include <atomic>
#include <cstdint>

#include "heap/space.h"

namespace pyalloc {

void add_to_address_map(Space& space);
void remove_from_address_map(const Space& space);

constexpr uint64_t kAddressRegions = uint64_t{1} << (49 - 32);  // devices address 49 bits
extern std::atomic<Space*> address_regions[kAddressRegions];

// The space that owns `address`, or null.
inline Space* find_space(uint64_t address) {
  uint64_t region = address / AddressSpace::kRegion;
  return region < kAddressRegions ? address_regions[region].load(std::memory_order_acquire) : nullptr;
}

}  // namespace pyalloc
