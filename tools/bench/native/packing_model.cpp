// An ideal allocator of the kind pyalloc is, without a driver, streams that run behind, or time: what its way of packing can reach.
//
// Every stream has two address spaces, for blocks up to 1 MiB and above. A granule is present where some block has touched it, idle
// when none does any more. A block goes where it needs the fewest granules: among the smallest ranges that hold it, at either end, or
// at the fresh end of the space. Missing granules are created up to the budget (live high-water plus slack), then the longest idle move.
#include "packing_model.h"

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <vector>

namespace bench {
namespace {

constexpr uint64_t kGranule = 2 << 20, kAlignment = 512, kSmall = 1 << 20;
constexpr uint64_t kSpareGranules = 4;  // of the budget: edges that are shared badly
constexpr int kCandidates = 32;
constexpr uint64_t kMissingCost = 4, kIdleCost = 1;

class Space;

// Memory shared by all spaces.
struct Device {
  using Idle = std::list<std::pair<Space*, uint64_t>>;  // oldest first
  double slack = 0;
  uint64_t live = 0, live_peak = 0;
  uint64_t present = 0, created = 0, stolen = 0, runs = 0;
  Idle idle;

  uint64_t budget() const {
    return static_cast<uint64_t>(static_cast<double>(live_peak) * (1 + slack)) / kGranule + kSpareGranules;
  }
};

class Space {
 public:
  explicit Space(Device& device) : device_(device) {}

  uint64_t allocate(uint64_t bytes) {
    uint64_t best_cost = cost(top_, bytes), best = top_;
    auto best_range = by_address_.end();
    int tried = 0;
    for (auto it = by_size_.lower_bound({bytes, 0}); it != by_size_.end() && tried < kCandidates; ++it, ++tried) {
      auto [length, start] = *it;
      for (uint64_t place : {start, start + length - bytes}) {
        uint64_t found = cost(place, bytes);
        // A range is preferred to the fresh end at equal cost, a small one to a large one.
        if (found < best_cost || (found == best_cost && best_range == by_address_.end())) {
          best_cost = found;
          best = place;
          best_range = by_address_.find(start);
        }
      }
    }
    if (best_range == by_address_.end()) {
      top_ += bytes;
    } else {
      auto [start, length] = *best_range;
      forget(best_range);
      if (best > start) remember(start, best - start);
      if (best + bytes < start + length) remember(best + bytes, start + length - best - bytes);
    }
    touch(best, bytes);
    return best;
  }

  void release(uint64_t address, uint64_t bytes) {
    for (uint64_t g = first(address); g <= last(address, bytes); ++g) {
      if (--granules_[g].blocks > 0) continue;
      device_.idle.emplace_back(this, g);
      granules_[g].idle = std::prev(device_.idle.end());
    }
    auto next = by_address_.lower_bound(address);
    if (next != by_address_.end() && next->first == address + bytes) {
      bytes += next->second;
      next = forget(next);
    }
    if (next != by_address_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == address) {
        address = before->first;
        bytes += before->second;
        forget(before);
      }
    }
    remember(address, bytes);
  }

 private:
  struct Granule {
    uint32_t blocks = 0;
    bool present = false;
    Device::Idle::iterator idle;
  };
  using Ranges = std::map<uint64_t, uint64_t>;  // start -> length

  static uint64_t first(uint64_t address) { return address / kGranule; }
  static uint64_t last(uint64_t address, uint64_t bytes) { return (address + bytes - 1) / kGranule; }

  uint64_t cost(uint64_t address, uint64_t bytes) const {
    uint64_t sum = 0;
    for (uint64_t g = first(address); g <= last(address, bytes); ++g) {
      if (g >= granules_.size() || !granules_[g].present) {
        sum += kMissingCost;
      } else if (granules_[g].blocks == 0) {
        sum += kIdleCost;
      }
    }
    return sum;
  }

  void touch(uint64_t address, uint64_t bytes) {
    if (granules_.size() <= last(address, bytes)) granules_.resize(last(address, bytes) + 1);
    bool in_run = false;
    for (uint64_t g = first(address); g <= last(address, bytes); ++g) {
      Granule& granule = granules_[g];
      bool missing = !granule.present;
      if (missing) {
        provide();
        granule.present = true;
      } else if (granule.blocks == 0) {
        device_.idle.erase(granule.idle);
      }
      ++granule.blocks;
      if (missing && !in_run) ++device_.runs;
      in_run = missing;
    }
  }

  void provide() {
    if (device_.present < device_.budget() || device_.idle.empty()) {
      ++device_.present;
      ++device_.created;
      return;
    }
    auto [space, granule] = device_.idle.front();
    device_.idle.pop_front();
    space->granules_[granule].present = false;
    ++device_.stolen;
  }

  void remember(uint64_t start, uint64_t length) {
    by_address_.emplace(start, length);
    by_size_.emplace(length, start);
  }
  Ranges::iterator forget(Ranges::iterator range) {
    by_size_.erase({range->second, range->first});
    return by_address_.erase(range);
  }

  Device& device_;
  uint64_t top_ = 0;
  std::vector<Granule> granules_;
  Ranges by_address_;
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // length, start
};

struct Block {
  Space* space = nullptr;
  uint64_t address = 0, bytes = 0, requested = 0;
};

}  // namespace
}  // namespace bench

extern "C" __attribute__((visibility("default"))) int bench_packing_model(const bench_row* rows, uint64_t row_count,
                                                                          uint32_t blocks, uint32_t streams,
                                                                          double slack, bench_packing_result* result) {
  using namespace bench;
  Device device;
  device.slack = slack;
  std::vector<std::unique_ptr<Space>> spaces;
  for (uint32_t i = 0; i < 2 * streams; ++i) spaces.push_back(std::make_unique<Space>(device));
  std::vector<Block> held(blocks);
  for (uint64_t i = 0; i < row_count; ++i) {
    const bench_row& row = rows[i];
    if (row.op == BENCH_ALLOC) {
      Block& block = held[row.block];
      block.requested = row.bytes;
      block.bytes = (std::max<uint64_t>(row.bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
      device.live += block.requested;
      device.live_peak = std::max(device.live_peak, device.live);
      block.space = spaces[2 * row.stream + (block.bytes > kSmall ? 1 : 0)].get();
      block.address = block.space->allocate(block.bytes);
    } else if (row.op == BENCH_FREE && held[row.block].space != nullptr) {
      Block& block = held[row.block];
      block.space->release(block.address, block.bytes);
      block.space = nullptr;
      device.live -= block.requested;
    }
  }
  *result = {device.live_peak, device.present * kGranule, device.created, device.stolen, device.runs};
  return 0;
}
