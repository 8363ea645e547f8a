// Sizes and indices are drawn before the clock starts, so that a loop holds the allocator's calls and two array reads.
#include "latency.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>

#include "streams.h"

namespace bench {
namespace {

constexpr uint64_t kMiB = 1 << 20;

thread_local std::string last_error;

template <typename F>
int guarded(F run) {
  try {
    run();
    return 0;
  } catch (const c10::Error& error) {
    last_error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return -1;
}

template <typename F>
double time_ns(F run) {
  auto started = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - started).count();
}

// Sizes of a log-normal law, 1 byte to 1 MiB: median 13 KiB, a long tail.
class Sizes {
 public:
  explicit Sizes(uint64_t seed) : engine_(seed) {}
  uint64_t size() { return static_cast<uint64_t>(std::clamp(law_(engine_), 1.0, static_cast<double>(kMiB))); }
  uint64_t below(uint64_t bound) { return engine_() % bound; }

 private:
  std::mt19937_64 engine_;
  std::lognormal_distribution<double> law_{9.5, 2.0};
};

// Live blocks of one stream, and the replacements to be made among them.
class Churn {
 public:
  Churn(uint64_t live, uint64_t replacements, uint64_t seed, cudaStream_t stream)
      : stream_(stream), blocks_(live), initial_(live), sizes_(replacements), victims_(replacements) {
    TORCH_CHECK(live > 0 && replacements > 0, live, " live blocks and ", replacements,
                " replacements; expected at least one of each");
    Sizes sizes(seed);
    for (uint64_t& size : initial_) size = sizes.size();
    for (uint64_t i = 0; i < replacements; ++i) {
      sizes_[i] = sizes.size();
      victims_[i] = static_cast<uint32_t>(sizes.below(live));
    }
  }
  void fill() {
    for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i] = cca::raw_alloc_with_stream(initial_[i], stream_);
  }
  void replace() {
    for (size_t i = 0; i < sizes_.size(); ++i) {
      void*& block = blocks_[victims_[i]];
      cca::raw_delete(block);
      block = cca::raw_alloc_with_stream(sizes_[i], stream_);
    }
  }
  void clear() {
    for (void* block : blocks_) cca::raw_delete(block);
  }
  uint64_t initial_bytes() const {
    uint64_t sum = 0;
    for (uint64_t size : initial_) sum += size;
    return sum;
  }
  // Every replacement gets the size of the block it replaces, so that the live bytes never exceed the initial ones.
  void keep_sizes() {
    for (size_t i = 0; i < sizes_.size(); ++i) sizes_[i] = initial_[victims_[i]];
  }

 private:
  cudaStream_t stream_;
  std::vector<void*> blocks_;
  std::vector<uint64_t> initial_, sizes_;
  std::vector<uint32_t> victims_;
};

// Threads meet here; the last one to come lets all go.
class Gate {
 public:
  explicit Gate(uint32_t threads) : threads_(threads) {}
  void pass() {
    uint32_t round = round_.load();
    if (arrived_.fetch_add(1) + 1 == threads_) {
      arrived_ = 0;
      ++round_;
      return;
    }
    while (round_.load() == round) std::this_thread::yield();
  }

 private:
  const uint32_t threads_;
  std::atomic<uint32_t> arrived_{0}, round_{0};
};

// Runs work(thread, stream) in `threads` threads, each with a stream of torch's pool as its current one.
template <typename F>
void in_threads(uint32_t threads, F work) {
  std::vector<c10::cuda::CUDAStream> streams = make_streams(threads + 1);
  std::vector<std::thread> running;
  std::vector<std::string> errors(threads);
  for (uint32_t t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      c10::cuda::setCurrentCUDAStream(streams[t + 1]);
      if (guarded([&] { work(t, streams[t + 1].stream()); }) != 0) errors[t] = last_error;
    });
  }
  for (std::thread& thread : running) thread.join();
  for (const std::string& error : errors) TORCH_CHECK(error.empty(), error);
}

