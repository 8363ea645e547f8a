// Several devices: heaps of their own, memory that peers may reach, calls on the right device whatever is current.
#include <string>
#include <vector>

#include "gpu.h"

using namespace test;

TEST(each_device_has_its_own_heap) {
  Gpu gpu("memory:64MiB", "", 3);
  std::vector<void*> blocks;
  for (int device = 0; device < 3; ++device) {
    Gpu::use(device);  // whose default stream it is
    blocks.push_back(allocate((4 + 4 * static_cast<size_t>(device)) * kMiB, nullptr, device));
    CHECK(blocks.back() != nullptr);
  }
  for (int device = 0; device < 3; ++device) {
    CHECK_EQ(simgpu_used(device), (4 + 4 * static_cast<uint64_t>(device)) * kMiB);
    CHECK_EQ(stats(device).allocation[0].current, int64_t{1});
    pyalloc_block_info info{};
    info.size = sizeof info;
    CHECK_EQ(pyalloc_find_block(blocks[static_cast<size_t>(device)], &info), PYALLOC_OK);
    CHECK_EQ(info.device, device);
  }
  CHECK(allocate(70 * kMiB, nullptr, 1) == nullptr);
  CHECK(std::strstr(pyalloc_last_error(), "GPU 1 has") != nullptr);
  CHECK_EQ(stats(0).num_ooms, int64_t{0});
  pyalloc_freed freed{};
  CHECK_EQ(pyalloc_deallocate(blocks[2], &freed), PYALLOC_OK);  // device 2 is current still
  CHECK_EQ(freed.device, 2);
  CHECK_EQ(trim(2), uint64_t{12 * kMiB});
  CHECK_EQ(simgpu_used(0), uint64_t{4 * kMiB});
  for (int device : {0, 1}) {
    Gpu::use(device);
    CHECK_EQ(deallocate(blocks[static_cast<size_t>(device)]), PYALLOC_OK);
  }
  CHECK_EQ(trim(-1), uint64_t{12 * kMiB});
  for (int device = 0; device < 3; ++device) CHECK(valid(device));
}

// A default stream's handle names another stream on every device: a block's is that of its own device, whoever frees it.
TEST(default_streams_are_told_apart_when_another_device_is_current) {
  Gpu gpu("memory:64MiB,streams:deferred,seed:3", "", 2);
  for (int turn = 0; turn < 4; ++turn) {
    for (int device : {0, 1}) {
      for (size_t bytes : {1 * kKiB, 300 * kKiB, 24 * kMiB}) {
        Gpu::use(device);
        void* block = allocate(bytes, nullptr, device);
        CHECK(fill(nullptr, block, bytes, 1));
        Gpu::use(1 - device);
        CHECK_EQ(deallocate(block), PYALLOC_OK);
        Gpu::use(device);
        block = allocate(bytes, nullptr, device);
        CHECK(fill(nullptr, block, bytes, 2));
        CHECK_EQ(deallocate(block), PYALLOC_OK);
      }
    }
    trim();
  }
  Gpu::use(0);
  simgpu_step(-1);
  for (int device : {0, 1}) CHECK(valid(device));
}

// More addresses than a space's books can number: it takes as many as they can.
TEST(a_device_larger_than_the_books_of_a_space) {
#if defined(__SANITIZE_THREAD__)
  return;  // the thread sanitizer leaves no terabyte of addresses
#endif
  Gpu gpu("memory:1024GiB");
  void* block = allocate(24 * kMiB);
  CHECK(block != nullptr);
  CHECK(allocate(kGiB << 20) == nullptr);
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  CHECK(valid());
}

TEST(limits_are_per_device) {
  Gpu gpu("memory:64MiB", "", 2);
  CHECK_EQ(pyalloc_set_limit(1, 8 * kMiB), PYALLOC_OK);
  CHECK(allocate(10 * kMiB, nullptr, 1) == nullptr);
  void* block = allocate(10 * kMiB, nullptr, 0);
  CHECK(block != nullptr);
  deallocate(block);
}

TEST(peers_reach_memory_that_stands_and_memory_to_come) {
  Gpu gpu("memory:64MiB", "", 2);
  void* before = allocate(6 * kMiB, nullptr, 0);
  void* gone = allocate(6 * kMiB, nullptr, 0);
  deallocate(gone);
  void* stream = gpu.stream(1);
  CHECK_EQ(pyalloc_enable_peer_access(1, 0), PYALLOC_OK);
  CHECK_EQ(pyalloc_enable_peer_access(1, 0), PYALLOC_OK);
  void* after = allocate(10 * kMiB, nullptr, 0);
  void* small = allocate(100, nullptr, 0);
  Gpu::use(1);
  CHECK(fill(stream, before, 6 * kMiB, 1));
  CHECK(fill(stream, after, 10 * kMiB, 2));
  CHECK(fill(stream, small, 100, 3));
  CHECK(holds(before, 6 * kMiB, 1) && holds(after, 10 * kMiB, 2) && holds(small, 100, 3));
  Gpu::use(0);
  CHECK_EQ(pyalloc_enable_peer_access(5, 0), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(pyalloc_enable_peer_access(0, 5), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(pyalloc_enable_peer_access(-1, 0), PYALLOC_INVALID_ARGUMENT);
  for (void* block : {before, after, small}) deallocate(block);
}

TEST(without_peer_access_the_device_refuses) {
  Gpu gpu("memory:64MiB,oracle:off", "", 2);
  void* block = allocate(kMiB, nullptr, 0);
  void* stream = gpu.stream(1);
  fill(stream, block, kMiB, 1);
  CHECK(simgpu_violations() > 0);
  deallocate(block);
  pyalloc_shutdown();
  simgpu_clear_violations();
  simgpu_reset("memory:2MiB,devices:2");
}

TEST(a_thread_without_a_context_may_allocate) {
  Gpu gpu("memory:64MiB", "", 2);
  CHECK_EQ(cuCtxSetCurrent(nullptr), pyalloc::cuda::kSuccess);
  for (int device : {1, 0, 1}) {
    for (size_t bytes : {size_t{100}, 3 * kMiB}) {
      void* block = allocate(bytes, nullptr, device);
      CHECK(block != nullptr);
      CHECK_EQ(deallocate(block), PYALLOC_OK);
    }
  }
  trim();
  CHECK_EQ(simgpu_used(0) + simgpu_used(1), uint64_t{0});
}

TEST(a_device_without_virtual_memory_management_is_refused_at_once) {
  CHECK_EQ(pyalloc_shutdown(), PYALLOC_OK);
  CHECK_EQ(simgpu_reset("memory:64MiB,vmm:off"), 0);
  CHECK_EQ(cuInit(0), pyalloc::cuda::kSuccess);
  CHECK_EQ(pyalloc_init(1), PYALLOC_NO_VMM);
  CHECK(std::string(pyalloc_last_error()).find("run without pyalloc") != std::string::npos);
  void* block = nullptr;
  CHECK_EQ(pyalloc_allocate(0, nullptr, 0, 512, &block), PYALLOC_NO_VMM);  // plain registration may come without init
  CHECK(block == nullptr);
  CHECK_EQ(pyalloc_shutdown(), PYALLOC_OK);
  CHECK_EQ(simgpu_reset("memory:64MiB"), 0);
}

TEST(statistics_are_of_one_device) {
  Gpu gpu("memory:64MiB");
  pyalloc_device_stats all{};
  all.size = sizeof all;
  CHECK_EQ(pyalloc_get_stats(-1, &all), PYALLOC_INVALID_ARGUMENT);
}
