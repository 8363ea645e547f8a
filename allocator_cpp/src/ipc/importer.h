// The side that receives: turns tickets into memory that is mapped here.
//
// What was received stays mapped as long as somebody has it, and is found again by its ticket; the last one to let go
// waits for the devices that may use it, then undoes the mapping. Where they cannot be waited for it stays, with no
// references, until the next close.
//
// Called by api, from any thread, with no lock held. One ticket is opened at a time: the lock is held while the other
// process answers, which never waits for this one.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/ranked_mutex.h"
#include "ipc/ticket.h"

namespace pyalloc {

class Exporter;

class Importer {
 public:
  // All open heaps.
  using Heaps = std::function<std::vector<DeviceHeap*>()>;

  // Reads a ticket; says what else it may be.
  static Status read(const void* bytes, size_t count, Ticket& ticket);
  // The address of the ticket's range, for use on the heap's device; each open asks for one close.
  Status open(DeviceHeap& heap, const Ticket& ticket, void** address);
  // PYALLOC_UNKNOWN_POINTER when it was not opened here.
  Status close(const Heaps& heaps, void* address);

 private:
  using Key = std::pair<int, std::string>;  // the device, and the ticket's bytes
  struct Opened {
    DeviceHeap* heap;
    uint64_t address;
    int64_t references;
  };
  RankedMutex mutex_{Rank::kIpc};
  std::map<Key, Opened> opened_;
};

}  // namespace pyalloc
