// Every entry point of the driver failing at its first, second, ... n-th call, once and for ever: a clean error or a retry, a sound
// heap, nothing lost, and the next request that fits works.
#include <string>
#include <vector>

#include "gpu.h"

using namespace test;
namespace cuda = pyalloc::cuda;

namespace {

const char* const kEntryPoints[] = {
#define DRIVER_CALL(field, symbol, version, arguments) #symbol,
#define OPTIONAL_CALL DRIVER_CALL
#define ORACLE_CALL(field, symbol, arguments)
#include "driver/driver_calls.def"
#undef DRIVER_CALL
#undef OPTIONAL_CALL
#undef ORACLE_CALL
};

// A failed call may cost memory only where the driver refused to take it back, for ever.
bool returns_memory(const std::string& call) {
  return call == "cuMemRelease" || call == "cuMemUnmap" || call == "cuMemFree";
}

struct Workload {
  void *one, *two, *theirs;
  std::vector<void*> live;
  int refused = 0;

  void* get(size_t bytes, void* stream, uint32_t flags = PYALLOC_STREAM_OWNED) {
    void* pointer = nullptr;
    pyalloc_status status = pyalloc_allocate(0, stream, flags, bytes, &pointer);
    if (status != PYALLOC_OK) {
      ++refused;
      CHECK(pointer == nullptr);
      CHECK(status == PYALLOC_DRIVER_ERROR || status == PYALLOC_OUT_OF_MEMORY || status == PYALLOC_NO_VMM);
      CHECK(pyalloc_last_error()[0] != 0);
    }
    CHECK(valid());
    return pointer;
  }
  void give(void*& pointer) {
    if (pointer == nullptr) return;
    pyalloc_status status = deallocate(pointer);
    CHECK(status == PYALLOC_OK || status == PYALLOC_DRIVER_ERROR);
    if (status == PYALLOC_OK) pointer = nullptr;
    CHECK(valid());
  }

  // Reaches every path that calls the driver: growth, reuse across streams, moved granules, recorded blocks, streams of others,
  // waits of the ladder, trim, maintenance.
  void run() {
    std::vector<void*> blocks;
    for (int i = 0; i < 6; ++i) blocks.push_back(get(4 * kMiB, one));
    blocks.push_back(get(100 * kKiB, two));
    blocks.push_back(get(700, two));
    blocks.push_back(get(5 * kMiB, theirs, 0));
    for (void* block : {blocks[0], blocks[6], blocks[7]}) {
      if (block != nullptr) pyalloc_record_stream(block, block == blocks[0] ? two : one, PYALLOC_STREAM_OWNED);
    }
    for (size_t i = 0; i < blocks.size(); i += 2) give(blocks[i]);
    blocks.push_back(get(12 * kMiB, two));
    pyalloc_maintain(0);
    give(blocks[7]);
    give(blocks[1]);
    blocks.push_back(get(20 * kMiB, one));
    blocks.push_back(get(40 * kMiB, two));  // more than there is while the others live: climbs the whole ladder
    pyalloc_trim(0, nullptr);
    CHECK(valid());
    pyalloc_maintain(0);
    for (void*& block : blocks) give(block);
    CHECK(valid());
    live = blocks;
  }
};

// Runs the workload with one fault planned; true while the workload still reached that call.
bool survives(const char* call, int64_t nth, int64_t times, cuda::Result error) {
  Gpu gpu("memory:48MiB,streams:deferred,seed:4");
  int failures = test::failures();
  Workload work{gpu.stream(), gpu.stream(), gpu.stream(), {}, 0};
  simgpu_reset_calls();
  CHECK_EQ(simgpu_fail(call, nth, times, error), 0);
  work.run();
  int64_t calls = simgpu_calls(call);
  simgpu_clear_faults();
  for (void*& block : work.live) work.give(block);
  // The next requests that fit work, the largest possible among them.
  void* small = work.get(1000, work.one);
  CHECK(small != nullptr);
  work.give(small);
  void* large = work.get(40 * kMiB, work.two);
  CHECK(large != nullptr);
  work.give(large);
  CHECK_EQ(stats().allocation[0].current, int64_t{0});
  CHECK_EQ(stats().active[0].current - stats().pending_frees, int64_t{0});
  simgpu_step(-1);
  trim();
  pyalloc_maintain(0);
  trim();
  CHECK_EQ(simgpu_used(0), uint64_t{0});
  CHECK(valid());

  // Now while everything closes.
  void *idle = work.get(6 * kMiB, work.one), *recorded = work.get(700, work.two);
  CHECK(idle != nullptr && recorded != nullptr);
  CHECK_EQ(pyalloc_record_stream(recorded, work.one, PYALLOC_STREAM_OWNED), PYALLOC_OK);
  work.give(idle);
  work.give(recorded);
  simgpu_reset_calls();
  CHECK_EQ(simgpu_fail(call, nth, times, error), 0);
  CHECK_EQ(pyalloc_shutdown(), PYALLOC_OK);
  int64_t closing = simgpu_calls(call);
  simgpu_clear_faults();
  if (returns_memory(call) && times == 0) {
    simgpu_clear_violations();  // what the driver would not take back stays: the process's end returns it
    simgpu_reset("memory:2MiB");
  } else {
    CHECK_EQ(simgpu_used(0), uint64_t{0});
  }
  gpu.end();
  if (test::failures() != failures)
    std::fprintf(stderr, "  ... in %s, call %lld, %s, error %d\n", call, (long long)nth,
                 times == 0 ? "for ever" : "once", error);
  return calls >= nth || closing >= nth;
}

void sweep(int64_t times, cuda::Result error) {
  int planned = 0;
  for (const char* call : kEntryPoints) {
    for (int64_t nth = 1; survives(call, nth, times, error) && test::failures() < 20; ++nth) ++planned;
  }
  CHECK(planned > 60);
}

}  // namespace

TEST(each_call_fails_once_with_out_of_memory) { sweep(1, cuda::kOutOfMemory); }
TEST(each_call_fails_once_with_an_unknown_error) { sweep(1, cuda::kUnknown); }
TEST(each_call_fails_for_ever_with_out_of_memory) { sweep(0, cuda::kOutOfMemory); }
TEST(each_call_fails_for_ever_with_an_unknown_error) { sweep(0, cuda::kUnknown); }

TEST(blocks_straight_from_the_driver_survive_its_faults) {
  setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", 1);
  {
    Gpu gpu("memory:48MiB");
    CHECK_EQ(simgpu_fail("cuMemAlloc", 1, 1, cuda::kUnknown), 0);
    CHECK(allocate(kMiB) == nullptr);
    CHECK(std::strstr(pyalloc_last_error(), "cuMemAlloc") != nullptr);
    void* block = allocate(kMiB);
    CHECK(block != nullptr);
    CHECK_EQ(simgpu_fail("cuMemFree", 1, 1, cuda::kUnknown), 0);
    CHECK_EQ(deallocate(block), PYALLOC_DRIVER_ERROR);
    CHECK_EQ(stats().allocation[0].current, int64_t{1});
    CHECK_EQ(deallocate(block), PYALLOC_OK);
    CHECK_EQ(deallocate(block), PYALLOC_UNKNOWN_POINTER);
    CHECK_EQ(simgpu_used(0), uint64_t{0});
  }
  unsetenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
}