double random_allocations(uint64_t count, uint64_t max_bytes, uint64_t* operations) {
  constexpr uint64_t kMostLive = 16000 * kMiB;
  constexpr int kAllocatePercent = 73;
  struct Operation {
    uint64_t bytes;  // 0: free
    uint32_t slot;   // of the block allocated or freed
  };
  std::vector<Operation> plan;
  std::vector<std::pair<uint32_t, uint64_t>> live;  // slot, bytes
  std::default_random_engine engine;
  std::uniform_int_distribution<uint64_t> size_law(1, max_bytes), index_law(0, count - 1);
  std::uniform_int_distribution<int> percent(0, 99);
  uint64_t live_bytes = 0;
  uint32_t allocated = 0;
  for (uint64_t i = 0; i < 2 * count; ++i) {
    uint64_t bytes = size_law(engine);
    bool allocate =
        live.empty() || (percent(engine) < kAllocatePercent && allocated < count && live_bytes + bytes < kMostLive);
    if (allocate) {
      plan.push_back({bytes, allocated});
      live.emplace_back(allocated++, bytes);
      live_bytes += bytes;
    } else {
      uint64_t index = index_law(engine) % live.size();
      plan.push_back({0, live[index].first});
      live_bytes -= live[index].second;
      live[index] = live.back();
      live.pop_back();
    }
  }
  std::vector<void*> blocks(allocated);
  *operations = plan.size();
  double ns = time_ns([&] {
    for (const Operation& operation : plan) {
      void*& block = blocks[operation.slot];
      if (operation.bytes != 0) {
        block = cca::raw_alloc_with_stream(operation.bytes, nullptr);
      } else {
        cca::raw_delete(block);
      }
    }
  });
  for (const auto& [slot, bytes] : live) cca::raw_delete(blocks[slot]);
  return ns / static_cast<double>(plan.size());
}

}  // namespace
}  // namespace bench

using namespace bench;

#define BENCH_API extern "C" __attribute__((visibility("default")))

BENCH_API const char* bench_error(void) { return last_error.c_str(); }

BENCH_API int bench_pair(uint64_t bytes, uint64_t pairs, double* ns) {
  return guarded([&] {
    *ns = time_ns([&] {
      for (uint64_t i = 0; i < pairs; ++i) cca::raw_delete(cca::raw_alloc_with_stream(bytes, nullptr));
    });
    *ns /= static_cast<double>(pairs);
  });
}

BENCH_API int bench_random(uint64_t live, uint64_t replacements, uint64_t seed, double* ns) {
  return guarded([&] {
    Churn churn(live, replacements, seed, nullptr);
    churn.fill();
    *ns = time_ns([&] { churn.replace(); }) / static_cast<double>(replacements);
    churn.clear();
  });
}

BENCH_API int bench_hold(uint64_t live, uint64_t seed) {
  return guarded([&] { Churn(live, 1, seed, nullptr).fill(); });
}

BENCH_API int bench_rmm(uint64_t count, uint64_t max_mib, double* ns, uint64_t* operations) {
  return guarded([&] { *ns = random_allocations(count, max_mib * kMiB, operations); });
}

BENCH_API int bench_threads(uint32_t threads, uint64_t live, uint64_t replacements, double* ns) {
  return guarded([&] {
    Gate gate(threads);
    std::atomic<double> wall{0};
    in_threads(threads, [&](uint32_t thread, cudaStream_t stream) {
      Churn churn(live, replacements, thread + 1, stream);
      churn.fill();
      churn.replace();  // warm: memory and metadata are there
      churn.clear();
      churn.fill();
      gate.pass();
      double own = time_ns([&] {
        churn.replace();
        gate.pass();
      });
      if (thread == 0) wall = own;
      churn.clear();
    });
    *ns = wall / static_cast<double>(threads * replacements);
  });
}

BENCH_API int bench_peaks(uint32_t threads, uint64_t live, uint64_t replacements, int32_t* exact) {
  return guarded([&] {
    auto stats = cca::getDeviceStats(0);
    auto blocks = stats.allocation[0].current, bytes = stats.requested_bytes[0].current;
    cca::resetPeakStats(0);
    Gate gate(threads);
    std::atomic<uint64_t> held{0};
    in_threads(threads, [&](uint32_t thread, cudaStream_t stream) {
      Churn churn(live, replacements, thread + 1, stream);
      churn.keep_sizes();
      held += churn.initial_bytes();
      churn.fill();
      gate.pass();
      churn.replace();
      churn.clear();
    });
    stats = cca::getDeviceStats(0);
    *exact = stats.allocation[0].peak == blocks + static_cast<int64_t>(threads * live) &&
             stats.requested_bytes[0].peak == bytes + static_cast<int64_t>(held.load());
  });
}
