#include "facts/block_counters.h"

#include <algorithm>

namespace pyalloc {
namespace {

// The part of `slack` dealt to one lane: half to the one that asked, the rest shared.
Usage share(const Usage& slack, int64_t parts) {
  auto part = [&](int64_t value) { return value > 0 ? value / parts : 0; };
  return {part(slack.blocks), part(slack.bytes), part(slack.requested)};
}

Usage least(const Usage& a, const Usage& b) {
  return {std::min(a.blocks, b.blocks), std::min(a.bytes, b.bytes), std::min(a.requested, b.requested)};
}

}  // namespace

BlockCounters::Lane& BlockCounters::add_lane(RankedMutex& guard) {
  Lock settle(settle_mutex_);
  return lanes_.emplace_back(guard);
}

BlockCounters::Sums BlockCounters::sums() {
  Sums now{};
  for (int kind = 0; kind < kKinds; ++kind) {
    each_lane([&](const Lane& lane) { now.live[kind] += lane.counters[kind].live(); });
    now.active_blocks[kind] = now.live[kind].blocks + pending_blocks_[kind].load(std::memory_order_relaxed);
    now.active_bytes[kind] = now.live[kind].bytes + pending_bytes_[kind].load(std::memory_order_relaxed);
    now.live[kKinds] += now.live[kind];
    now.active_blocks[kKinds] += now.active_blocks[kind];
    now.active_bytes[kKinds] += now.active_bytes[kind];
  }
  return now;
}

void BlockCounters::raise_peaks(const Sums& now) {
  for (int kind = 0; kind <= kKinds; ++kind) {
    Usage& live = peaks_.live[kind];
    live = {std::max(live.blocks, now.live[kind].blocks), std::max(live.bytes, now.live[kind].bytes),
            std::max(live.requested, now.live[kind].requested)};
    peaks_.active_blocks[kind] = std::max(peaks_.active_blocks[kind], now.active_blocks[kind]);
    peaks_.active_bytes[kind] = std::max(peaks_.active_bytes[kind], now.active_bytes[kind]);
  }
  if (now.live[kKinds].requested > live_high_water())
    live_high_water_.store(now.live[kKinds].requested, std::memory_order_relaxed);
}

void BlockCounters::deal_credit(const Sums& now, Lane* first) {
  auto slack_of = [&](int kind) {
    return least(peaks_.live[kind] - now.live[kind], {peaks_.active_blocks[kind] - now.active_blocks[kind],
                                                      peaks_.active_bytes[kind] - now.active_bytes[kind], INT64_MAX});
  };
  Usage shared = share(slack_of(kKinds), kKinds);  // each kind may use its part of the whole device's slack
  auto others = static_cast<int64_t>(lanes_.size()) + (first != nullptr ? 0 : 1);
  for (int kind = 0; kind < kKinds; ++kind) {
    Usage slack = least(slack_of(kind), shared);
    each_lane([&](Lane& lane) {
      bool favoured = &lane == first;
      lane.counters[kind].deal(favoured ? share(slack, others > 0 ? 2 : 1) : share(slack, 2 * others));
    });
  }
}

void BlockCounters::settle(Lane* lane, Kind kind, const Usage& block) {
  Lock settle(settle_mutex_);
  lock_lanes();
  if (lane != nullptr) lane->counters[kind].handed_out += block;
  Sums now = sums();
  raise_peaks(now);
  deal_credit(now, lane);
  unlock_lanes();
}

void BlockCounters::pending_started(Kind kind, const Usage& block) {
  pending_blocks_[kind].fetch_add(block.blocks, std::memory_order_relaxed);
  pending_bytes_[kind].fetch_add(block.bytes, std::memory_order_relaxed);
}

void BlockCounters::pending_ended(Kind kind, const Usage& block) {
  pending_blocks_[kind].fetch_sub(block.blocks, std::memory_order_relaxed);
  pending_bytes_[kind].fetch_sub(block.bytes, std::memory_order_relaxed);
}

BlockCounters::Totals BlockCounters::totals() {
  Lock settle(settle_mutex_);
  lock_lanes();
  Sums now = sums();
  raise_peaks(now);
  Totals totals;
  for (int kind = 0; kind < kKinds; ++kind) {
    Usage out = Usage{} - base_handed_out_[kind], back = Usage{} - base_taken_back_[kind];
    each_lane([&](const Lane& lane) {
      out += lane.counters[kind].handed_out;
      back += lane.counters[kind].taken_back;
    });
    auto add = [&](History* history, int64_t current, int64_t allocated, int64_t freed) {
      for (int to : {kind, static_cast<int>(kKinds)}) {
        history[to].current += current;
        history[to].allocated += allocated;
        history[to].freed += freed;
      }
    };
    int64_t pending_blocks = now.active_blocks[kind] - now.live[kind].blocks,
            pending_bytes = now.active_bytes[kind] - now.live[kind].bytes;
    add(totals.blocks, now.live[kind].blocks, out.blocks, back.blocks);
    add(totals.bytes, now.live[kind].bytes, out.bytes, back.bytes);
    add(totals.requested, now.live[kind].requested, out.requested, back.requested);
    add(totals.active_blocks, now.active_blocks[kind], out.blocks,
        back.blocks - pending_blocks + base_pending_blocks_[kind]);
    add(totals.active_bytes, now.active_bytes[kind], out.bytes, back.bytes - pending_bytes + base_pending_bytes_[kind]);
  }
  for (int kind = 0; kind <= kKinds; ++kind) {
    totals.blocks[kind].peak = peaks_.live[kind].blocks;
    totals.bytes[kind].peak = peaks_.live[kind].bytes;
    totals.requested[kind].peak = peaks_.live[kind].requested;
    totals.active_blocks[kind].peak = peaks_.active_blocks[kind];
    totals.active_bytes[kind].peak = peaks_.active_bytes[kind];
  }
  unlock_lanes();
  return totals;
}

void BlockCounters::reset_peaks() {
  Lock settle(settle_mutex_);
  lock_lanes();
  Sums now = sums();
  peaks_ = Peaks{};
  raise_peaks(now);
  deal_credit(now, nullptr);
  unlock_lanes();
}

void BlockCounters::reset_accumulated() {
  Lock settle(settle_mutex_);
  lock_lanes();
  for (int kind = 0; kind < kKinds; ++kind) {
    base_handed_out_[kind] = base_taken_back_[kind] = Usage{};
    each_lane([&](const Lane& lane) {
      base_handed_out_[kind] += lane.counters[kind].handed_out;
      base_taken_back_[kind] += lane.counters[kind].taken_back;
    });
    base_pending_blocks_[kind] = pending_blocks_[kind].load(std::memory_order_relaxed);
    base_pending_bytes_[kind] = pending_bytes_[kind].load(std::memory_order_relaxed);
  }
  unlock_lanes();
}

void BlockCounters::decay_high_water() {
  Lock settle(settle_mutex_);
  lock_lanes();
  Sums now = sums();
  unlock_lanes();
  int64_t live = now.live[kKinds].requested, high = live_high_water();
  if (live < high) live_high_water_.store(live + (high - live) / 2, std::memory_order_relaxed);
}

}  // namespace pyalloc
