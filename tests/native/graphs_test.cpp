// CUDA graph capture: what a capture leaves alone, what may come into a captured pool, and when its memory is given up. The captures
// are in global mode, as torch's, so a call that the driver forbids meanwhile breaks them; the ordering oracle is on.
#include "graphs.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

using namespace test;

namespace {

constexpr pyalloc_pool_key kKey{1, 0};

int64_t reserved() { return stats().reserved_bytes[0].current; }

// A step as a model runs it: temporaries that are freed again, and a result that stays.
void* step(int pool, void* stream, size_t bytes) {
  void* temporary = allocate_in(pool, bytes, stream);
  void* small = allocate_in(pool, 3000, stream);
  CHECK(fill(stream, temporary, bytes, 1) && fill(stream, small, 3000, 2));
  deallocate(small);
  void* result = allocate_in(pool, bytes / 2, stream);
  CHECK(read(stream, temporary, bytes) && fill(stream, result, bytes / 2, 3));
  deallocate(temporary);
  return result;
}

}  // namespace

TEST(a_captured_pool_keeps_its_memory_whatever_happens) {
  Gpu gpu("memory:256MiB");
  void *stream = gpu.stream(), *other = gpu.stream();
  int pool = retain(kKey);
  begin_capture(stream);
  void* result = step(pool, stream, 40 * kMiB);
  CHECK(capturing(stream));
  Graph graph(stream);
  CHECK_EQ(of_pool(kKey).captured, 1);
  int64_t held = of_pool(kKey).reserved_bytes[PYALLOC_KIND_ALL].current;
  CHECK(held >= int64_t{62} << 20);
  // Neither others, nor itself, nor anybody who asks gets what the graph will write to.
  CHECK(allocate(200 * kMiB) == nullptr);
  CHECK(allocate_in(pool, 200 * kMiB, stream) == nullptr);
  CHECK_EQ(pyalloc_private_pool_trim(0, kKey, nullptr), PYALLOC_OK);
  CHECK_EQ(pyalloc_private_pool_lend(0, kKey, 1), PYALLOC_OK);
  CHECK(allocate(200 * kMiB) == nullptr);
  trim();
  CHECK_EQ(of_pool(kKey).reserved_bytes[PYALLOC_KIND_ALL].current, held);
  graph.replay(other);
  graph.replay(stream);
  CHECK_EQ(cuCtxSynchronize(), pyalloc::cuda::kSuccess);
  CHECK(holds(result, 20 * kMiB, 3));
  CHECK(valid());
  deallocate(result);
  release(kKey);
  graph.destroy();
  trim();
  CHECK_EQ(reserved(), int64_t{0});
}

TEST(what_a_replay_may_still_use_is_given_up_only_after_a_wait_for_the_device) {
  Gpu gpu("memory:256MiB,streams:deferred,seed:1");
  void *stream = gpu.stream(), *elsewhere = gpu.stream();
  int pool = retain(kKey);
  begin_capture(stream);
  deallocate(step(pool, stream, 100 * kMiB));
  Graph graph(stream);
  simgpu_set_stream_mode("timed", 1);
  simgpu_set_work_time(100000);
  graph.replay(elsewhere);
  release(kKey);
  for (int i = 0; i < 3; ++i) CHECK_EQ(pyalloc_maintain(0), PYALLOC_OK);
  CHECK(reserved() >= int64_t{100} << 20);
  void* small = allocate(60 * kMiB, stream);  // there is room besides
  CHECK(simgpu_pending() > 0);
  CHECK_EQ(stats().num_sync_all_streams, int64_t{0});
  void* large = allocate(150 * kMiB, stream);
  CHECK(large != nullptr && fill(stream, large, 150 * kMiB, 7));
  CHECK_EQ(stats().num_sync_all_streams, int64_t{1});
  CHECK(valid());
  simgpu_step(-1);
  deallocate(large);
  deallocate(small);
}

