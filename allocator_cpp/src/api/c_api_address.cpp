// The C ABI's call for a block at an address: checks arguments, finds the heap, calls it.
#include "api/registry.h"
#include "heap/address_map.h"

using namespace pyalloc;

#pragma GCC visibility push(default)
extern "C" {

pyalloc_status pyalloc_allocate_at(int device, void* stream, uint32_t stream_flags, size_t bytes, void* address) {
  if (address == nullptr || bytes == 0)
    return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_allocate_at: %zu bytes at %p; expected a size and an address", bytes,
                address);
  Status status = Registry::instance().usable();
  if (status != kOk) return status;
  auto at = reinterpret_cast<uint64_t>(address);
  Space* space = find_space(at);
  if (space == nullptr || !space->contains(at) || space->heap().device() != device)
    return fail(PYALLOC_INVALID_ARGUMENT,
                "%zu bytes cannot be allocated at %p: it is no memory of pyalloc's on device %d", bytes, address,
                device);
  return space->heap().allocate_at(*space, at, static_cast<cuda::Stream>(stream),
                                   (stream_flags & PYALLOC_STREAM_OWNED) != 0, bytes);
}

}  // extern "C"
#pragma GCC visibility pop
