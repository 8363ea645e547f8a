// Peaks without a shared counter: exact against a serial model over many lanes, and exact with many threads.
#include "facts/block_counters.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>
#include <vector>

#include "gpu.h"

using namespace pyalloc;
using test::kSlowdown;
using test::Random;

namespace {

struct Lanes {
  explicit Lanes(int count) : counters(heap) {
    for (int i = 0; i < count; ++i) {
      guards.emplace_back(Rank::kLane);
      lanes.push_back(&counters.add_lane(guards.back()));
    }
    lanes.push_back(&counters.extents());
  }
  void hand_out(size_t at, Kind kind, const Usage& block) {
    bool counted = false;
    {
      Lock lock(lanes[at]->mutex);
      counted = lanes[at]->counters[kind].hand_out(block);
    }
    if (!counted) counters.settle(lanes[at], kind, block);
  }
  void take_back(size_t at, Kind kind, const Usage& block) {
    Lock lock(lanes[at]->mutex);
    lanes[at]->counters[kind].take_back(block);
  }
  void take_back_pending(size_t at, Kind kind, const Usage& block) {
    Lock lock(lanes[at]->mutex);
    lanes[at]->counters[kind].take_back_pending(block);
    counters.pending_started(kind, block);
  }
  void end_pending(size_t at, Kind kind, const Usage& block) {
    Lock lock(lanes[at]->mutex);
    counters.pending_ended(kind, {1, block.bytes, 0});
  }

  RankedMutex heap{Rank::kHeap};
  std::deque<RankedMutex> guards;
  BlockCounters counters;
  std::vector<BlockCounters::Lane*> lanes;
};

struct Model {
  History blocks[3], bytes[3], requested[3], active_blocks[3], active_bytes[3];
  template <class Visit>
  void each(Visit&& visit) {
    for (auto* group : {blocks, bytes, requested, active_blocks, active_bytes})
      for (int kind = 0; kind < 3; ++kind) visit(group[kind]);
  }
  static void move(History* group, Kind kind, int64_t by) {
    for (int at : {static_cast<int>(kind), 2}) {
      History& one = group[at];
      one.current += by;
      (by > 0 ? one.allocated : one.freed) += by > 0 ? by : -by;
      one.peak = std::max(one.peak, one.current);
    }
  }
  void live(Kind kind, const Usage& block, int64_t sign) {
    move(blocks, kind, sign);
    move(bytes, kind, sign * block.bytes);
    move(requested, kind, sign * block.requested);
  }
  void active(Kind kind, const Usage& block, int64_t sign) {
    move(active_blocks, kind, sign);
    move(active_bytes, kind, sign * block.bytes);
  }
};

bool same(const History& a, const History& b) {
  return a.current == b.current && a.peak == b.peak && a.allocated == b.allocated && a.freed == b.freed;
}

bool same(const BlockCounters::Totals& real, const Model& model) {
  bool equal = true;
  for (int kind = 0; kind < 3; ++kind) {
    equal = equal && same(real.blocks[kind], model.blocks[kind]) && same(real.bytes[kind], model.bytes[kind]) &&
            same(real.requested[kind], model.requested[kind]) &&
            same(real.active_blocks[kind], model.active_blocks[kind]) &&
            same(real.active_bytes[kind], model.active_bytes[kind]);
  }
  return equal;
}

struct Block {
  size_t lane;
  Kind kind;
  Usage usage;
};

Block random_block(Random& random, size_t lanes) {
  auto requested = static_cast<int64_t>(1 + random.below(size_t{1} << (1 + random.below(24))));
  int64_t bytes = (requested + 511) / 512 * 512;
  return {random.below(lanes), bytes > (1 << 20) ? kLarge : kSmall, {1, bytes, requested}};
}

}  // namespace

TEST(random_interleavings_equal_a_serial_model) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Random random(seed);
    Lanes lanes(1 + static_cast<int>(seed % 5) * 3);
    Model model;
    std::vector<Block> live, pending;
    for (int step = 0; step < 4000 / kSlowdown; ++step) {
      uint64_t choice = random.below(1000);
      if (choice < 500) {
        Block block = random_block(random, lanes.lanes.size());
        lanes.hand_out(block.lane, block.kind, block.usage);
        model.live(block.kind, block.usage, 1);
        model.active(block.kind, block.usage, 1);
        live.push_back(block);
      } else if (choice < 850 && !live.empty()) {
        size_t at = random.below(live.size());
        Block block = live[at];
        live[at] = live.back();
        live.pop_back();
        model.live(block.kind, block.usage, -1);
        if (random.below(4) == 0) {
          lanes.take_back_pending(block.lane, block.kind, block.usage);
          pending.push_back(block);
        } else {
          lanes.take_back(block.lane, block.kind, block.usage);
          model.active(block.kind, block.usage, -1);
        }
      } else if (choice < 980 && !pending.empty()) {
        Block block = pending.back();
        pending.pop_back();
        lanes.end_pending(block.lane, block.kind, block.usage);
        model.active(block.kind, block.usage, -1);
      } else if (choice < 990) {
        lanes.counters.reset_peaks();
        model.each([](History& one) { one.peak = one.current; });
      } else if (choice < 996) {
        lanes.counters.reset_accumulated();
        model.each([](History& one) { one.allocated = one.freed = 0; });
      } else {
        lanes.counters.decay_high_water();
      }
      // Asking moves credit about, so it must not be needed for exactness: asked only now and then.
      if (random.below(50) == 0) CHECK(same(lanes.counters.totals(), model));
    }
    CHECK(same(lanes.counters.totals(), model));
  }
}