// Complaint 27: near the device's limit, a capture that needs memory which others left idle.
TEST(nothing_is_unmapped_while_a_stream_is_captured) {
  Gpu gpu("memory:256MiB");
  void *stream = gpu.stream(), *eager = gpu.stream();
  int pool = retain(kKey);
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(allocate(24 * kMiB, eager));
  for (int i = 0; i < 8; i += 2) deallocate(blocks[static_cast<size_t>(i)]);
  deallocate(allocate(100 * kMiB, eager));  // leaves old mappings
  CHECK(stats().stale_mappings > 0);
  begin_capture(stream);
  int64_t before = simgpu_calls("cuMemUnmap"), released = simgpu_calls("cuMemRelease");
  void* result = step(pool, stream, 48 * kMiB);  // near full: what is idle elsewhere is moved here
  CHECK(result != nullptr);
  CHECK_EQ(trim(), uint64_t{0});
  CHECK_EQ(pyalloc_maintain(0), PYALLOC_OK);
  CHECK(allocate(200 * kMiB, eager) == nullptr);  // to the end of the ladder
  CHECK(allocate_in(pool, 200 * kMiB, stream) == nullptr);
  CHECK_EQ(stats().num_sync_all_streams, int64_t{0});
  CHECK_EQ(simgpu_calls("cuMemUnmap"), before);
  CHECK_EQ(simgpu_calls("cuMemRelease"), released);
  CHECK(capturing(stream));
  Graph graph(stream);
  graph.replay(stream);
  CHECK_EQ(pyalloc_maintain(0), PYALLOC_OK);
  CHECK(simgpu_calls("cuMemUnmap") > before);
  CHECK(valid());
  deallocate(result);
  for (int i = 1; i < 8; i += 2) deallocate(blocks[static_cast<size_t>(i)]);
  release(kKey);
}

// A wait on the GPU during the capture would say nothing of a replay elsewhere.
TEST(memory_for_a_captured_pool_is_finished_on_every_stream) {
  Gpu gpu("memory:256MiB,streams:deferred,seed:2");
  void *stream = gpu.stream(), *eager = gpu.stream();
  simgpu_set_stream_mode("timed", 2);
  simgpu_set_work_time(1000);
  int pool = retain(kKey);
  void* old = allocate(200 * kMiB, eager);
  CHECK(fill(eager, old, 200 * kMiB, 1));
  deallocate(old);
  begin_capture(stream);
  void* small = allocate_in(pool, 30 * kMiB, stream);  // there is other memory
  CHECK(small != nullptr);
  CHECK_EQ(stats().stream_waits, int64_t{0});
  CHECK(simgpu_pending() > 0);
  void* large = allocate_in(pool, 150 * kMiB, stream);  // only that: the host waits
  CHECK(large != nullptr && capturing(stream));
  CHECK_EQ(stats().stream_waits, int64_t{0});
  CHECK_EQ(simgpu_pending(), int64_t{0});
  CHECK(fill(stream, large, 150 * kMiB, 2));
  Graph graph(stream);
  graph.replay(eager);
  simgpu_advance(1e6);
  simgpu_step(-1);
  CHECK(holds(large, 150 * kMiB, 2));
  CHECK(valid());
  deallocate(large);
  deallocate(small);
}

TEST(others_go_on_during_a_capture) {
  Gpu gpu("memory:1GiB", "maintenance:on");
  void* stream = gpu.stream();
  int pool = retain(kKey);
  std::atomic<bool> ended{false};
  std::vector<std::thread> threads;
  for (uint64_t thread = 1; thread <= 2; ++thread) {
    threads.emplace_back([&ended, thread] {
      Gpu::use(0);
      void* mine = Gpu::stream();
      Random random(thread);
      std::vector<void*> live;
      while (!ended) {
        if (void* block = allocate(random.bytes(40 * kMiB), mine)) live.push_back(block);
        if (live.size() < 12) continue;
        for (void* block : live) {
          if (random.below(4) == 0) pyalloc_record_stream(block, nullptr, PYALLOC_STREAM_OWNED);
          deallocate(block);
        }
        live.clear();
        trim();
      }
      for (void* block : live) deallocate(block);
    });
  }
  void* result = nullptr;
  for (int round = 0; round < 40 / kSlowdown; ++round) {
    deallocate(result);
    begin_capture(stream);
    result = step(pool, stream, 20 * kMiB);
    CHECK(capturing(stream));
    Graph graph(stream);
    graph.replay(stream);
  }
  ended = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(valid());
  deallocate(result);
  release(kKey);
  trim();
  CHECK_EQ(reserved(), int64_t{0});
}

