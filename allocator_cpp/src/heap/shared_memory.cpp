// A heap's memory for other processes, and theirs in it (ipc/ carries it from one to the other).
//
// A block is shared as the whole handles it lies over, since the driver exports and maps no less. While it lives they
// are not idle, so nothing moves, unmaps or returns them; that torch keeps a shared block alive until its last receiver
// is done is what makes this enough.
#include <unistd.h>

#include "driver/context_scope.h"
#include "heap/device_heap.h"

namespace pyalloc {
namespace {

// Of the exports' numbers, in order (FNV-1a).
void mix(uint64_t& fingerprint, uint32_t number) { fingerprint = (fingerprint ^ number) * 0x100000001B3ull; }
constexpr uint64_t kEmpty = 0xCBF29CE484222325ull;

}  // namespace

Status DeviceHeap::share(Space& space, uint64_t address, SharedRange& range) {
  pyalloc_block_info info{};
  Status status = find_block(space, address, info);
  if (status != kOk) return status;
  Lock lock(mutex_);
  if (space.pool().sleep.rest != Rest::kAwake) return refuse_asleep(space.pool());
  const AddressSpace& memory = space.memory();
  Granules& granules = backing_.granules();
  auto slot_at = [&](uint64_t at) { return static_cast<uint32_t>(space.offset(at) / granule_bytes_); };
  uint64_t block = reinterpret_cast<uint64_t>(info.block);
  uint32_t last = slot_at(block + info.allocated - 1), index = slot_at(block);
  uint32_t first = granules.handle(memory.slot(index).handle).slot;
  range.fingerprint = kEmpty;
  for (index = first; index <= last;) {
    HandleId id = memory.slot(index).handle;
    if (id == 0)
      return fail(PYALLOC_UNKNOWN_POINTER, "0x%llx cannot be shared: the block was freed meanwhile",
                  static_cast<unsigned long long>(address));
    granules.mark_exported(id);
    mix(range.fingerprint, granules.handle(id).exported);
    index += granules.handle(id).granules;
  }
  range.address = memory.address(first);
  range.bytes = uint64_t{index - first} * granule_bytes_;
  return kOk;
}

Status DeviceHeap::export_handles(Space& space, const SharedRange& range, uint32_t from, uint32_t most,
                                  std::vector<Exported>& exported, uint32_t& left) {
  auto gone = [&] {
    return fail(PYALLOC_UNKNOWN_POINTER,
                "the tensor was freed by the process that shared it before this one received it; keep it alive there "
                "until it has been received");
  };
  Lock lock(mutex_);
  const AddressSpace& memory = space.memory();
  const Granules& granules = backing_.granules();
  if (!space.contains(range.address) || range.bytes == 0 || range.bytes > memory.bytes() - space.offset(range.address))
    return gone();
  auto first = static_cast<uint32_t>(space.offset(range.address) / granule_bytes_);
  auto end = static_cast<uint32_t>(first + range.bytes / granule_bytes_);
  std::vector<HandleId> handles;
  uint64_t fingerprint = kEmpty;
  for (uint32_t index = first; index < end;) {
    HandleId id = memory.slot(index).handle;
    const Handle& handle = granules.handle(id);
    if (id == 0 || handle.exported == 0 || handle.slot != index) return gone();
    mix(fingerprint, handle.exported);
    handles.push_back(id);
    index += handle.granules;
  }
  if (fingerprint != range.fingerprint || from >= handles.size()) return gone();
  ContextScope scope(context_);
  for (uint32_t next = from; next < handles.size() && exported.size() < most; ++next) {
    int descriptor = -1;
    cuda::Result result =
        driver().export_handle(&descriptor, granules.handle(handles[next]).memory, cuda::kHandlePosixFd, 0);
    if (result != cuda::kSuccess) {
      if (!exported.empty()) break;  // out of descriptors, perhaps: these are closed before the next are asked for
      return driver_failure("cuMemExportToShareableHandle", result, "sharing memory with another process");
    }
    exported.push_back({descriptor, granules.bytes(handles[next])});
  }
  left = static_cast<uint32_t>(handles.size() - from - exported.size());
  return kOk;
}

Status DeviceHeap::receive_handle(int descriptor, cuda::MemHandle& memory) {
  ContextScope scope(context_);
  auto shareable = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
  cuda::Result result = driver().import_handle(&memory, shareable, cuda::kHandlePosixFd);
  return result == cuda::kSuccess
             ? kOk
             : driver_failure("cuMemImportFromShareableHandle", result, "taking memory of another process");
}

void DeviceHeap::release_received(const std::vector<ReceivedHandle>& handles) {
  Lock lock(mutex_);
  ContextScope scope(context_);
  imports_.release(handles);
}

Status DeviceHeap::map_import(const std::vector<ReceivedHandle>& handles, uint64_t& address) {
  Lock lock(mutex_);
  ContextScope scope(context_);
  imports_.undo_left_over();
  return imports_.map(handles, backing_.access(), address);
}

Status DeviceHeap::unmap_import(uint64_t address) {
  Lock lock(mutex_);
  ContextScope scope(context_);
  return imports_.unmap(address);
}

bool DeviceHeap::reachable_from(int device) {
  Lock lock(mutex_);
  for (const cuda::AccessDesc& one : backing_.access())
    if (one.location.id == device) return true;
  return false;
}

}  // namespace pyalloc
