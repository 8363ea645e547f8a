// Contiguous pools: every block in memory of one handle, of just its granules; handles that can be exported and that network cards may reach.
#include <fcntl.h>

#include <algorithm>

#include "pools.h"

using namespace test;
namespace cuda = pyalloc::cuda;

extern "C" {
cuda::Result cuMemGetAddressRange_v2(cuda::DevicePtr* start, size_t* bytes, cuda::DevicePtr address);
cuda::Result cuMemRetainAllocationHandle(cuda::MemHandle* handle, void* address);
cuda::Result cuMemRelease(cuda::MemHandle handle);
cuda::Result cuMemGetAllocationPropertiesFromHandle(cuda::AllocationProp* prop, cuda::MemHandle handle);
}

namespace {

int contiguous_pool() {
  int pool = 0;
  CHECK_EQ(pyalloc_create_pool("network", -1, UINT64_MAX, 1, &pool), PYALLOC_OK);
  return pool;
}

struct Piece {
  uint64_t start, bytes;
};

// The one handle's mapping behind an address.
Piece piece(const void* pointer) {
  cuda::DevicePtr start = 0;
  size_t bytes = 0;
  CHECK_EQ(cuMemGetAddressRange_v2(&start, &bytes, address(pointer)), cuda::kSuccess);
  return {start, bytes};
}

void check_in_one_handle(const void* pointer, size_t bytes) {
  Piece one = piece(pointer);
  CHECK(address(pointer) + bytes <= one.start + one.bytes);
  if (bytes < kGranule) {
    CHECK_EQ(one.bytes, kGranule);
  } else {
    CHECK_EQ(one.start, address(pointer));
    CHECK_EQ(one.bytes, (bytes + kGranule - 1) / kGranule * kGranule);
  }
}

}  // namespace

TEST(every_block_lies_in_one_handle) {
  Gpu gpu("memory:8GiB");
  int pool = contiguous_pool();
  Random random(7);
  std::vector<std::pair<void*, size_t>> blocks;
  void* streams[] = {gpu.stream(), gpu.stream()};
  for (int step = 0; step < 1500 / kSlowdown; ++step) {
    if (blocks.size() < 40 || random.below(2) == 0) {
      size_t bytes = random.below(3) == 0 ? 2 * kMiB * (1 + random.below(30)) : random.bytes(70 * kMiB);
      void* block = in_pool(pool, bytes, streams[random.below(2)]);
      CHECK(block != nullptr);
      check_in_one_handle(block, bytes);
      CHECK(fill(streams[0], block, bytes, static_cast<uint8_t>(step)));
      blocks.emplace_back(block, bytes);
    } else {
      size_t at = random.below(blocks.size());
      deallocate(blocks[at].first);
      blocks[at] = blocks.back();
      blocks.pop_back();
    }
    if (step % 50 == 0) CHECK(valid());
    if (step % 200 == 0) trim();
  }
  for (auto& [block, bytes] : blocks) check_in_one_handle(block, bytes);
  // Two blocks never share memory, however they came.
  std::sort(blocks.begin(), blocks.end());
  for (size_t i = 1; i < blocks.size(); ++i)
    CHECK(address(blocks[i - 1].first) + blocks[i - 1].second <= address(blocks[i].first));
  for (auto& [block, bytes] : blocks) deallocate(block);
  CHECK(valid());
  trim();
  CHECK_EQ(simgpu_used(0), uint64_t{0});
}

TEST(small_blocks_share_granules_and_never_lie_over_two) {
  Gpu gpu("memory:1GiB");
  int pool = contiguous_pool();
  std::vector<void*> blocks;
  for (int i = 0; i < 40; ++i) {
    size_t bytes = (i % 2 == 0 ? 700 : 300) * kKiB;
    blocks.push_back(in_pool(pool, bytes));
    check_in_one_handle(blocks.back(), bytes);
  }
  CHECK_EQ(figures(pool).reserved, static_cast<int64_t>(20 / 2 * kGranule));  // two pairs a granule
  for (void* block : blocks) deallocate(block);
  CHECK(valid());
}

TEST(a_freed_handle_serves_blocks_of_its_size_only) {
  Gpu gpu("memory:1GiB", "slack:0");
  int pool = contiguous_pool();
  void* first = in_pool(pool, 11 * kMiB);
  void* wall = in_pool(pool, 3 * kMiB);
  deallocate(first);
  simgpu_reset_calls();
  void* same = in_pool(pool, 12 * kMiB);  // as many granules
  CHECK_EQ(same, first);
  CHECK_EQ(simgpu_calls(nullptr), int64_t{0});
  deallocate(same);
  // Without slack, the idle handle goes before another is made.
  void* other = in_pool(pool, 10 * kMiB);
  check_in_one_handle(other, 10 * kMiB);
  CHECK_EQ(stats().idle_bytes, int64_t{0});
  CHECK_EQ(simgpu_used(0), uint64_t{14 * kMiB});
  CHECK(valid());
  for (void* block : {wall, other}) deallocate(block);
}

TEST(what_it_leaves_goes_to_other_pools_and_back) {
  Gpu gpu("memory:256MiB");
  int pool = contiguous_pool();
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(in_pool(pool, 30 * kMiB));
  for (void* block : blocks) deallocate(block);
  void* whole = allocate(250 * kMiB);
  CHECK(whole != nullptr && fill(nullptr, whole, 250 * kMiB, 3) && holds(whole, 250 * kMiB, 3));
  CHECK_EQ(stats().stolen_granules, int64_t{0});  // released and created, not moved
  CHECK_EQ(stats().num_ooms, int64_t{0});
  CHECK(in_pool(pool, 30 * kMiB) == nullptr);
  CHECK(valid());
  deallocate(whole);
  void* again = in_pool(pool, 200 * kMiB);
  check_in_one_handle(again, 200 * kMiB);
  deallocate(again);
  CHECK(valid());
}

