// A mutex that knows its place in the one lock order; debug builds stop when a thread takes locks out of order. Order,
// outermost first: registry, page (stats page), ladder, observers (of mappings), names (of pools), tags, ipc (memory of
// other processes), maintenance, pending (frees that wait), settle (device counters), lane (one stream of a pool), heap
// (one device), events, log. Two lanes are held together only by a settle, in the order of their index.
#pragma once
#include <mutex>

#include "base/check.h"
#include "base/futex_mutex.h"

namespace pyalloc {

enum class Rank : int {
  kRegistry = 1,
  kPage,
  kLadder,
  kObservers,
  kNames,
  kTags,
  kIpc,
  kMaintenance,
  kPending,
  kSettle,
  kLane,
  kHeap,
  kEvents,
  kLog,
  kEnd
};

class RankedMutex {
 public:
  explicit RankedMutex(Rank rank) : rank_(rank) {}
  RankedMutex(const RankedMutex&) = delete;
  RankedMutex& operator=(const RankedMutex&) = delete;

  void lock() {
    enter();
    mutex_.lock();
  }
  void unlock() {
    mutex_.unlock();
    leave();
  }

 private:
#ifdef NDEBUG
  void enter() {}
  void leave() {}
#else
  // Counts held per rank; unlocking in any order is fine.
  static int* held() {
    static thread_local int counts[static_cast<int>(Rank::kEnd)] = {};
    return counts;
  }
  void enter() {
    int mine = static_cast<int>(rank_);
    for (int rank = mine + 1; rank < static_cast<int>(Rank::kEnd); ++rank) PYALLOC_ASSERT(held()[rank] == 0);
    PYALLOC_ASSERT(rank_ == Rank::kLane || held()[mine] == 0);
    ++held()[mine];
  }
  void leave() { --held()[static_cast<int>(rank_)]; }
#endif

  FutexMutex mutex_;
  const Rank rank_;
};

using Lock = std::unique_lock<RankedMutex>;

}  // namespace pyalloc
