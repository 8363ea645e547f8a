#include "heap/address_map.h"

#include <atomic>

namespace pyalloc {
namespace {

constexpr uint64_t kRegions = uint64_t{1} << (49 - 32);  // devices address 49 bits
std::atomic<Space*> regions[kRegions];

template <class Visit>
void each_region(const Space& space, Visit&& visit) {
  uint64_t first = space.memory().base() / AddressSpace::kRegion;
  for (uint64_t region = first; region < first + space.memory().bytes() / AddressSpace::kRegion; ++region)
    if (region < kRegions) visit(regions[region]);
}

}  // namespace

void add_to_address_map(Space& space) {
  each_region(space, [&](std::atomic<Space*>& entry) { entry.store(&space, std::memory_order_release); });
}

void remove_from_address_map(const Space& space) {
  each_region(space, [](std::atomic<Space*>& entry) { entry.store(nullptr, std::memory_order_release); });
}

Space* find_space(uint64_t address) {
  uint64_t region = address / AddressSpace::kRegion;
  return region < kRegions ? regions[region].load(std::memory_order_acquire) : nullptr;
}

}  // namespace pyalloc
