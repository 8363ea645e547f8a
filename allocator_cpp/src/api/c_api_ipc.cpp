// The part of the C ABI (pyalloc.h) about sharing memory with other processes: checks arguments, finds the heap.
#include <cstring>

#include "api/registry.h"
#include "heap/address_map.h"

using namespace pyalloc;

#pragma GCC visibility push(default)
extern "C" {

pyalloc_status pyalloc_ipc_share(const void* address, pyalloc_ipc_handle* handle) {
  if (handle == nullptr || handle->size < sizeof(pyalloc_ipc_handle))
    return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_ipc_share: handle->size is not set to the struct's size");
  Registry& registry = Registry::instance();
  Status status = registry.usable();
  if (status != kOk) return status;
  auto at = reinterpret_cast<uint64_t>(address);
  Space* space = find_space(at);
  if (space == nullptr || !space->contains(at)) {
    pyalloc_block_info info{};
    for (DeviceHeap* heap : registry.open_heaps())
      if (heap->find_direct(at, info))
        return fail(PYALLOC_WRONG_STATE,
                    "memory is not shared between processes under PYTORCH_NO_CUDA_MEMORY_CACHING; unset it");
    return fail(PYALLOC_UNKNOWN_POINTER, "%p cannot be shared: it is not inside a live pyalloc block", address);
  }
  Ticket ticket;
  status = registry.exporter().share([&registry](int device) { return registry.open_heap(device); }, space->heap(),
                                     *space, at, ticket);
  if (status != kOk) return status;
  std::memcpy(handle->bytes, &ticket, sizeof ticket);
  handle->offset = at - ticket.range.address;
  return kOk;
}

pyalloc_status pyalloc_ipc_open(int device, const void* handle, size_t bytes, void** base) {
  if (base == nullptr)
    return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_ipc_open: base is null; expected where to store the address");
  Ticket ticket;
  Status status = Importer::read(handle, bytes, ticket);
  if (status != kOk) return status;
  Registry& registry = Registry::instance();
  DeviceHeap* heap = registry.heap(device, status);
  if (heap == nullptr) return status;
  if (registry.exporter().made(ticket)) {  // the memory is here
    *base = reinterpret_cast<void*>(ticket.range.address);
    return kOk;
  }
  return registry.importer().open(*heap, ticket, base);
}

pyalloc_status pyalloc_ipc_close(void* base) {
  Registry& registry = Registry::instance();
  if (base == nullptr || registry.dead()) return kOk;  // the mapping goes with the process
  auto at = reinterpret_cast<uint64_t>(base);
  if (Space* space = find_space(at); space != nullptr && space->contains(at)) return kOk;  // it was never mapped anew
  return registry.importer().close([&registry] { return registry.open_heaps(); }, base);
}

}  // extern "C"
#pragma GCC visibility pop
