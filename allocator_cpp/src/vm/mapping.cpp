#include "vm/mapping.h"

#include "driver/driver.h"

namespace pyalloc {
namespace {

// Length of the run of neighbouring slots that begins at placement `from`.
size_t run_length(const std::vector<Placement>& placements, size_t from) {
  size_t end = from + 1;
  while (end < placements.size() && placements[end].slot == placements[end - 1].slot + 1) ++end;
  return end - from;
}

// Nothing has used these mappings, so they may go at once.
void undo(const AddressSpace& space, const std::vector<Placement>& placements, size_t mapped,
          std::vector<uint32_t>& stuck) {
  for (size_t i = 0; i < mapped; ++i) {
    if (driver().unmap(space.address(placements[i].slot), space.granule_bytes()) != cuda::kSuccess)
      stuck.push_back(placements[i].slot);
  }
}

}  // namespace

Status map_placements(const AddressSpace& space, const Granules& granules, const std::vector<Placement>& placements,
                      const std::vector<cuda::AccessDesc>& access, Counters& counters, std::vector<uint32_t>& stuck) {
  for (size_t i = 0; i < placements.size(); ++i) {
    cuda::Result result = driver().map(space.address(placements[i].slot), space.granule_bytes(), 0,
                                       granules.granule(placements[i].handle).memory, 0);
    if (result != cuda::kSuccess) {
      undo(space, placements, i, stuck);
      return driver_failure("cuMemMap", result, "mapping a granule");
    }
    count(counters.num_device_alloc);
  }
  for (size_t i = 0; i < placements.size();) {
    size_t run = run_length(placements, i);
    cuda::Result result = driver().set_access(space.address(placements[i].slot), run * space.granule_bytes(),
                                              access.data(), access.size());
    if (result != cuda::kSuccess) {
      undo(space, placements, placements.size(), stuck);
      return driver_failure("cuMemSetAccess", result, "giving access to a mapping");
    }
    count(counters.num_device_alloc);
    count(counters.map_runs);
    i += run;
  }
  return kOk;
}

Status unmap_run(const AddressSpace& space, uint32_t first, uint32_t slots, Counters& counters) {
  cuda::Result result = driver().unmap(space.address(first), uint64_t{slots} * space.granule_bytes());
  if (result != cuda::kSuccess) return driver_failure("cuMemUnmap", result, "undoing a mapping");
  count(counters.num_device_free);
  return kOk;
}

}  // namespace pyalloc
