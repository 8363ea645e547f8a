// Many threads at once: own and shared streams, deferred work, frees from other threads, record_stream, trims, a device nearly full
// and the maintenance thread running. Every block's bytes are checked, the ordering oracle is on, and the books agree at the end.
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "gpu.h"

using namespace test;

namespace {

struct Block {
  void* pointer = nullptr;
  void* stream = nullptr;
  size_t bytes = 0;
  uint8_t mark = 0;
};

// Blocks handed from thread to thread.
class Exchange {
 public:
  // Leaves `block`, takes the oldest other one when there are many.
  Block swap(Block block) {
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_.push_back(block);
    if (blocks_.size() < 16) return {};
    Block out = blocks_.front();
    blocks_.erase(blocks_.begin());
    return out;
  }
  std::vector<Block> rest() { return blocks_; }

 private:
  std::mutex mutex_;
  std::vector<Block> blocks_;
};

struct Shared {
  Exchange exchange;
  std::vector<void*> streams;  // two of them used by everyone
  std::atomic<int64_t> wrong_bytes{0}, failed_calls{0}, refused{0}, allocations{0};
};

// The block's own stream is done with what came before; then its bytes are what its owner wrote.
void check_and_free(Shared& shared, const Block& block) {
  if (cuStreamSynchronize(static_cast<pyalloc::cuda::Stream>(block.stream)) != pyalloc::cuda::kSuccess)
    ++shared.failed_calls;
  if (!holds(block.pointer, block.bytes, block.mark)) ++shared.wrong_bytes;
  if (deallocate(block.pointer) != PYALLOC_OK) ++shared.failed_calls;
}

void work(Shared& shared, uint64_t seed, int steps, bool records) {
  Gpu::use(0);
  Random random(seed);
  std::vector<Block> mine;
  void* own = shared.streams[2 + seed % (shared.streams.size() - 2)];
  for (int step = 0; step < steps; ++step) {
    uint64_t choice = random.below(100);
    if (choice < 52) {
      Block block;
      block.stream = random.below(4) == 0 ? shared.streams[random.below(2)] : own;
      block.bytes = random.bytes(6 * kMiB);
      block.mark = static_cast<uint8_t>(1 + random.below(255));
      block.pointer = allocate(block.bytes, block.stream);
      if (block.pointer == nullptr) {
        ++shared.refused;  // the device is full: give something up and go on
        for (size_t i = 0; i < mine.size() / 2; ++i) {
          check_and_free(shared, mine.back());
          mine.pop_back();
        }
        continue;
      }
      ++shared.allocations;
      if (!fill(block.stream, block.pointer, block.bytes, block.mark)) ++shared.failed_calls;
      mine.push_back(block);
    } else if (choice < 88 && !mine.empty()) {
      size_t at = random.below(mine.size());
      Block block = mine[at];
      mine[at] = mine.back();
      mine.pop_back();
      if (records && random.below(3) == 0) {
        // Another stream reads it after its own stream has written it, and is still reading when it is freed.
        void* other = shared.streams[random.below(shared.streams.size())];
        cuStreamSynchronize(static_cast<pyalloc::cuda::Stream>(block.stream));
        if (pyalloc_record_stream(block.pointer, other, PYALLOC_STREAM_OWNED) != PYALLOC_OK) ++shared.failed_calls;
        if (!read(other, block.pointer, block.bytes)) ++shared.failed_calls;
      }
      if (random.below(3) == 0) {
        block = shared.exchange.swap(block);
        if (block.pointer == nullptr) continue;
      }
      if (random.below(4) == 0) {
        check_and_free(shared, block);
      } else if (deallocate(block.pointer) != PYALLOC_OK) {  // work on it may still be queued
        ++shared.failed_calls;
      }
    } else if (choice < 90) {
      simgpu_step(static_cast<int64_t>(random.below(8)));
    } else if (choice == 90 && random.below(4) == 0) {
      pyalloc_trim(0, nullptr);
    } else if (choice == 91) {
      stats();
    } else if (choice == 92 && random.below(8) == 0) {
      pyalloc_reset_peak_stats(0);
    }
  }
  for (const Block& block : mine) check_and_free(shared, block);
}

void stress(const char* simulation, const char* configuration, int threads, int steps, bool records) {
  Gpu gpu(simulation, configuration);
  Shared shared;
  for (int i = 0; i < 6; ++i) shared.streams.push_back(gpu.stream());
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) running.emplace_back(work, std::ref(shared), 100 + i, steps, records);
  for (std::thread& one : running) one.join();
  for (const Block& block : shared.exchange.rest()) check_and_free(shared, block);
  CHECK_EQ(shared.wrong_bytes.load(), int64_t{0});
  CHECK_EQ(shared.failed_calls.load(), int64_t{0});
  CHECK(shared.allocations > threads * steps / 8);
  CHECK(valid());
  simgpu_step(-1);
  trim();
  pyalloc_device_stats end = stats();
  CHECK_EQ(end.allocation[0].current, int64_t{0});
  CHECK_EQ(end.allocated_bytes[0].current, int64_t{0});
  CHECK_EQ(end.requested_bytes[0].current, int64_t{0});
  CHECK_EQ(end.allocation[0].allocated, shared.allocations.load());
  CHECK_EQ(end.bad_frees, int64_t{0});
  CHECK_EQ(end.reserved_bytes[0].current, int64_t{0});
  CHECK(valid());
}

constexpr int kSteps = 6000 / kSlowdown;

}  // namespace

TEST(eight_threads_deferred_streams) {
  stress("memory:128MiB,streams:deferred,seed:21", "maintenance:on,decay:1", 8, kSteps, true);
}
TEST(eight_threads_nearly_full_limit) {
  stress("memory:256MiB,streams:deferred,seed:22", "maintenance:on,limit:24MiB", 8, kSteps, true);
}
TEST(four_threads_without_gpu_side_waits) {
  stress("memory:64MiB,streams:deferred,seed:23", "maintenance:on,cross_stream_wait:off", 4, kSteps, true);
}
TEST(eight_threads_with_full_checks) {
  stress("memory:96MiB,streams:immediate", "maintenance:on,check:full,slack:0", 8, kSteps / 4, false);
}
