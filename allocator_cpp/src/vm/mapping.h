// Mapping granules and giving access as one operation: all of them, or none and nothing left behind.
// Called by Backing with the heap's lock held and the context current.
#pragma once
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "vm/address_space.h"

namespace pyalloc {

struct Placement {
  uint32_t slot;
  HandleId handle;
};

// Maps every placement (in rising order of slots) and gives every device of `access` its access, one cuMemSetAccess a
// contiguous run. Changes no books. On failure every mapping is undone; `stuck` receives the slots where the driver
// refused even that, whose addresses stay mapped.
Status map_placements(const AddressSpace& space, const Granules& granules, const std::vector<Placement>& placements,
                      const std::vector<cuda::AccessDesc>& access, Counters& counters, std::vector<Placement>& stuck);

// Undoes mappings that nothing has used; `stuck` as above.
void undo_placements(const AddressSpace& space, const Granules& granules, const std::vector<Placement>& placements,
                     std::vector<Placement>& stuck);

// Unmaps `slots` mapped slots from `first` with one call.
Status unmap_run(const AddressSpace& space, uint32_t first, uint32_t slots, Counters& counters);

}  // namespace pyalloc
