// Sizes and indices are drawn before the clock starts, so that a loop holds the allocator's calls and two array reads.
//
// What one thread does is measured in the processor time of its process, which other programs on the machine do not add
// to, and threads of the allocator do; what several threads do together, where waiting for each other is the point, in
// wall time.
#include "latency.h"

#include <fcntl.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "streams.h"

namespace bench {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kDrawnAtOnce = 4096;  // what is drawn stays in the nearest caches

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

double now_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

// How long the thread that made it was ready to run and had no core.
class Waiting {
 public:
  Waiting() : file_(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {
    TORCH_CHECK(file_ >= 0, "/proc/thread-self/schedstat cannot be read; expected a kernel with scheduler statistics");
  }
  ~Waiting() { close(file_); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  double ns() const {
    char text[128];
    ssize_t length = pread(file_, text, sizeof text - 1, 0);
    text[std::max<ssize_t>(length, 0)] = 0;
    unsigned long long ran = 0, waited = 0;
    TORCH_CHECK(std::sscanf(text, "%llu %llu", &ran, &waited) == 2, "/proc/thread-self/schedstat says '", text, "'");
    return static_cast<double>(waited);
  }

 private:
  int file_;
};

template <typename F>
double time_ns(clockid_t clock, F run) {
  double started = now_ns(clock);
  run();
  return now_ns(clock) - started;
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
  Churn(uint64_t live, uint64_t seed, cudaStream_t stream)
      : stream_(stream), law_(seed), blocks_(live), initial_(live) {
    TORCH_CHECK(live > 0, "0 live blocks; expected at least one");
    for (uint64_t& size : initial_) size = law_.size();
  }
  void fill() {
    for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i] = cca::raw_alloc_with_stream(initial_[i], stream_);
  }
  // What replace() will do next.
  void draw(uint64_t replacements) {
    sizes_.resize(replacements);
    victims_.resize(replacements);
    for (uint64_t i = 0; i < replacements; ++i) {
      sizes_[i] = law_.size();
      victims_[i] = static_cast<uint32_t>(law_.below(blocks_.size()));
    }
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
  Sizes law_;
  std::vector<void*> blocks_;
  std::vector<uint64_t> initial_, sizes_;
  std::vector<uint32_t> victims_;
};

std::optional<Churn> churn;  // of bench_fill

std::vector<int> own_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  TORCH_CHECK(sched_getaffinity(0, sizeof set, &set) == 0, "the cores of this process cannot be asked for");
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

// Threads meet here; the last one to come lets all go. Where there is a core for each they keep it while they wait, so
// that they start together.
class Gate {
 public:
  explicit Gate(uint32_t threads) : threads_(threads), crowded_(threads > own_cores().size()) {}
  void pass() {
    uint32_t round = round_.load();
    if (arrived_.fetch_add(1) + 1 == threads_) {
      arrived_ = 0;
      ++round_;
      return;
    }
    while (round_.load() == round) {
      if (crowded_) std::this_thread::yield();
    }
  }

 private:
  const uint32_t threads_;
  const bool crowded_;
  std::atomic<uint32_t> arrived_{0}, round_{0};
};

// Runs work(thread, stream) in `threads` threads, each with a stream of torch's pool as its current one: the same
// streams at every call. Each keeps to a core of its own where there are enough, since the kernel may take long to see
// that two of them share one.
template <typename F>
void in_threads(uint32_t threads, F work) {
  static const std::vector<c10::cuda::CUDAStream> streams = make_streams(kPoolStreams + 1);
  TORCH_CHECK(threads < streams.size(), threads, " threads; expected at most ", kPoolStreams);
  const std::vector<int> cores = own_cores();
  std::vector<std::thread> running;
  std::vector<std::string> errors(threads);
  for (uint32_t t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      if (threads <= cores.size()) {
        cpu_set_t own;
        CPU_ZERO(&own);
        CPU_SET(cores[t], &own);
        sched_setaffinity(0, sizeof own, &own);  // refused: it runs where it is put
      }
      c10::cuda::setCurrentCUDAStream(streams[t + 1]);
      if (guarded([&] { work(t, streams[t + 1].stream()); }) != 0) errors[t] = last_error;
    });
  }
  for (std::thread& thread : running) thread.join();
  for (const std::string& error : errors) TORCH_CHECK(error.empty(), error);
}

double random_allocations(uint64_t count, uint64_t max_bytes) {
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
  double ns = time_ns(CLOCK_PROCESS_CPUTIME_ID, [&] {
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
    *ns = time_ns(CLOCK_PROCESS_CPUTIME_ID, [&] {
      for (uint64_t i = 0; i < pairs; ++i) cca::raw_delete(cca::raw_alloc_with_stream(bytes, nullptr));
    });
    *ns /= static_cast<double>(pairs);
  });
}

BENCH_API int bench_fill(uint64_t live, uint64_t seed) {
  return guarded([&] {
    TORCH_CHECK(!churn.has_value(), "blocks are live already; expected bench_clear first");
    churn.emplace(live, seed, nullptr);
    churn->fill();
  });
}

BENCH_API int bench_replace(uint64_t replacements, double* ns) {
  return guarded([&] {
    TORCH_CHECK(churn.has_value() && replacements > 0, replacements,
                " replacements; expected at least one, after bench_fill");
    double sum = 0;
    for (uint64_t left = replacements; left > 0;) {
      uint64_t now = std::min(left, kDrawnAtOnce);
      churn->draw(now);
      sum += time_ns(CLOCK_PROCESS_CPUTIME_ID, [&] { churn->replace(); });
      left -= now;
    }
    *ns = sum / static_cast<double>(replacements);
  });
}

BENCH_API int bench_clear(void) {
  return guarded([&] {
    if (churn.has_value()) churn->clear();
    churn.reset();
  });
}

BENCH_API int bench_rmm(uint64_t count, uint64_t max_mib, double* ns) {
  return guarded([&] { *ns = random_allocations(count, max_mib * kMiB); });
}

BENCH_API int bench_threads(uint32_t threads, uint64_t live, uint64_t replacements, uint32_t heats, double* wall,
                            double* waited) {
  return guarded([&] {
    struct Share {
      double started, ended, waited;
    };
    std::vector<Share> shares(threads);
    Gate gate(threads);
    in_threads(threads, [&](uint32_t thread, cudaStream_t stream) {
      Waiting waiting;
      Churn own(live, thread + 1, stream);
      own.fill();
      for (uint32_t heat = 0; heat < heats; ++heat) {
        own.draw(replacements);
        gate.pass();
        double before = waiting.ns(), started = now_ns(CLOCK_MONOTONIC);
        own.replace();
        double ended = now_ns(CLOCK_MONOTONIC);
        shares[thread] = {started, ended, waiting.ns() - before};
        gate.pass();
        if (thread == 0) {
          double first = started, last = ended, lost = 0;
          for (const Share& share : shares) {
            first = std::min(first, share.started);
            last = std::max(last, share.ended);
          }
          for (const Share& share : shares) lost += share.started - first + share.waited;  // starting late is waiting
          wall[heat] = (last - first) / static_cast<double>(threads * replacements);
          waited[heat] = lost / (last - first);
        }
        gate.pass();
      }
      own.clear();
    });
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
      Churn own(live, thread + 1, stream);
      own.draw(replacements);
      own.keep_sizes();
      held += own.initial_bytes();
      own.fill();
      gate.pass();
      own.replace();
      own.clear();
    });
    stats = cca::getDeviceStats(0);
    *exact = stats.allocation[0].peak == blocks + static_cast<int64_t>(threads * live) &&
             stats.requested_bytes[0].peak == bytes + static_cast<int64_t>(held.load());
  });
}
