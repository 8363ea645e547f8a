// Sampled stacks: which code holds the memory, cheap enough to stay on (option sample_stacks:N).
//
// A block is sampled with probability 1 - exp(-bytes / N), as if every byte were taken with probability 1 / N. By bytes
// and not by count, since what fills a device is a few large blocks among very many small ones: one block in n would
// mostly miss them, and bytes tell each stack's share without bias (`weight`: the live bytes a sample stands for).
//
// Unsampled, an allocation costs a thread's own countdown and a free one look at a filter; only a sampled block takes the
// lock, which is inside nobody else's, and the core's are inside it.
#pragma once
#include <array>
#include <cmath>
#include <mutex>
#include <string>
#include <unordered_map>

#include "device_history.h"
#include "traceback.h"
#include "watch.h"

namespace pyalloc_bridge {

class Samples {
 public:
  // 0: none, and those there are are forgotten.
  void every(uint64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    every_ = static_cast<double>(bytes);
    watch(kSamples, bytes != 0);
    if (bytes != 0) return;
    live_.clear();
    for (auto& count : sampled_) count.store(0, std::memory_order_relaxed);
  }

  void allocated(const void* pointer, size_t bytes) {
    Countdown& countdown = of_thread();
    if ((countdown.bytes -= static_cast<int64_t>(bytes)) > 0) return;
    if (countdown.random == 0) {  // the thread's first: a countdown has still to be drawn
      countdown.random = reinterpret_cast<uintptr_t>(&countdown) ^ static_cast<uint64_t>(c10::getApproximateTime());
      countdown.bytes += draw(countdown);
      if (countdown.bytes > 0) return;
    }
    countdown.bytes = draw(countdown);
    sample(pointer, bytes);
  }

  // Before the core frees it: its address may be another block's at once.
  void freed(const void* pointer) {
    const auto address = reinterpret_cast<uint64_t>(pointer);
    if (C10_LIKELY(sampled_[slot(address)].load(std::memory_order_relaxed) == 0)) return;
    Context context;  // goes without the lock
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = live_.find(address);
    if (found == live_.end()) return;
    context = std::move(found->second.context);
    live_.erase(found);
    sampled_[slot(address)].fetch_sub(1, std::memory_order_relaxed);
  }

  Context context_of(uint64_t address) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = live_.find(address);
    return found != live_.end() ? found->second.context : nullptr;
  }

  // [{"address", "device", "pool", "stream", "bytes", "weight"}...] of the live sampled blocks.
  std::string json() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::string text = "[";
    for (const auto& [address, one] : live_) {
      BlockFacts block{};
      if (!block_at(reinterpret_cast<void*>(address), block)) continue;  // another thread has just freed it
      const char* pool = core->pool_name(block.owner.pool);
      text += (text.size() > 1 ? ",\n {\"address\": " : "{\"address\": ") + std::to_string(address) +
              ", \"device\": " + std::to_string(block.owner.device) + ", \"pool\": \"" + (pool != nullptr ? pool : "") +
              "\", \"stream\": " + std::to_string(reinterpret_cast<uint64_t>(block.view.stream)) +
              ", \"bytes\": " + std::to_string(one.bytes) +
              ", \"weight\": " + std::to_string(static_cast<uint64_t>(one.weight)) + "}";
    }
    return text + "]";
  }

 private:
  struct Countdown {
    int64_t bytes = 0;    // until the next sample
    uint64_t random = 0;  // 0: not begun
  };
  struct Sample {
    Context context;
    size_t bytes;
    double weight;
  };

  static Countdown& of_thread() {
    static thread_local Countdown countdown;
    return countdown;
  }
  static constexpr int kSlotBits = 14;
  static size_t slot(uint64_t address) { return (address >> 9) * 0x9E3779B97F4A7C15ull >> (64 - kSlotBits); }

  // Bytes to the next sample: exponential with mean every_.
  int64_t draw(Countdown& countdown) const {
    countdown.random ^= countdown.random << 13;
    countdown.random ^= countdown.random >> 7;
    countdown.random ^= countdown.random << 17;
    const double uniform = (static_cast<double>(countdown.random >> 11) + 1) / 9007199254740992.0;  // in (0, 1]
    return 1 + static_cast<int64_t>(std::min(-std::log(uniform) * every_, 1e18));
  }

  void sample(const void* pointer, size_t bytes) {
    const auto size = static_cast<double>(bytes);
    Sample one{gather_python_stack(), bytes, size / -std::expm1(-size / every_)};
    const auto address = reinterpret_cast<uint64_t>(pointer);
    std::lock_guard<std::mutex> lock(mutex_);
    if (live_.insert_or_assign(address, std::move(one)).second)
      sampled_[slot(address)].fetch_add(1, std::memory_order_relaxed);
  }

  double every_ = 0;
  std::array<std::atomic<uint16_t>, 1 << kSlotBits> sampled_{};  // live samples by a hash of their address
  std::mutex mutex_;
  std::unordered_map<uint64_t, Sample> live_;
};

inline Samples& samples = *new Samples;  // for ever: blocks are freed until the process ends

}  // namespace pyalloc_bridge
