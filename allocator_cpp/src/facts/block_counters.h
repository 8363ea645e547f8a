// Exact counts and peaks of blocks without a shared counter on the hot path.
//
// Every lane (one stream of a pool) counts what it hands out and takes back in counters of its own, under the lane's
// lock. A peak is exact because a lane may only grow while the device's sums cannot pass the recorded peak: what may be
// live in a lane is limited, and what all lanes together may still grow by, their credit, never exceeds peak minus
// current. A lane whose credit is spent calls settle(), which holds every lane's lock at once, takes the true sums, moves
// the peaks, and deals out new credit.
//
// Active = handed out and not freed, plus freed and waiting for an event ("pending"). A free that stays pending returns
// no credit.
//
// Extents are counted by one lane for the whole device, guarded by the heap's lock.
//
// Locks: settle, then lanes in index order, then the heap's. Lanes are added and never removed while the device lives.
#pragma once
#include <atomic>
#include <deque>

#include "base/bits.h"
#include "base/ranked_mutex.h"
#include "facts/usage.h"

namespace pyalloc {

// One lane's blocks of one kind.
struct LaneCounters {
  Usage handed_out;
  Usage taken_back;
  Usage most_live;  // as long as no more is live here, the device's peak cannot be passed

  Usage live() const { return handed_out - taken_back; }
  // Counts a block handed out; false (and nothing done) when that might pass the peak.
  bool hand_out(const Usage& block) {
    Usage next = handed_out + block;
    if (!most_live.covers(next - taken_back)) return false;
    handed_out = next;
    return true;
  }
  void take_back(const Usage& block) { taken_back += block; }
  // The block is freed but stays active until events complete: its room is not free yet.
  void take_back_pending(const Usage& block) {
    taken_back += block;
    most_live -= block;
  }
  void deal(const Usage& credit) { most_live = live() + credit; }
};

// A figure with its history, as torch's Stat.
struct History {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void move_to(int64_t now) {
    (now > current ? allocated : freed) += now > current ? now - current : current - now;
    current = now;
    if (now > peak) peak = now;
  }
};

class BlockCounters {
 public:
  struct alignas(kOwnLines) Lane {
    explicit Lane(RankedMutex& guard) : mutex(guard) {}
    RankedMutex& mutex;
    LaneCounters counters[kKinds];
  };
  // Sums over lanes; index kKinds is both kinds together.
  struct Totals {
    History blocks[kKinds + 1], bytes[kKinds + 1], requested[kKinds + 1], active_blocks[kKinds + 1],
        active_bytes[kKinds + 1];
  };

  explicit BlockCounters(RankedMutex& heap_mutex) : extents_(heap_mutex) {}

  // A lane guarded by `guard`; the reference stays valid for ever.
  Lane& add_lane(RankedMutex& guard);
  Lane& extents() { return extents_; }

  // Called with no lock held. Settles, and counts `block` (if any) as handed out by `lane`.
  void settle(Lane* lane, Kind kind, const Usage& block);

  // Moves of blocks between freed and waiting; `started` is called under the freeing lane's lock.
  void pending_started(Kind kind, const Usage& block);
  void pending_ended(Kind kind, const Usage& block);

  Totals totals();
  // Live bytes by the counters; the caller holds every lane's lock and the heap's.
  int64_t live_bytes_locked() { return sums().live[kKinds].bytes; }
  void reset_peaks();
  void reset_accumulated();
  // High-water of requested bytes live; decay_high_water() lowers it half way to what is live now.
  int64_t live_high_water() const { return live_high_water_.load(std::memory_order_relaxed); }
  void decay_high_water();

 private:
  struct Sums {
    Usage live[kKinds + 1];
    int64_t active_blocks[kKinds + 1];
    int64_t active_bytes[kKinds + 1];
  };
  struct Peaks {
    Usage live[kKinds + 1];
    int64_t active_blocks[kKinds + 1] = {};
    int64_t active_bytes[kKinds + 1] = {};
  };

  template <class Visit>
  void each_lane(Visit&& visit) {
    for (Lane& lane : lanes_) visit(lane);
    visit(extents_);
  }
  void lock_lanes() {
    each_lane([](Lane& lane) { lane.mutex.lock(); });
  }
  void unlock_lanes() {
    each_lane([](Lane& lane) { lane.mutex.unlock(); });
  }
  Sums sums();
  void raise_peaks(const Sums& now);
  void deal_credit(const Sums& now, Lane* first);

  RankedMutex settle_mutex_{Rank::kSettle};
  std::deque<Lane> lanes_;
  Lane extents_;
  Peaks peaks_;
  Usage base_handed_out_[kKinds], base_taken_back_[kKinds];  // at the last accumulated reset
  std::atomic<int64_t> pending_blocks_[kKinds] = {}, pending_bytes_[kKinds] = {};
  int64_t base_pending_blocks_[kKinds] = {}, base_pending_bytes_[kKinds] = {};
  std::atomic<int64_t> live_high_water_{0};
};

}  // namespace pyalloc
