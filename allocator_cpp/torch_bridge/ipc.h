// CUDA tensors between processes (torch.multiprocessing): the bytes torch sends and the pointer it gets for them.
//
// Torch keeps a shared block alive in the process that made it until its last receiver has let go (CudaIPCTypes.h), and
// drops what open_shared() returns with the last tensor of a storage. Both are called from any thread; the core does
// the work.
#pragma once
#include <memory>
#include <string>

#include "core.h"

namespace pyalloc_bridge {

namespace cca = c10::cuda::CUDACachingAllocator;

inline cca::ShareableHandle share_block(void* pointer) {
  pyalloc_ipc_handle handle{};
  handle.size = sizeof handle;
  check(core->ipc_share(pointer, &handle));
  return {static_cast<ptrdiff_t>(handle.offset),
          std::string(reinterpret_cast<const char*>(handle.bytes), sizeof handle.bytes)};
}

inline std::shared_ptr<void> open_shared(const std::string& handle) {
  void* base = nullptr;
  check(core->ipc_open(current_device(), handle.data(), handle.size(), &base));
  return {base, [](void* opened) {
            if (core->ipc_close(opened) != PYALLOC_OK)
              log_line("a tensor received from another process could not be unmapped", core->last_error());
          }};
}

}  // namespace pyalloc_bridge
