// The device's physical memory: one record per granule this heap holds. A granule is mapped at one slot (the newest
// mapping; older addresses of it are the stale list of Backing), or lies on the shelf, unmapped and ready. Mapped
// granules that no live block touches are idle and stand in a list by how long they have been so.
//
// Invariants (validate): every held granule is mapped or on the shelf; the idle list holds exactly the idle ones,
// oldest first. Guarded by the heap's lock; create and release call the driver and need its context current.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "driver/cuda_abi.h"
#include "facts/counters.h"

namespace pyalloc {

using HandleId = uint32_t;  // 0 is none

struct Granule {
  cuda::MemHandle memory = 0;
  int64_t idle_since = 0;  // milliseconds
  HandleId older = 0, newer = 0;
  uint32_t slot = 0;
  uint16_t space = 0;
  bool held = false, mapped = false, idle = false;
};

class Granules {
 public:
  Granules(int device, size_t granule_bytes, Counters& counters);

  size_t granule_bytes() const { return granule_bytes_; }
  // Makes a granule; it is neither mapped nor on the shelf until the caller says so. Leaves nothing behind on failure.
  Status create(HandleId& made);
  // Gives an unmapped granule back to the driver. False when the driver refused: it lies on the shelf then, to be used
  // or offered again.
  bool release(HandleId id);

  HandleId take_from_shelf();
  void put_on_shelf(HandleId id);

  void mapped_at(HandleId id, uint16_t space, uint32_t slot);
  void unmapped(HandleId id);
  void set_idle(HandleId id, int64_t now_ms);
  void set_idle_oldest(HandleId id);  // back to where a failed operation took it from
  void set_busy(HandleId id);

  const Granule& granule(HandleId id) const { return granules_[id]; }
  HandleId oldest_idle() const { return oldest_; }
  HandleId newer_idle(HandleId id) const { return granules_[id].newer; }

  int64_t held() const { return held_; }
  int64_t idle() const { return idle_; }
  int64_t on_shelf() const { return static_cast<int64_t>(shelf_.size()); }
  size_t metadata_bytes() const {
    return granules_.capacity() * sizeof(Granule) + (shelf_.capacity() + unused_.capacity()) * sizeof(HandleId);
  }
  bool validate(std::string& reason) const;

 private:
  const int device_;
  const size_t granule_bytes_;
  Counters& counters_;
  std::vector<Granule> granules_;
  std::vector<HandleId> shelf_, unused_;
  HandleId oldest_ = 0, newest_ = 0;
  int64_t held_ = 0, idle_ = 0;
};

// What every cuMemCreate of this project asks for: device memory that can be exported as a file descriptor.
cuda::AllocationProp granule_properties(int device);

}  // namespace pyalloc