TEST(a_block_waits_for_the_stream_that_had_its_handle) {
  Gpu gpu("memory:64MiB,streams:deferred,seed:9");
  int pool = contiguous_pool();
  void *one = gpu.stream(), *two = gpu.stream();
  void* first = in_pool(pool, 40 * kMiB, one);
  CHECK(fill(one, first, 40 * kMiB, 1));
  deallocate(first);
  void* second = in_pool(pool, 40 * kMiB, two);  // no room for both: after a wait on the GPU
  CHECK_EQ(second, first);
  CHECK_EQ(stats().stream_waits, int64_t{1});
  CHECK(fill(two, second, 40 * kMiB, 2));
  deallocate(second);
  simgpu_step(-1);
}

TEST(handles_can_be_exported_and_reached_by_network_cards) {
  Gpu gpu("memory:256MiB");
  int pool = contiguous_pool();
  for (size_t bytes : {size_t{1000}, 40 * kMiB}) {
    void* block = in_pool(pool, bytes);
    cuda::MemHandle handle = 0;
    cuda::AllocationProp prop{};
    CHECK_EQ(cuMemRetainAllocationHandle(&handle, block), cuda::kSuccess);
    CHECK_EQ(cuMemGetAllocationPropertiesFromHandle(&prop, handle), cuda::kSuccess);
    CHECK_EQ(prop.requested_handle_types, cuda::kHandlePosixFd);
    CHECK_EQ(prop.flags.gpu_direct_rdma_capable, 1);
    CHECK_EQ(cuMemRelease(handle), cuda::kSuccess);
    deallocate(block);
  }
}

// Complaint 42: what a device does not say it can do is left out; nothing else is lost.
TEST(a_device_that_does_not_answer_is_used_without) {
  for (int64_t nth = 2; nth <= 3; ++nth) {  // the first asks for virtual memory management
    Gpu gpu("memory:64MiB");
    int pool = contiguous_pool();
    CHECK_EQ(simgpu_fail("cuDeviceGetAttribute", nth, 0, cuda::kUnknown), 0);
    void* block = in_pool(pool, 6 * kMiB);
    CHECK(block != nullptr);
    check_in_one_handle(block, 6 * kMiB);
    simgpu_clear_faults();
    deallocate(block);
    CHECK(valid());
  }
}

TEST(the_driver_s_refusals_leave_everything_as_it_was) {
  for (const char* call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"}) {
    for (int64_t nth = 1; nth < 6; ++nth) {
      Gpu gpu("memory:64MiB");
      int pool = contiguous_pool();
      CHECK_EQ(simgpu_fail(call, nth, 1, cuda::kUnknown), 0);
      for (size_t mib : {20, 30, 10, 50, 3, 40}) {
        void* block = in_pool(pool, mib * kMiB);
        if (block != nullptr) check_in_one_handle(block, mib * kMiB);
        CHECK(valid());
        if (block != nullptr) deallocate(block);
        CHECK(valid());
      }
      simgpu_clear_faults();
      trim();
      trim();
      CHECK_EQ(simgpu_used(0), uint64_t{0});
    }
  }
}

TEST(a_layout_is_not_changed) {
  Gpu gpu("memory:64MiB");
  int pool = contiguous_pool(), again = 0;
  CHECK(pyalloc_create_pool("network", -1, UINT64_MAX, 1, &again) == PYALLOC_OK && again == pool);
  CHECK(pyalloc_create_pool("network", -1, UINT64_MAX, 0, &again) == PYALLOC_OK && again == pool);  // any layout
  CHECK(pyalloc_create_pool("network", PYALLOC_POOL_GENERAL, UINT64_MAX, 0, &again) == PYALLOC_INVALID_ARGUMENT);
  CHECK(says("another layout"));
  CHECK(pyalloc_create_pool("weights", -1, UINT64_MAX, 1, &again) == PYALLOC_INVALID_ARGUMENT &&
        says("another layout"));
  CHECK(pyalloc_create_pool("odd", PYALLOC_POOL_WORKSPACE, UINT64_MAX, 1, &again) == PYALLOC_INVALID_ARGUMENT);
  CHECK(pyalloc_create_pool("odd", -1, 4 * kMiB, 1, &again) == PYALLOC_INVALID_ARGUMENT && says("one handle"));
}

TEST(limits_hold) {
  Gpu gpu("memory:256MiB", "limit:64MiB");
  int pool = contiguous_pool();
  void* block = in_pool(pool, 60 * kMiB);
  CHECK(block != nullptr);
  CHECK(in_pool(pool, 10 * kMiB) == nullptr);
  CHECK(says("limit"));
  deallocate(block);
  CHECK_EQ(pyalloc_set_pool_limit(0, pool, 10 * kMiB), PYALLOC_OK);
  CHECK(in_pool(pool, 12 * kMiB) == nullptr);
  block = in_pool(pool, 10 * kMiB);
  CHECK(block != nullptr);
  deallocate(block);
  CHECK_EQ(pyalloc_set_pool_limit(0, pool, 0), PYALLOC_OK);
  CHECK(valid());
}
