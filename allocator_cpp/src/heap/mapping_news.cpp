#include "heap/mapping_news.h"

#include <algorithm>

#include "heap/address_map.h"
#include "heap/pool.h"

namespace pyalloc {

void MappingNews::mapped(uint64_t address, uint64_t bytes) {
  if (!observers_.wanted(PYALLOC_MAPPED)) return;
  noted_.push_back({address, bytes, ++last_ticket_});
  untold_.fetch_add(1, std::memory_order_relaxed);
}

void MappingNews::tell(pyalloc_mapping_kind kind, const Run& run) {
  pyalloc_mapping_event event{};
  event.size = sizeof event;
  event.kind = kind;
  event.device = device_;
  event.pool = find_space(run.address)->pool().id;
  event.address = reinterpret_cast<void*>(run.address);
  event.bytes = run.bytes;
  observers_.tell(event);
}

bool MappingNews::waits_for(uint64_t ticket) const {
  return (!noted_.empty() && noted_.front().ticket <= ticket) ||
         std::any_of(being_told_.begin(), being_told_.end(), [&](const Run& one) { return one.ticket <= ticket; });
}

bool MappingNews::untold(uint64_t address, uint64_t bytes) const {
  auto over = [&](const Run& one) { return one.address < address + bytes && address < one.address + one.bytes; };
  return std::any_of(noted_.begin(), noted_.end(), over) || std::any_of(being_told_.begin(), being_told_.end(), over);
}

void MappingNews::tell_mapped(Lock& heap) {
  for (uint64_t newest = last_ticket_; waits_for(newest);) {
    if (noted_.empty()) {
      if (MappingObservers::telling()) return;  // who tells it may be waiting for us
      told_.wait(heap);
      continue;
    }
    Run run = noted_.front();  // one at a time: an observer that allocates tells of the others
    noted_.pop_front();
    being_told_.push_back(run);
    heap.unlock();
    tell(PYALLOC_MAPPED, run);
    heap.lock();
    being_told_.erase(
        std::find_if(being_told_.begin(), being_told_.end(), [&](const Run& one) { return one.ticket == run.ticket; }));
    untold_.fetch_sub(1, std::memory_order_relaxed);
    told_.notify_all();
  }
}

}  // namespace pyalloc
