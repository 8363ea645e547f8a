// Which sizes die young: for one stream, what became of the last blocks of each size. A block is young as long as fewer
// than kYoung blocks over 16 KiB were allocated on its stream after it. A size whose blocks died young several times in
// a row is expected to do so again; one of which a block has died older than that is not, until it has made up for it. So
// what never dies teaches nothing.
//
// A table by a hash of the size, of which a new size takes the place. Read and written without a lock: a lost update
// costs a guess. Used by DeviceHeap for blocks that no scope and no instrumentation has placed.
#pragma once
#include <atomic>
#include <cstdint>

namespace pyalloc {

class Lifetimes {
 public:
  // The birth of the next block; from 1.
  uint64_t tick() {
    uint64_t now = clock_.load(std::memory_order_relaxed) + 1;
    clock_.store(now, std::memory_order_relaxed);
    return now;
  }
  bool dies_young(uint64_t units) const {
    uint64_t seen = entry(units).load(std::memory_order_relaxed);
    return seen >> kScoreBits == units && (seen & kScore) >= kSure;
  }
  void died(uint64_t units, uint64_t birth) {
    bool young = clock_.load(std::memory_order_relaxed) - birth < kYoung;
    uint64_t seen = entry(units).load(std::memory_order_relaxed);
    uint64_t score = seen >> kScoreBits == units ? seen & kScore : kUnknown;
    score = young ? score + (score < kMost ? 1 : 0) : 0;
    entry(units).store(units << kScoreBits | score, std::memory_order_relaxed);
  }

 private:
  static constexpr uint64_t kYoung = 256;
  static constexpr int kScoreBits = 8, kTableBits = 10;
  // Three young deaths of a new size make it sure, eight after a block that lived long.
  static constexpr uint64_t kScore = 255, kUnknown = 5, kSure = 8, kMost = 12;

  std::atomic<uint64_t>& entry(uint64_t units) { return table_[units * 0x9E3779B97F4A7C15ull >> (64 - kTableBits)]; }
  const std::atomic<uint64_t>& entry(uint64_t units) const { return const_cast<Lifetimes*>(this)->entry(units); }

  std::atomic<uint64_t> clock_{0};
  std::atomic<uint64_t> table_[1 << kTableBits] = {};
};

}  // namespace pyalloc
