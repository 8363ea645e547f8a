#include "heap/address_map.h"

namespace pyalloc {

std::atomic<Space*> address_regions[kAddressRegions];

namespace {

template <class Visit>
void each_region(const Space& space, Visit&& visit) {
  uint64_t first = space.memory().base() / AddressSpace::kRegion;
  for (uint64_t region = first; region < first + space.memory().bytes() / AddressSpace::kRegion; ++region)
    if (region < kAddressRegions) visit(address_regions[region]);
}

}  // namespace

void add_to_address_map(Space& space) {
  each_region(space, [&](std::atomic<Space*>& entry) { entry.store(&space, std::memory_order_release); });
}

void remove_from_address_map(const Space& space) {
  each_region(space, [](std::atomic<Space*>& entry) { entry.store(nullptr, std::memory_order_release); });
}

}  // namespace pyalloc
