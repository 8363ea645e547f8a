// Memory between streams: record_stream, reuse across streams with and without GPU-side waits, moved granules, streams torch does
// not own. The ordering oracle is on throughout: it flags any reuse or unmapping that is not ordered after the last use.
#include <set>
#include <string>
#include <vector>

#include "gpu.h"

using namespace test;

namespace {

const std::string kDeferred = "memory:256MiB,streams:deferred,seed:3";

// Allocates `bytes` times `count` and gives the blocks' addresses; frees them again.
std::set<void*> places(size_t bytes, int count, void* stream) {
  std::vector<void*> blocks;
  for (int i = 0; i < count; ++i) blocks.push_back(allocate(bytes, stream));
  for (void* block : blocks) deallocate(block);
  return {blocks.begin(), blocks.end()};
}

}  // namespace

TEST(own_stream_reuses_at_once_without_events) {
  for (size_t bytes : {size_t{700}, 64 * kKiB, 3 * kMiB}) {
    Gpu gpu(kDeferred);
    void* stream = gpu.stream();
    void* first = allocate(bytes, stream);
    CHECK(fill(stream, first, bytes, 1));
    deallocate(first);
    CHECK(allocate(bytes, stream) == first);
    CHECK_EQ(stats().events_recorded, int64_t{0});
    CHECK(simgpu_pending() > 0);
    deallocate(first);
    simgpu_step(-1);
  }
}

TEST(recorded_block_waits_for_the_other_stream) {
  for (size_t bytes : {size_t{700}, 64 * kKiB, 3 * kMiB}) {
    Gpu gpu(kDeferred);
    void *home = gpu.stream(), *other = gpu.stream();
    simgpu_set_stream_mode("timed", 1);
    simgpu_set_work_time(1000);
    void* block = allocate(bytes, home);
    CHECK(fill(home, block, bytes, 1));
    CHECK_EQ(pyalloc_record_stream(block, other, PYALLOC_STREAM_OWNED), PYALLOC_OK);
    CHECK_EQ(pyalloc_record_stream(block, other, PYALLOC_STREAM_OWNED), PYALLOC_OK);
    CHECK(read(other, block, bytes));
    CHECK_EQ(deallocate(block), PYALLOC_OK);
    CHECK_EQ(deallocate(block), PYALLOC_UNKNOWN_POINTER);
    CHECK_EQ(stats().pending_frees, int64_t{1});
    CHECK_EQ(stats().active[0].current, int64_t{1});
    CHECK_EQ(stats().allocation[0].current, int64_t{0});
    CHECK(valid());
    CHECK_EQ(places(bytes, 8, home).count(block), size_t{0});
    CHECK_EQ(places(bytes, 8, other).count(block), size_t{0});
    simgpu_advance(5000);
    CHECK_EQ(pyalloc_maintain(0), PYALLOC_OK);
    CHECK_EQ(stats().pending_frees, int64_t{0});
    CHECK_EQ(stats().active[0].current, int64_t{0});
    CHECK_EQ(places(bytes, 200, home).count(block), size_t{1});
    CHECK(valid());
  }
}

TEST(recording_the_own_stream_costs_nothing) {
  Gpu gpu(kDeferred);
  void* stream = gpu.stream();
  for (size_t bytes : {size_t{512}, 2 * kMiB}) {
    void* block = allocate(bytes, stream);
    CHECK_EQ(pyalloc_record_stream(block, stream, PYALLOC_STREAM_OWNED), PYALLOC_OK);
    deallocate(block);
    CHECK_EQ(stats().pending_frees, int64_t{0});
    CHECK(allocate(bytes, stream) == block);
    deallocate(block);
  }
}

TEST(record_of_what_is_no_block_is_refused) {
  Gpu gpu(kDeferred);
  void* stream = gpu.stream();
  for (size_t bytes : {size_t{512}, 2 * kMiB}) {
    void* block = allocate(bytes);
    CHECK_EQ(pyalloc_record_stream(static_cast<char*>(block) + 8, stream, PYALLOC_STREAM_OWNED),
             PYALLOC_UNKNOWN_POINTER);
    deallocate(block);
    CHECK_EQ(pyalloc_record_stream(block, stream, PYALLOC_STREAM_OWNED), PYALLOC_UNKNOWN_POINTER);
  }
  CHECK_EQ(pyalloc_record_stream(nullptr, stream, 0), PYALLOC_OK);
  CHECK(valid());
}

