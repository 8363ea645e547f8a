// This process's stats page (pyalloc/stats_page.h): gathers what the heaps, the ladder, the tags and the event log know
// and writes it to the page's file, at a bounded rate, so that it costs less than a thousandth of one core.
//
// Every round of the maintenance thread calls publish_when_due(). Figures at hand (counters, sizes of pools) are written
// 10 times a second at most; those that take a walk (largest free runs, cells, escapes, tags) or a driver call (free
// memory) are renewed every 2 seconds at most. Both rates fall where the work takes longer. Nothing is written, nor the
// driver asked, with a heap's lock held; a walk holds one space's at a time.
//
// The page appears with the first publish and goes with close() or end(). If it cannot be made or written, one line says why and
// no more is tried. Guarded by a lock of its own, which is held while publishing, and across a fork.
#pragma once
#include <string>
#include <vector>

#include "base/ranked_mutex.h"
#include "heap/device_heap.h"
#include "reclaim/ladder.h"
#include "view/page_file.h"
#include "view/page_layout.h"

namespace pyalloc {

class StatsPage {
 public:
  // devices: how many the process has, for the page's size.
  void publish_when_due(const std::vector<DeviceHeap*>& heaps, int devices, Ladder& ladder);
  // Everything now, the walk included. PYALLOC_WRONG_STATE where there is no page.
  Status publish(const std::vector<DeviceHeap*>& heaps, int devices, Ladder& ladder);
  std::string path();  // empty: there is none
  void close();
  // The same for good: threads that are about to publish while the process goes down make no other.
  void end();
  // In a forked child, under the lock: the page is the parent's. The child may have one of its own.
  void abandon();
  RankedMutex& mutex() { return mutex_; }  // for a fork

 private:
  // What of a device's records is renewed more seldom than the rest.
  struct Surveyed {
    pyalloc_page_device device{};
    std::vector<pyalloc_page_pool> pools;  // kPagePools
  };

  void take_away();
  void prepare(int devices);
  void write(const std::vector<DeviceHeap*>& heaps, Ladder& ladder, bool survey);
  void survey(DeviceHeap& heap);
  void add_process(Ladder& ladder, bool survey);
  void add_device(DeviceHeap& heap);
  void add_pool(int device, size_t number, const char* name, const pyalloc_pool_stats& stats);
  void add_tags();
  void add_events();
  void copy_to_file();
  void give_up(const std::string& why);
  template <class Record>
  Record& record(const PageTable& table, size_t index) {
    return *reinterpret_cast<Record*>(tables_.data() + table.offset + index * table.stride);
  }
  pyalloc_page_process& process() { return record<pyalloc_page_process>(layout_.process, 0); }

  RankedMutex mutex_{Rank::kPage};
  PageFile file_;
  std::string failure_;  // why there is no page, once it is known
  PageLayout layout_{0};
  pyalloc_page_header header_{};
  std::vector<char> tables_;        // empty until there is something to publish; what the next write copies to the file
  std::vector<Surveyed> surveyed_;  // by device
  int64_t next_ns_ = 0, next_survey_ns_ = 0;
};

}  // namespace pyalloc
