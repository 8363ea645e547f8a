// Guard mode: every block has a mapping of its own, so that the device sees an access beyond it or after its free. And blocks straight
// from the driver, as PYTORCH_NO_CUDA_MEMORY_CACHING asks for.
#include <string>
#include <vector>

#include "gpu.h"

using namespace test;

namespace {

// A kernel that touches this byte breaks a rule; the device is as good as new afterwards.
bool faults(const void* at) {
  uint8_t byte = 0;
  return simgpu_read(address(at), &byte, 1) != 0;
}

}  // namespace

TEST(bytes_beyond_a_guarded_block_fault) {
  Gpu gpu("memory:256MiB", "guard:on");
  for (size_t bytes :
       {size_t{1}, size_t{512}, size_t{513}, 16 * kKiB, kMiB, 2 * kMiB - 512, 2 * kMiB, 2 * kMiB + 1, 7 * kMiB}) {
    auto* block = static_cast<char*>(allocate(bytes));
    CHECK(block != nullptr);
    CHECK_EQ(address(block) % 512, uint64_t{0});
    CHECK(fill(nullptr, block, bytes, 3) && holds(block, bytes, 3));
    size_t rounded = (bytes + 511) / 512 * 512;
    CHECK(!faults(block + rounded - 1));
    CHECK(faults(block + rounded));
    CHECK(faults(block + rounded + kGranule - 1));
    pyalloc_block_info info{};
    info.size = sizeof info;
    CHECK_EQ(pyalloc_find_block(block + bytes - 1, &info), PYALLOC_OK);
    CHECK(info.block == block);
    CHECK_EQ(info.requested, bytes);
    CHECK(valid());
    CHECK_EQ(deallocate(block), PYALLOC_OK);
    CHECK(faults(block));
    CHECK(faults(block + bytes - 1));
    CHECK_EQ(deallocate(block), PYALLOC_UNKNOWN_POINTER);
    CHECK_EQ(simgpu_used(0), uint64_t{0});
    CHECK(valid());
  }
}

TEST(a_stray_kernel_breaks_a_rule_of_the_device) {
  Gpu gpu("memory:64MiB,oracle:off", "guard:on");
  auto* block = static_cast<char*>(allocate(1000));
  CHECK(fill(nullptr, block, 1024, 1));
  CHECK_EQ(simgpu_violations(), int64_t{0});
  fill(nullptr, block, 1025, 1);
  CHECK(simgpu_violations() > 0);
  CHECK_EQ(simgpu_reset("memory:2MiB"), 0);  // the fault stays on the device, as a real one does
  pyalloc_shutdown();
  simgpu_clear_violations();
  simgpu_reset("memory:2MiB");
}

TEST(guarded_blocks_share_no_granule) {
  Gpu gpu("memory:256MiB", "guard:on");
  std::vector<void*> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(allocate(700));
  CHECK_EQ(simgpu_used(0), uint64_t{20 * kGranule});
  for (void* block : blocks) {
    CHECK(fill(nullptr, block, 700, 9));
    CHECK_EQ(deallocate(block), PYALLOC_OK);
    CHECK(faults(block));
  }
  CHECK_EQ(stats().allocation[0].current, int64_t{0});
}

TEST(guarded_blocks_wait_for_their_streams) {
  Gpu gpu("memory:64MiB,streams:deferred,seed:2", "guard:on");
  void *one = gpu.stream(), *two = gpu.stream();
  for (int round = 0; round < 20; ++round) {
    void* block = allocate(5 * kMiB, one);
    CHECK(block != nullptr);
    CHECK(fill(one, block, 5 * kMiB, 1));
    if (round % 2 == 0) {
      CHECK_EQ(pyalloc_record_stream(block, two, PYALLOC_STREAM_OWNED), PYALLOC_OK);
      CHECK(read(two, block, 5 * kMiB));
    }
    CHECK_EQ(deallocate(block), PYALLOC_OK);
    CHECK(valid());
    pyalloc_maintain(0);
  }
  simgpu_step(-1);
  trim();
  CHECK_EQ(simgpu_used(0), uint64_t{0});
}

// Fresh addresses come first in guard mode; when there are no more, what lies at their end may be another stream's.
TEST(guarded_blocks_wait_for_their_streams_when_all_addresses_are_used) {
  Gpu gpu("memory:512MiB,streams:deferred,seed:3", "guard:on");
  void* streams[] = {gpu.stream(), gpu.stream(), gpu.stream()};
  Random random(7);
  std::vector<void*> held;
  for (uint64_t used = 0; used < 40 * kGiB;) {  // the space has 16 GiB
    void* stream = streams[random.below(3)];
    size_t bytes = random.below(4) == 0 ? 1 + random.below(40 * kMiB) : 1 + random.below(2 * kMiB);
    void* block = allocate(bytes, stream);
    CHECK(block != nullptr);
    CHECK(fill(stream, block, bytes, 1));
    held.push_back(block);
    if (held.size() > 3) {
      size_t one = random.below(held.size());
      CHECK_EQ(deallocate(held[one]), PYALLOC_OK);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(one));
    }
    used += bytes + 2 * kGranule;
  }
  for (void* block : held) CHECK_EQ(deallocate(block), PYALLOC_OK);
  simgpu_step(-1);
  CHECK(valid());
}

TEST(without_caching_every_block_comes_from_the_driver) {
  setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", 1);
  {
    Gpu gpu("memory:64MiB", "limit:32MiB");
    for (size_t bytes : {size_t{1}, size_t{512}, kMiB, 5 * kMiB}) {
      void* block = allocate(bytes);
      CHECK(block != nullptr);
      CHECK_EQ(stats().allocation[0].current, int64_t{1});
      CHECK_EQ(stats().requested_bytes[0].current, static_cast<int64_t>(bytes));
      CHECK(stats().reserved_bytes[0].current >= static_cast<int64_t>(bytes));
      CHECK_EQ(pyalloc_record_stream(block, gpu.stream(), PYALLOC_STREAM_OWNED), PYALLOC_OK);
      pyalloc_block_info info{};  // the bridge asks for it while a profiler records memory
      info.size = sizeof info;
      CHECK_EQ(pyalloc_find_block(static_cast<char*>(block) + bytes - 1, &info), PYALLOC_OK);
      CHECK(info.block == block && info.segment == block);
      CHECK_EQ(info.requested, bytes);
      CHECK_EQ(pyalloc_find_block(static_cast<char*>(block) + info.allocated, &info), PYALLOC_UNKNOWN_POINTER);
      pyalloc_freed freed{};
      CHECK_EQ(pyalloc_deallocate(block, &freed), PYALLOC_OK);
      CHECK_EQ(freed.requested, bytes);
      CHECK_EQ(simgpu_used(0), uint64_t{0});
      CHECK_EQ(deallocate(block), PYALLOC_UNKNOWN_POINTER);
    }
    CHECK(simgpu_calls("cuMemAlloc") >= 4);
    CHECK_EQ(simgpu_calls("cuMemCreate"), int64_t{0});
    CHECK(allocate(40 * kMiB) == nullptr);
    CHECK_EQ(stats().num_oom_rejections, int64_t{1});
    CHECK_EQ(trim(), uint64_t{0});
    CHECK(valid());
  }
  unsetenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
}
