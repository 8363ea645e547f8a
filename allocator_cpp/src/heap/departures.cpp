// What a heap does for the observers of mappings with no lock held: tells of what was mapped before a block in it is
// handed out, and of what is to be unmapped before it is undone (mapping_news.h).
#include <algorithm>

#include "driver/context_scope.h"
#include "heap/device_heap.h"

namespace pyalloc {
namespace {

constexpr int kTries = 8;  // other threads may go on making departures

}  // namespace

Status DeviceHeap::settle_try(Status status, PoolId pool, bool chosen, cuda::Stream stream, bool owned, size_t bytes,
                              void** pointer) {
  return settle(status, [&] { return find_and_allocate(pool, chosen, stream, owned, bytes, pointer); });
}

// A try that found no memory may have left departures, which are memory once they are undone.
Status DeviceHeap::settle(Status status, const std::function<Status()>& again) {
  for (int tries = 0; status == PYALLOC_OUT_OF_MEMORY && tries < kTries && undo_departures(); ++tries) status = again();
  tell_news();
  return status;
}

void DeviceHeap::tell_mapped() {
  Lock lock(mutex_);
  news_.tell_mapped(lock);
}

bool DeviceHeap::undo_departures() {
  std::vector<Backing::Stale> leaving;
  {
    Lock lock(mutex_);
    if (!backing_.has_departures()) return false;
    news_.tell_mapped(lock);
    leaving = backing_.take_departures();
    if (leaving.empty()) return false;
  }
  tell_unmapping(leaving);
  Lock lock(mutex_);
  ContextScope scope(context_);
  backing_.undo_departures(std::move(leaving));
  observe();
  self_check();
  return true;
}

// A run of neighbours as one; not what was told already, and the driver refused, nor what was never told as mapped.
void DeviceHeap::tell_unmapping(std::vector<Backing::Stale> leaving) {
  leaving.erase(std::remove_if(leaving.begin(), leaving.end(),
                               [](const Backing::Stale& one) { return one.told || one.handle == 0; }),
                leaving.end());
  Backing::sort_by_place(leaving);
  for (size_t i = 0; i < leaving.size();) {
    const AddressSpace& space = *leaving[i].space;
    uint32_t first = leaving[i].slot, next = first;
    for (; i < leaving.size() && leaving[i].space == &space && leaving[i].slot == next; ++i)
      next += leaving[i].granules;
    news_.tell_unmapping(space.address(first), uint64_t{next - first} * granule_bytes_);
  }
}

void DeviceHeap::tell_closing() {
  std::vector<Backing::Stale> all;
  {
    Lock lock(mutex_);
    news_.tell_mapped(lock);
    if (!news_.tells_first()) return;
    all = backing_.every_mapping();
  }
  tell_unmapping(std::move(all));
}

}  // namespace pyalloc