// An event that cannot be recorded when a recorded block is freed must not make the block free.
TEST(recorded_block_stays_pending_when_its_event_fails) {
  for (const char* call : {"cuEventRecord", "cuEventCreate", "cuStreamIsCapturing"}) {
    for (size_t bytes : {size_t{700}, 3 * kMiB}) {
      Gpu gpu(kDeferred);
      void *home = gpu.stream(), *other = gpu.stream();
      simgpu_set_stream_mode("timed", 1);
      simgpu_set_work_time(1000);
      void* block = allocate(bytes, home);
      CHECK_EQ(pyalloc_record_stream(block, other, PYALLOC_STREAM_OWNED), PYALLOC_OK);
      CHECK(fill(other, block, bytes, 7));
      CHECK_EQ(simgpu_fail(call, 1, 1, pyalloc::cuda::kUnknown), 0);
      CHECK_EQ(deallocate(block), PYALLOC_OK);
      CHECK_EQ(places(bytes, 8, home).count(block), size_t{0});
      CHECK_EQ(stats().pending_frees, int64_t{1});
      simgpu_clear_faults();
      simgpu_advance(5000);
      for (int round = 0; round < 3; ++round) pyalloc_maintain(0);
      CHECK_EQ(stats().pending_frees, int64_t{0});
      CHECK(valid());
    }
  }
}

TEST(memory_crosses_streams_behind_a_gpu_side_wait) {
  Gpu gpu("memory:64MiB,streams:deferred,seed:5");
  void *one = gpu.stream(), *two = gpu.stream();
  void* block = allocate(48 * kMiB, one);
  CHECK(fill(one, block, 48 * kMiB, 1));
  deallocate(block);
  void* taken = allocate(48 * kMiB, two);
  CHECK(taken != nullptr);
  CHECK(fill(two, taken, 48 * kMiB, 2));
  CHECK(stats().stream_waits > 0);
  CHECK_EQ(stats().event_waits, int64_t{0});
  CHECK_EQ(stats().num_alloc_retries, int64_t{0});
  while (simgpu_step(1) > 0) {
  }
  CHECK(holds(taken, 48 * kMiB, 2));
  deallocate(taken);
  CHECK(valid());
}

TEST(without_gpu_side_waits_memory_crosses_only_when_done) {
  Gpu gpu("memory:64MiB", "cross_stream_wait:off");
  void *one = gpu.stream(), *two = gpu.stream();
  simgpu_set_stream_mode("timed", 1);
  simgpu_set_work_time(1000);
  void* block = allocate(40 * kMiB, one);
  CHECK(fill(one, block, 40 * kMiB, 1));
  deallocate(block);
  void* small = allocate(16 * kMiB, two);  // there is room beside it
  CHECK(small != nullptr);
  CHECK(address(small) + 16 * kMiB <= address(block) || address(small) >= address(block) + 40 * kMiB);
  CHECK(simgpu_pending() > 0);
  void* large = allocate(40 * kMiB, two);  // only by a host wait, on the ladder
  CHECK(large != nullptr);
  CHECK(stats().event_waits > 0);
  CHECK_EQ(simgpu_pending(), int64_t{0});
  CHECK_EQ(stats().stream_waits, int64_t{0});
  CHECK_EQ(simgpu_calls("cuStreamWaitEvent"), int64_t{0});
  deallocate(small);
  deallocate(large);
  CHECK(valid());
}

// Granules of a freed large block are given new addresses; the old mappings go only after the last use there.
TEST(moved_granules_keep_their_old_mapping_until_its_last_use) {
  Gpu gpu("memory:64MiB,streams:deferred,seed:9");
  void *one = gpu.stream(), *two = gpu.stream();
  std::vector<void*> blocks;
  for (int i = 0; i < 15; ++i) blocks.push_back(allocate(4 * kMiB, one));
  for (void* block : blocks) CHECK(fill(one, block, 4 * kMiB, 1));
  for (size_t i = 0; i < blocks.size(); i += 2)
    deallocate(blocks[i]);  // every other one: no free run is longer than 4 MiB
  CHECK(simgpu_pending() > 0);
  void* large = allocate(20 * kMiB, two);
  CHECK(large != nullptr);
  CHECK(stats().stolen_granules > 0);
  CHECK(stats().stale_mappings > 0);
  CHECK(stats().stream_waits > 0);
  CHECK(fill(two, large, 20 * kMiB, 2));
  CHECK(valid());
  uint64_t used = simgpu_used(0);
  for (int round = 0; round < 1000 && stats().stale_mappings > 0; ++round) pyalloc_maintain(0);
  CHECK_EQ(stats().stale_mappings, int64_t{0});
  CHECK_EQ(simgpu_used(0), used);
  simgpu_step(-1);
  CHECK(holds(large, 20 * kMiB, 2));
  for (size_t i = 1; i < blocks.size(); i += 2) CHECK(holds(blocks[i], 4 * kMiB, 1));
  for (size_t i = 1; i < blocks.size(); i += 2) deallocate(blocks[i]);
  deallocate(large);
  CHECK(valid());
}

TEST(streams_not_owned_are_stamped_when_memory_is_freed) {
  Gpu gpu("memory:64MiB,streams:deferred,seed:5");
  void* theirs = gpu.stream();
  void* block = nullptr;
  CHECK_EQ(pyalloc_allocate(0, theirs, 0, 24 * kMiB, &block), PYALLOC_OK);
  CHECK(fill(theirs, block, 24 * kMiB, 1));
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  CHECK_EQ(stats().events_recorded, int64_t{1});
  CHECK_EQ(cuStreamDestroy_v2(static_cast<pyalloc::cuda::Stream>(theirs)), pyalloc::cuda::kSuccess);
  void* mine = allocate(60 * kMiB, gpu.stream());  // needs that memory: its event is there although the stream is not
  CHECK(mine != nullptr);
  CHECK_EQ(stats().num_sync_all_streams, int64_t{0});
  deallocate(mine);
  simgpu_step(-1);
  CHECK(valid());
}

