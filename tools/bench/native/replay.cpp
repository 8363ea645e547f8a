// Replays an allocation trace through c10's allocator interface, whichever allocator stands behind it.
//
// Modelled: every alloc and free row enqueues one use of the block on its stream, so that streams are busy as they were in the traced
// program; an allocator that must wait for them has something to wait for. A use is finished `work_us` of trace time after it was
// enqueued, however many are under way. simgpu's streams are queues whose operations follow each other, so a use is given the time
// since the one before it, at most work_us: it then ends when it should. Driver calls cost what the cost table says, on a sum
// of their own, and take no trace time.
// Not modelled: the allocator's calls alone, in one timed loop.
#include "replay.h"

#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "simulation.h"
#include "streams.h"

namespace bench {
namespace {

struct Block {
  void* pointer = nullptr;
  uint64_t bytes = 0;
  uint16_t stream = 0;
};

class Replay {
 public:
  Replay(const bench_replay_options& options, bench_replay_result& result)
      : options_(options),
        result_(result),
        allocator_(*cca::get()),
        streams_(make_streams(options.streams)),
        blocks_(options.blocks),
        last_use_us_(options.streams, -1e30) {
    TORCH_CHECK(options.modelled == 0 || simulation_.present(), "modelled replays need the simulated GPU");
  }