TEST(a_capture_forks_and_joins) {
  Gpu gpu("memory:512MiB");
  void *stream = gpu.stream(), *side = gpu.stream();
  int pool = retain(kKey);
  begin_capture(stream);
  void* shared = allocate_in(pool, 10 * kMiB, stream);
  CHECK(fill(stream, shared, 10 * kMiB, 1));
  follow(stream, side);
  void* sides = allocate_in(pool, 10 * kMiB, side);
  CHECK(read(side, shared, 10 * kMiB) && fill(side, sides, 10 * kMiB, 2));
  CHECK_EQ(pyalloc_record_stream(shared, side, PYALLOC_STREAM_OWNED), PYALLOC_OK);
  deallocate(shared);  // used on a stream that is captured: waits for the capture's end
  CHECK_EQ(stats().pending_frees, int64_t{1});
  void* next = allocate_in(pool, 10 * kMiB, stream);
  CHECK(next != nullptr && next != shared);
  deallocate(sides);
  void* last = allocate_in(pool, 10 * kMiB, stream);
  CHECK(last != sides);  // another stream's
  follow(side, stream);
  CHECK_EQ(pyalloc_maintain(0), PYALLOC_OK);
  CHECK_EQ(stats().pending_frees, int64_t{1});
  CHECK(capturing(stream) && capturing(side));
  Graph graph(stream);
  CHECK_EQ(pyalloc_maintain(0), PYALLOC_OK);
  CHECK_EQ(stats().pending_frees, int64_t{0});
  CHECK(allocate_in(pool, 10 * kMiB, stream) == shared);
  graph.replay(stream);
  CHECK(valid());
  for (void* block : {shared, next, last}) deallocate(block);
}

TEST(a_capture_that_breaks_leaves_everything_as_it_was) {
  Gpu gpu("memory:256MiB");
  void* stream = gpu.stream();
  deallocate(allocate(2 * kMiB, stream));
  int64_t before = reserved();
  for (int round = 0; round < 3; ++round) {
    int pool = retain(kKey);
    begin_capture(stream);
    void* result = step(pool, stream, 100 * kMiB);
    // A program's own mistake: it waits for the stream that it captures.
    CHECK(cuStreamSynchronize(driver_stream(stream)) != pyalloc::cuda::kSuccess);
    CHECK(!capturing(stream));
    void* unfinished = allocate_in(pool, 10 * kMiB, stream);
    CHECK(unfinished != nullptr);
    void* graph = nullptr;
    CHECK(cuStreamEndCapture(driver_stream(stream), &graph) != pyalloc::cuda::kSuccess);
    deallocate(result);
    deallocate(unfinished);
    release(kKey);
    CHECK(valid());
    pyalloc_private_pool_trim(0, kKey, nullptr);
    CHECK_EQ(reserved(), before);
    simgpu_clear_violations();
  }
}

TEST(a_stream_that_is_gone_stops_nobody) {
  Gpu gpu("memory:256MiB");
  void* stream = gpu.stream();
  void* block = nullptr;
  CHECK_EQ(pyalloc_allocate(0, stream, 0, 8 * kMiB, &block), PYALLOC_OK);
  retain(kKey);
  deallocate(block);
  CHECK_EQ(cuStreamDestroy_v2(driver_stream(stream)), pyalloc::cuda::kSuccess);
  CHECK_EQ(trim(), 8 * kMiB);
}

TEST(graphs_share_a_pool) {
  Gpu gpu("memory:512MiB");
  void *stream = gpu.stream(), *eager = gpu.stream();
  int pool = retain(kKey);
  begin_capture(stream);
  void* first_result = step(pool, stream, 40 * kMiB);
  Graph first(stream);
  int64_t held = of_pool(kKey).reserved_bytes[PYALLOC_KIND_ALL].current;
  retain(kKey);
  begin_capture(stream);
  void* second_result = step(pool, stream, 40 * kMiB);  // the temporaries lie where the first graph's did
  Graph second(stream);
  CHECK_EQ(of_pool(kKey).reserved_bytes[PYALLOC_KIND_ALL].current, held + (20 << 20));
  first.replay(eager);
  second.replay(eager);
  first.destroy();
  deallocate(first_result);
  release(kKey);
  CHECK(allocate(480 * kMiB) == nullptr);
  second.replay(eager);
  CHECK_EQ(cuCtxSynchronize(), pyalloc::cuda::kSuccess);
  CHECK(holds(second_result, 20 * kMiB, 3));
  second.destroy();
  deallocate(second_result);
  release(kKey);
  void* all = allocate(480 * kMiB);
  CHECK(all != nullptr && valid());
  deallocate(all);
}
