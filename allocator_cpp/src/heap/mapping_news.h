// What the observers of mappings (vm/mapping_observers.h) have yet to be told by one heap. Mappings are made and undone
// with the heap's lock held, and observers are called with none; so what was mapped is noted here and told before the
// call that mapped it returns, and, while somebody wants to hear of it, what is due to be unmapped is set aside
// (Backing::departures) and undone once it has been told.
//
// Order: an address is unmapped only after its mapping was told. A thread that is about to hand out a block (lane.cpp,
// device_heap.cpp) waits until all that was mapped before is told, by itself or by another thread, since its block may
// lie in it; inside an observer nobody waits, and what others, or the thread itself further out, have not finished
// telling stays mapped. Without observers nothing is noted and `untold` stays 0. Guarded by the heap's lock but for
// `untold`.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <vector>

#include "vm/mapping_observers.h"

namespace pyalloc {

class MappingNews {
 public:
  MappingNews(MappingObservers& observers, int device) : observers_(observers), device_(device) {}

  // Whether an unmapping is to be told before it happens.
  bool tells_first() const { return observers_.wanted(PYALLOC_UNMAPPING); }
  bool untold() const { return untold_.load(std::memory_order_relaxed) != 0; }
  // Memory was mapped there.
  void mapped(uint64_t address, uint64_t bytes);
  // Whether somebody has yet to hear that memory was mapped there.
  bool untold(uint64_t address, uint64_t bytes) const;

  // Tells of everything mapped so far. The heap's lock is held before and after, and not while an observer runs.
  void tell_mapped(Lock& heap);
  // With no lock held.
  void tell_unmapping(uint64_t address, uint64_t bytes) { tell(PYALLOC_UNMAPPING, {address, bytes, 0}); }

 private:
  struct Run {
    uint64_t address, bytes, ticket;
  };
  void tell(pyalloc_mapping_kind kind, const Run& run);
  bool waits_for(uint64_t ticket) const;

  MappingObservers& observers_;
  const int device_;
  uint64_t last_ticket_ = 0;
  std::deque<Run> noted_;
  std::vector<Run> being_told_;
  std::atomic<size_t> untold_{0};  // both together
  std::condition_variable_any told_;
};

}  // namespace pyalloc