  void run() {
    TORCH_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming) == cudaSuccess, "no event could be created");
    auto started = std::chrono::steady_clock::now();
    if (options_.modelled != 0) {
      run_modelled();
    } else {
      run_plain();
    }
    result_.loop_ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - started).count();
    auto stats = allocator_.getDeviceStats(0);
    result_.allocator_reserved_peak = static_cast<uint64_t>(stats.reserved_bytes[0].peak);
    result_.retries = stats.num_alloc_retries;
    result_.out_of_memories = stats.num_ooms;
    if (simulation_.present()) result_.violations = simulation_.simgpu_violations();
  }

 private:
  void run_plain() {
    for (uint64_t i = 0; i < options_.row_count && result_.failed_row < 0; ++i) {
      const bench_row& row = options_.rows[i];
      if (prepare(row)) guarded(i, row);
    }
  }

  void run_modelled() {
    double now_us = options_.row_count > 0 ? options_.rows[0].time_us : 0, maintained_us = now_us;
    double charged = simulation_.simgpu_charged_us();
    (void)new_unmaps();
    uint64_t baseline = simulation_.simgpu_used(0), live = 0, interval_live = 0;
    for (uint64_t i = 0; i < options_.row_count; ++i) {
      const bench_row& row = options_.rows[i];
      if (i == options_.split_row) simulation_.simgpu_calls_json(result_.calls_at_split, sizeof result_.calls_at_split);
      if (row.time_us > now_us) simulation_.simgpu_advance(row.time_us - now_us);
      now_us = std::max(now_us, row.time_us);
      if (options_.maintain != nullptr && now_us - maintained_us >= options_.maintain_us) {
        options_.maintain(0);
        maintained_us = now_us;
        double cost = spent(charged);
        result_.background_us += cost;
        if (cost > 0) (void)new_unmaps();
      }
      if (!prepare(row)) continue;
      if (row.op == BENCH_FREE) use(blocks_[row.block].stream, blocks_[row.block], now_us);
      uint64_t freed = row.op == BENCH_FREE ? blocks_[row.block].bytes : 0;
      guarded(i, row);
      double cost = spent(charged);
      result_.path_us += cost;
      if (cost > 0) result_.path_unmaps += new_unmaps();
      if (options_.costs_us != nullptr) options_.costs_us[i] = static_cast<float>(cost);
      uint64_t reserved = simulation_.simgpu_used(0) - baseline;
      result_.reserved_peak = std::max(result_.reserved_peak, reserved);
      if (result_.failed_row >= 0) break;
      if (row.op == BENCH_ALLOC) {
        live += row.bytes;
        use(row.stream, blocks_[row.block], now_us);
      } else if (row.op == BENCH_RECORD) {
        use(row.stream, blocks_[row.block], now_us);
      }
      interval_live = std::max(interval_live, live);
      live -= freed;
      result_.live_peak = std::max(result_.live_peak, live);
      if (options_.sample_rows != 0 && i % options_.sample_rows == 0) {
        options_.samples[2 * result_.sample_count] = interval_live;
        options_.samples[2 * result_.sample_count + 1] = reserved;
        ++result_.sample_count;
        interval_live = 0;
      }
      if (options_.validate != nullptr && i % options_.validate_rows == 0) {
        TORCH_CHECK(options_.validate(0) == 0, "the allocator's own check failed after row ", i);
        ++result_.validations;
        (void)spent(charged);
      }
    }
  }

  // Charges since the last call.
  double spent(double& before) {
    double now = simulation_.simgpu_charged_us(), cost = now - before;
    before = now;
    return cost;
  }

  // cuMemUnmap calls since the last call.
  uint64_t new_unmaps() {
    int64_t before = unmaps_;
    unmaps_ = simulation_.simgpu_calls("cuMemUnmap");
    return static_cast<uint64_t>(unmaps_ - before);
  }

  // The stream and the pool that the row's call is made under. False: a free or record of a block that is not live.
  bool prepare(const bench_row& row) {
    if ((row.op == BENCH_FREE || row.op == BENCH_RECORD) && blocks_[row.block].pointer == nullptr) return false;
    if (row.op == BENCH_ALLOC) {
      if (row.stream != current_stream_) {
        c10::cuda::setCurrentCUDAStream(streams_[row.stream]);
        current_stream_ = row.stream;
      }
      if (row.pool != current_pool_) enter_pool(row.pool);
    }
    return true;
  }

  // Private pools take what any stream allocates while they are active, as a capture does. An allocator without them serves the default pool.
  void enter_pool(uint8_t pool) {
    if (options_.push_pool != nullptr) {
      bool good =
          (current_pool_ == 0 || options_.pop_pool(current_pool_) == 0) && (pool == 0 || options_.push_pool(pool) == 0);
      TORCH_CHECK(good, "pool ", static_cast<int>(pool), " could not be entered");
      current_pool_ = pool;
      return;
    }
    if (result_.pools_honoured == 0) return;
    try {
      if (current_pool_ != 0) allocator_.endAllocateToPool(0, {0, current_pool_});
      current_pool_ = 0;
      if (pool != 0) allocator_.beginAllocateToPool(0, {0, pool}, [](cudaStream_t) { return true; });
      current_pool_ = pool;
    } catch (const c10::NotImplementedError&) {
      result_.pools_honoured = 0;
    }
  }

  void guarded(uint64_t i, const bench_row& row) {
    try {
      call(row);
      result_.rows_done = i + 1;
    } catch (const c10::OutOfMemoryError& error) {
      result_.failed_row = static_cast<int64_t>(i);
      result_.out_of_memory = 1;
      std::snprintf(result_.error, sizeof result_.error, "%s", error.what_without_backtrace());
    }
  }

  void call(const bench_row& row) {
    switch (row.op) {
      case BENCH_ALLOC: {
        Block& block = blocks_[row.block];
        block.pointer =
            allocator_.raw_alloc_with_stream(std::max<uint64_t>(row.bytes, 1), streams_[row.stream].stream());
        block.bytes = row.bytes;
        block.stream = row.stream;
        return;
      }
      case BENCH_FREE:
        allocator_.raw_delete(blocks_[row.block].pointer);
        blocks_[row.block].pointer = nullptr;
        return;
      case BENCH_RECORD: {
        void* pointer = blocks_[row.block].pointer;
        c10::DataPtr data(pointer, pointer, allocator_.raw_deleter(), c10::Device(c10::DeviceType::CUDA, 0));
        allocator_.recordStream(data, streams_[row.stream]);
        data.release_context();
        return;
      }
      default: {
        cudaError_t error = cudaEventRecord(event_, streams_[row.block].stream());
        if (error == cudaSuccess) error = cudaStreamWaitEvent(streams_[row.stream].stream(), event_, 0);
        TORCH_CHECK(error == cudaSuccess, "a wait between streams failed: ", cudaGetErrorString(error));
        ++result_.own_records;
        ++result_.own_waits;
      }
    }
  }

  // A kernel that reads the block; a read leaves the simulated memory empty, so that it costs the host nothing.
  void use(uint16_t stream, const Block& block, double now_us) {
    simulation_.simgpu_set_work_time(std::min(options_.work_us, now_us - last_use_us_[stream]));
    last_use_us_[stream] = now_us;
    simgpu_span span{reinterpret_cast<uint64_t>(block.pointer), std::max<uint64_t>(block.bytes, 1)};
    int error = simulation_.simgpu_launch(streams_[stream].stream(), &span, 1, nullptr, 0, 0);
    TORCH_CHECK(error == 0, "the simulated kernel failed with driver error ", error);
  }

  const bench_replay_options& options_;
  bench_replay_result& result_;
  Simulation simulation_;
  cca::CUDAAllocator& allocator_;
  std::vector<c10::cuda::CUDAStream> streams_;
  std::vector<Block> blocks_;
  std::vector<double> last_use_us_;
  cudaEvent_t event_ = nullptr;
  int64_t unmaps_ = 0;
  uint16_t current_stream_ = UINT16_MAX;
  uint8_t current_pool_ = 0;
};

}  // namespace
}  // namespace bench

extern "C" __attribute__((visibility("default"))) int bench_replay(const bench_replay_options* options,
                                                                   bench_replay_result* result) {
  *result = {};
  result->failed_row = -1;
  result->pools_honoured = 1;
  try {
    bench::Replay(*options, *result).run();
    return 0;
  } catch (const c10::Error& error) {
    std::snprintf(result->error, sizeof result->error, "%s", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::snprintf(result->error, sizeof result->error, "%s", error.what());
  }
  return -1;
}