TEST(high_water_follows_live_bytes_down_slowly) {
  Lanes lanes(2);
  lanes.hand_out(0, kSmall, {1, 1024, 1000});
  CHECK_EQ(lanes.counters.live_high_water(), int64_t{1000});
  lanes.take_back(0, kSmall, {1, 1024, 1000});
  lanes.counters.decay_high_water();
  CHECK_EQ(lanes.counters.live_high_water(), int64_t{500});
  for (int i = 0; i < 20; ++i) lanes.counters.decay_high_water();
  CHECK_EQ(lanes.counters.live_high_water(), int64_t{0});
}

// All threads grow, meet, shrink, meet: the peak is known exactly whatever the interleaving was.
TEST(peaks_are_exact_with_many_threads) {
  constexpr int kThreads = 8;
  Lanes lanes(kThreads - 1);  // the last thread uses the lane of extents
  std::atomic<int> arrived{0};
  auto meet = [&](int& meetings) {
    arrived.fetch_add(1);
    ++meetings;
    while (arrived.load() < kThreads * meetings) std::this_thread::yield();
  };
  std::vector<int64_t> most(kThreads);
  std::atomic<bool> broken{false};
  auto work = [&](size_t index) {
    Random random(index + 1);
    int meetings = 0;
    for (int round = 0; round < 6; ++round) {
      std::vector<Block> blocks;
      int64_t bytes = 0;
      for (int i = 0; i < 1500 / kSlowdown; ++i) {
        Block block = random_block(random, 1);
        blocks.push_back(block);
        lanes.hand_out(index, block.kind, block.usage);
        bytes += block.usage.bytes;
      }
      most[index] = bytes;
      meet(meetings);
      if (index == 0) {
        int64_t all = 0;
        for (int64_t one : most) all += one;
        BlockCounters::Totals totals = lanes.counters.totals();
        if (totals.bytes[2].current != all || totals.bytes[2].peak != all ||
            totals.blocks[2].peak != int64_t{kThreads} * (1500 / kSlowdown))
          broken = true;
      }
      meet(meetings);
      for (const Block& block : blocks) lanes.take_back(index, block.kind, block.usage);
      meet(meetings);
      if (index == 0) lanes.counters.reset_peaks();
      meet(meetings);
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  for (std::thread& one : threads) one.join();
  CHECK(!broken);
  CHECK_EQ(lanes.counters.totals().bytes[2].current, int64_t{0});
}

// Free-running threads: the peak lies between the highest sum anyone saw and the sum of each lane's own highest.
TEST(peaks_with_free_running_threads_are_bounded) {
  constexpr int kThreads = 4;
  Lanes lanes(kThreads);
  std::vector<int64_t> highest(kThreads);
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (size_t index = 0; index < kThreads; ++index) {
    threads.emplace_back([&, index] {
      Random random(index + 50);
      std::vector<Block> blocks;
      int64_t bytes = 0;
      for (int i = 0; i < 40000 / kSlowdown; ++i) {
        if (blocks.empty() || random.below(2) == 0) {
          blocks.push_back(random_block(random, 1));
          bytes += blocks.back().usage.bytes;
          lanes.hand_out(index, blocks.back().kind, blocks.back().usage);
          highest[index] = std::max(highest[index], bytes);
        } else {
          bytes -= blocks.back().usage.bytes;
          lanes.take_back(index, blocks.back().kind, blocks.back().usage);
          blocks.pop_back();
        }
      }
      for (const Block& block : blocks) lanes.take_back(index, block.kind, block.usage);
      --running;
    });
  }
  int64_t seen = 0;
  while (running > 0) seen = std::max(seen, lanes.counters.totals().bytes[2].current);
  for (std::thread& one : threads) one.join();
  int64_t bound = 0;
  for (int64_t one : highest) bound += one;
  BlockCounters::Totals totals = lanes.counters.totals();
  CHECK(totals.bytes[2].peak >= seen);
  CHECK(totals.bytes[2].peak >= *std::max_element(highest.begin(), highest.end()));
  CHECK(totals.bytes[2].peak <= bound);
  CHECK_EQ(totals.bytes[2].current, int64_t{0});
  CHECK_EQ(totals.bytes[2].allocated, totals.bytes[2].freed);
}
