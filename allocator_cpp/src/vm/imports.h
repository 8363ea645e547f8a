// Memory of other processes, mapped here. Each import is a reservation exactly as large as what was shared, with the
// handles that were received mapped in it one after the other. The handles themselves are let go once they are mapped:
// the mapping alone keeps their memory, also when the process that made it ends. None of this is held by the heap's
// granules or counted as reserved: it is memory of the process that allocated it.
//
// Guarded by the heap's lock, with the context current. Called by DeviceHeap (heap/shared_memory.cpp).
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "base/status.h"
#include "driver/cuda_abi.h"

namespace pyalloc {

struct ReceivedHandle {
  cuda::MemHandle memory;
  uint64_t bytes;
};

class Imports {
 public:
  // Maps the handles one after the other and gives every device of `access` its access: all, or nothing is left.
  Status map(const std::vector<ReceivedHandle>& handles, const std::vector<cuda::AccessDesc>& access,
             uint64_t& address);
  // Lets received handles go, mapped or not.
  void release(const std::vector<ReceivedHandle>& handles);
  // Undoes the import at `address`, which nothing may use any more. What the driver refuses to undo is left over.
  Status unmap(uint64_t address);
  // One more device may use every import.
  Status add_access(const cuda::AccessDesc& access) const;
  // Tries again to undo what the driver refused to, if there is such.
  bool has_left_over() const;
  void undo_left_over();
  // Undoes all; what the driver refuses to undo stays until the process ends.
  void close();

  size_t count() const { return imports_.size(); }  // those left over included
  int64_t bytes() const { return bytes_; }

 private:
  struct Import {
    uint64_t mapped, reserved;  // bytes
    bool in_use;                // false: left over, since the driver refused to undo it
  };
  std::map<uint64_t, Import> imports_;      // by address
  std::vector<ReceivedHandle> unreleased_;  // those the driver refused to let go
  int64_t bytes_ = 0;
};

}  // namespace pyalloc
