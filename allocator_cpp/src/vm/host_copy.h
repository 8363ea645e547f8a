// Copies of device memory in pinned host memory, made and put back in chunks over a stream of their own, so that one
// chunk is copied while host memory for the next is pinned. Owned by a sleeping pool (heap/sleep.h). Called with no lock
// held, by one thread at a time; the device's context is current.
#pragma once
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "driver/cuda_abi.h"

namespace pyalloc {

struct DeviceRun {
  uint64_t address, bytes;
};

// Hears of every chunk, with no lock held: bytes copied so far and of all, over all pools of the device.
struct CopyProgress {
  pyalloc_progress_fn fn = nullptr;
  void* context = nullptr;
  int device = 0;
  uint64_t done = 0, total = 0;
  void copied(uint64_t bytes) {
    done += bytes;
    if (fn != nullptr && bytes > 0) fn(context, device, done, total);
  }
};

inline uint64_t bytes_of(const std::vector<DeviceRun>& runs) {
  uint64_t sum = 0;
  for (const DeviceRun& run : runs) sum += run.bytes;
  return sum;
}

class HostCopy {
 public:
  HostCopy() = default;
  HostCopy(HostCopy&& other) noexcept { chunks_.swap(other.chunks_); }
  HostCopy& operator=(HostCopy&& other) noexcept {
    chunks_.swap(other.chunks_);
    return *this;
  }

  // Adds copies of the runs. On failure none is kept.
  Status take(const std::vector<DeviceRun>& runs, CopyProgress& progress);
  // Writes them back, but only what `wanted(address)` says of each granule. Keeps the copies.
  template <class Wanted>
  std::vector<DeviceRun> parts(size_t granule_bytes, Wanted&& wanted) const;
  Status put_back(const std::vector<DeviceRun>& parts, CopyProgress& progress) const;
  // Gives the host memory back.
  void drop();
  // The same without a driver call: the process's end returns it (fork).
  void forget() { chunks_.clear(); }
  uint64_t bytes() const;

 private:
  struct Chunk {
    uint64_t address, bytes;
    void* memory;
  };
  std::vector<Chunk> chunks_;
};

// Within one chunk each, in its order.
template <class Wanted>
std::vector<DeviceRun> HostCopy::parts(size_t granule_bytes, Wanted&& wanted) const {
  std::vector<DeviceRun> found;
  for (const Chunk& chunk : chunks_) {
    bool extends = false;
    for (uint64_t at = chunk.address; at < chunk.address + chunk.bytes; at += granule_bytes) {
      bool takes = wanted(at);
      if (takes && !extends) found.push_back({at, 0});
      if (takes) found.back().bytes += granule_bytes;
      extends = takes;
    }
  }
  return found;
}

}  // namespace pyalloc
