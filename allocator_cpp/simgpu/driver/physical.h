// Physical device memory: bytes in sparse memory files, one file per device, plus one per allocation shared with other processes.
//
// Never mapped into the host's address space: read and written by pread and pwrite, so that a device of any size costs only what was
// written to it. A fresh allocation reads as zeros; freed memory is given back to the host at once. Locked by the simulation's mutex.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "abi.h"
#include "configuration.h"
#include "session.h"

namespace simgpu {

struct Physical {
  uint64_t address =
      0;  // unique for the life of the process: where the bytes were first placed, with the device on top
  uint64_t bytes = 0;
  uint64_t charged = 0;  // bytes of the device's capacity it holds
  uint64_t offset = 0;   // in the file
  uint64_t handle = 0;   // as given to the caller; 0 for memory of cuMemAlloc
  int device = 0;        // as this process numbers them
  int fd = -1;
  bool written = false;   // false: every byte is zero and the host holds nothing for it
  bool own_file = false;  // shared: fd is closed with it
  int shared_entry = -1;  // in the session's table; -1: charged to this process
  int64_t handles = 0;    // references held by callers
  int64_t mappings = 0;
  AllocationProp prop = {};
};

class PhysicalMemory {
 public:
  explicit PhysicalMemory(Session* session) : session_(session) {}
  // The session's number of each device this process sees.
  void set_visible(std::vector<int> visible) { visible_ = std::move(visible); }
  ~PhysicalMemory();

  // Null when the device has not enough left (or the host gives no file).
  std::unique_ptr<Physical> create(int device, uint64_t bytes, uint64_t charged);
  void destroy(std::unique_ptr<Physical> memory);

  // Moves the bytes to a file of their own that other processes can open. False: no file or the session's table is full.
  bool make_shareable(Physical& memory);
  // Takes over a file made by make_shareable in any process of the session. Null: not such a file, or out of memory.
  std::unique_ptr<Physical> adopt(int fd);

  // Within one allocation. False: `host` is not readable or writable, or the host is out of memory.
  bool read(const Physical& memory, uint64_t offset, void* host, uint64_t bytes) const;
  bool write(Physical& memory, uint64_t offset, const void* host, uint64_t bytes);
  // Repeats the pattern's bytes, starting at its phase-th.
  bool fill(Physical& memory, uint64_t offset, uint64_t bytes, const uint8_t* pattern, unsigned pattern_bytes,
            uint64_t phase);
  bool copy(Physical& target, uint64_t target_offset, const Physical& source, uint64_t source_offset, uint64_t bytes);

  uint64_t resident() const;  // host bytes really held

 private:
  bool zero(Physical& memory, uint64_t offset, uint64_t bytes);
  int device_file(int device);

  Session* session_;
  std::vector<int> visible_;
  int files_[kMaxDevices] = {-1, -1, -1, -1, -1, -1, -1, -1};
  uint64_t next_[kMaxDevices] = {};
  std::vector<const Physical*> shared_;
  std::vector<char> buffer_;
};

}  // namespace simgpu
