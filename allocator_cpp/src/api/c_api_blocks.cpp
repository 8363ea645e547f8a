// The C ABI's calls about one address: checks arguments and asks the heap whose address space it is.
#include "api/registry.h"
#include "heap/address_map.h"
#include "pyalloc/pyalloc.h"

using namespace pyalloc;

namespace {

Space* space_of(uint64_t address) {
  Space* space = find_space(address);
  return space != nullptr && space->contains(address) ? space : nullptr;
}

void describe(Space& space, pyalloc_owner& owner) {
  const auto [first, second] = space.heap().find_key(space.pool());
  owner = {space.heap().device(), space.pool().id, {first, second}, space.lane() ? space.lane()->stream() : nullptr};
}

// The block of memory straight from the driver (caching off) that starts at `address`.
bool direct_at(uint64_t address, pyalloc_block_view& block, pyalloc_owner& owner) {
  for (DeviceHeap* heap : Registry::instance().open_heaps()) {
    pyalloc_block_info info{};
    if (!heap->find_direct(address, info) || reinterpret_cast<uint64_t>(info.block) != address) continue;
    block = {info.block, info.allocated, info.requested, PYALLOC_BLOCK_LIVE, info.stream, 0};
    owner = {heap->device(), kGeneralPool, {}, info.stream};
    return true;
  }
  return false;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

pyalloc_status pyalloc_owner_of(const void* address, pyalloc_owner* owner) {
  if (owner == nullptr) return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_owner_of: owner is null");
  Status status = Registry::instance().usable();
  if (status != kOk) return status;
  Space* space = space_of(reinterpret_cast<uint64_t>(address));
  if (space == nullptr) return fail(PYALLOC_UNKNOWN_POINTER, "%p is not from pyalloc", address);
  describe(*space, *owner);
  return kOk;
}

pyalloc_status pyalloc_block_at(const void* address, pyalloc_block_view* block, pyalloc_owner* owner) {
  if (block == nullptr) return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_block_at: block is null");
  Status status = Registry::instance().usable();
  if (status != kOk) return status;
  auto at = reinterpret_cast<uint64_t>(address);
  pyalloc_owner found{};
  if (Space* space = space_of(at)) {
    if (!space->heap().describe(*space, at, false, *block))
      return fail(PYALLOC_UNKNOWN_POINTER, "%p is not the start of a pyalloc block", address);
    if (owner != nullptr) describe(*space, found);
  } else if (!direct_at(at, *block, found)) {
    return fail(PYALLOC_UNKNOWN_POINTER, "%p is not from pyalloc", address);
  }
  if (owner != nullptr) *owner = found;
  return kOk;
}

}  // extern "C"
#pragma GCC visibility pop
