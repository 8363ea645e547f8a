#include "vm/mapping.h"

#include "driver/driver.h"

namespace pyalloc {
namespace {

// The first placement from `from` on that does not follow on the one before it.
size_t run_end(const Granules& granules, const std::vector<Placement>& placements, size_t from) {
  size_t end = from + 1;
  while (end < placements.size() &&
         placements[end].slot == placements[end - 1].slot + granules.handle(placements[end - 1].handle).granules)
    ++end;
  return end;
}

// Nothing has used these mappings, so they may go at once.
void undo(const AddressSpace& space, const Granules& granules, const std::vector<Placement>& placements, size_t mapped,
          std::vector<Placement>& stuck) {
  for (size_t i = 0; i < mapped; ++i) {
    const Placement& one = placements[i];
    if (driver().unmap(space.address(one.slot), granules.bytes(one.handle)) != cuda::kSuccess) stuck.push_back(one);
  }
}

}  // namespace

Status map_placements(const AddressSpace& space, const Granules& granules, const std::vector<Placement>& placements,
                      const std::vector<cuda::AccessDesc>& access, Counters& counters, std::vector<Placement>& stuck) {
  for (size_t i = 0; i < placements.size(); ++i) {
    const Placement& one = placements[i];
    cuda::Result result =
        driver().map(space.address(one.slot), granules.bytes(one.handle), 0, granules.handle(one.handle).memory, 0);
    if (result != cuda::kSuccess) {
      undo(space, granules, placements, i, stuck);
      return driver_failure("cuMemMap", result, "mapping memory");
    }
    count(counters.num_device_alloc);
  }
  for (size_t i = 0; i < placements.size();) {
    size_t end = run_end(granules, placements, i);
    uint64_t first = space.address(placements[i].slot);
    uint64_t bytes = space.address(placements[end - 1].slot) + granules.bytes(placements[end - 1].handle) - first;
    cuda::Result result = driver().set_access(first, bytes, access.data(), access.size());
    if (result != cuda::kSuccess) {
      undo(space, granules, placements, placements.size(), stuck);
      return driver_failure("cuMemSetAccess", result, "giving access to a mapping");
    }
    count(counters.num_device_alloc);
    count(counters.map_runs);
    i = end;
  }
  return kOk;
}

void undo_placements(const AddressSpace& space, const Granules& granules, const std::vector<Placement>& placements,
                     std::vector<Placement>& stuck) {
  undo(space, granules, placements, placements.size(), stuck);
}

Status unmap_run(const AddressSpace& space, uint32_t first, uint32_t slots, Counters& counters) {
  cuda::Result result = driver().unmap(space.address(first), uint64_t{slots} * space.granule_bytes());
  if (result != cuda::kSuccess) return driver_failure("cuMemUnmap", result, "undoing a mapping");
  count(counters.num_device_free);
  return kOk;
}

}  // namespace pyalloc