// A stream destroyed before its block is freed proves nothing: only the context-wide wait does.
TEST(what_a_destroyed_stream_used_comes_back_by_the_context_wide_wait) {
  Gpu gpu("memory:64MiB,streams:deferred,seed:5,oracle:off");
  void* theirs = gpu.stream();
  void* block = nullptr;
  CHECK_EQ(pyalloc_allocate(0, theirs, 0, 24 * kMiB, &block), PYALLOC_OK);
  CHECK(fill(theirs, block, 24 * kMiB, 1));
  CHECK_EQ(cuStreamDestroy_v2(static_cast<pyalloc::cuda::Stream>(theirs)), pyalloc::cuda::kSuccess);
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  void* mine = allocate(60 * kMiB, gpu.stream());
  CHECK(mine != nullptr);
  CHECK_EQ(stats().num_sync_all_streams, int64_t{1});
  deallocate(mine);
  CHECK(valid());
}

// The driver gives a destroyed stream's handle to the next one, whose progress says nothing of the first one's work.
TEST(a_new_stream_with_the_handle_of_a_destroyed_one_proves_nothing) {
  for (size_t bytes : {24 * kMiB, 300 * kKiB, 1 * kKiB}) {
    Gpu gpu("memory:64MiB,streams:deferred,seed:5,oracle:off");
    void* theirs = gpu.stream();
    void* block = nullptr;
    CHECK_EQ(pyalloc_allocate(0, theirs, 0, bytes, &block), PYALLOC_OK);
    CHECK(fill(theirs, block, bytes, 1));
    CHECK_EQ(cuStreamDestroy_v2(static_cast<pyalloc::cuda::Stream>(theirs)), pyalloc::cuda::kSuccess);
    CHECK(gpu.stream() == theirs);
    CHECK_EQ(deallocate(block), PYALLOC_OK);
    CHECK_EQ(pyalloc_maintain(0), PYALLOC_OK);
    void* mine = allocate(64 * kMiB, gpu.stream());
    CHECK(mine != nullptr);
    CHECK_EQ(stats().num_sync_all_streams, int64_t{1});
    CHECK_EQ(deallocate(mine), PYALLOC_OK);
    simgpu_step(-1);
    CHECK(valid());
  }
}

TEST(trim_returns_what_a_destroyed_stream_used) {
  Gpu gpu("memory:64MiB,streams:deferred,seed:6,oracle:off");
  void* theirs = gpu.stream();
  void* block = nullptr;
  CHECK_EQ(pyalloc_allocate(0, theirs, 0, 24 * kMiB, &block), PYALLOC_OK);
  CHECK(fill(theirs, block, 24 * kMiB, 1));
  CHECK_EQ(cuStreamDestroy_v2(static_cast<pyalloc::cuda::Stream>(theirs)), pyalloc::cuda::kSuccess);
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  CHECK_EQ(trim(), uint64_t{24 * kMiB});
  CHECK_EQ(stats().num_sync_all_streams, int64_t{1});
  CHECK_EQ(simgpu_used(0), uint64_t{0});
}

TEST(more_streams_than_bits) {
  Gpu gpu("memory:16MiB,streams:deferred,seed:11");
  std::vector<void*> streams;
  for (int i = 0; i < 75; ++i) streams.push_back(gpu.stream());
  Random random(5);
  for (int round = 0; round < 3; ++round) {
    for (void* stream : streams) {
      size_t bytes = random.below(2) == 0 ? random.bytes(16 * kKiB) : 9 * kMiB;
      void* block = allocate(bytes, stream);
      CHECK(block != nullptr);
      CHECK(fill(stream, block, bytes, 9));
      CHECK_EQ(deallocate(block), PYALLOC_OK);
    }
    CHECK(valid());
    CHECK_EQ(pyalloc_maintain(0), PYALLOC_OK);
  }
  CHECK(stats().stream_waits > 0);
  simgpu_step(-1);
  trim();
  CHECK_EQ(simgpu_used(0), uint64_t{0});
}

TEST(default_streams_are_owned_whoever_asks) {
  Gpu gpu("memory:64MiB");
  for (uintptr_t name : {uintptr_t{0}, uintptr_t{1}, uintptr_t{2}}) {
    void* pointer = nullptr;
    CHECK_EQ(pyalloc_allocate(0, reinterpret_cast<void*>(name), 0, 4 * kMiB, &pointer), PYALLOC_OK);
    int64_t events = stats().events_recorded;
    CHECK_EQ(deallocate(pointer), PYALLOC_OK);
    CHECK_EQ(stats().events_recorded, events);
  }
}
