// A block at an address: where one was before, and nowhere else.
#include <vector>

#include "pools.h"

using namespace test;

namespace {

pyalloc_status at(void* address, size_t bytes, void* stream = nullptr, int device = 0) {
  pyalloc_status status = pyalloc_allocate_at(device, stream, PYALLOC_STREAM_OWNED, bytes, address);
  CHECK(valid());
  return status;
}

char* plus(void* address, size_t bytes) { return static_cast<char*>(address) + bytes; }

}  // namespace

TEST(a_block_comes_back_where_it_was) {
  Gpu gpu("memory:256MiB");
  for (size_t bytes : {size_t{1}, 700 * size_t{1}, 15 * kKiB, 40 * kKiB, 300 * kKiB, 900 * kKiB, 3 * kMiB, 40 * kMiB}) {
    for (int beside : {0, 1}) {  // alone, and with neighbours that stay
      std::vector<void*> neighbours;
      if (beside != 0) neighbours.push_back(allocate(bytes));
      void* block = allocate(bytes);
      if (beside != 0) neighbours.push_back(allocate(bytes));
      pyalloc_device_stats before = stats();
      CHECK_EQ(at(block, bytes), PYALLOC_INVALID_ARGUMENT);  // it is live
      CHECK_EQ(deallocate(block), PYALLOC_OK);
      CHECK_EQ(at(block, bytes), PYALLOC_OK);
      CHECK_EQ(stats().requested_bytes[0].current, before.requested_bytes[0].current);
      CHECK_EQ(stats().allocation[0].current, before.allocation[0].current);
      CHECK_EQ(at(block, bytes), PYALLOC_INVALID_ARGUMENT);
      void* other = allocate(bytes);
      CHECK(other != block);
      CHECK(fill(nullptr, block, bytes, 3));
      CHECK(fill(nullptr, other, bytes, 4));
      CHECK(holds(block, bytes, 3));
      neighbours.insert(neighbours.end(), {block, other});
      for (void* one : neighbours) CHECK_EQ(deallocate(one), PYALLOC_OK);
      CHECK(valid());
    }
  }
  CHECK_EQ(stats().requested_bytes[0].current, int64_t{0});
}

TEST(also_within_memory_that_is_free) {
  Gpu gpu("memory:256MiB");
  void* whole = allocate(64 * kMiB);
  CHECK_EQ(deallocate(whole), PYALLOC_OK);
  CHECK_EQ(at(plus(whole, 20 * kMiB), 10 * kMiB), PYALLOC_OK);
  CHECK_EQ(at(plus(whole, 29 * kMiB), 10 * kMiB), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(at(plus(whole, 30 * kMiB), 5), PYALLOC_OK);  // however short
  CHECK_EQ(at(plus(whole, 10 * kMiB), 10 * kMiB), PYALLOC_OK);
  void* beside = allocate(9 * kMiB);
  CHECK_EQ(beside, whole);
  for (size_t offset : {size_t{0}, 10 * kMiB, 20 * kMiB, 30 * kMiB})
    CHECK_EQ(deallocate(plus(whole, offset)), PYALLOC_OK);
}

TEST(nowhere_else) {
  Gpu gpu("memory:256MiB", "", 2);
  void* block = allocate(3 * kMiB);
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  char other = 0;
  CHECK_EQ(at(&other, 512), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(at(nullptr, 512), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(at(block, 0), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(at(plus(block, 100), 3 * kMiB), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(at(block, SIZE_MAX), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(at(block, 3 * kMiB, nullptr, 1), PYALLOC_INVALID_ARGUMENT);
  CHECK(says("no memory of pyalloc's on device 1"));
  void* small = allocate(700);
  CHECK_EQ(deallocate(small), PYALLOC_OK);
  CHECK_EQ(at(small, 700, gpu.stream()), PYALLOC_INVALID_ARGUMENT);
  CHECK(says("another stream's"));
  CHECK_EQ(at(small, 2 * kMiB), PYALLOC_INVALID_ARGUMENT);
}

TEST(another_stream_has_it_when_the_first_is_past_it) {
  Gpu gpu("memory:256MiB,streams:deferred,seed:5");
  void *one = gpu.stream(), *two = gpu.stream();
  for (int round = 0; round < 20; ++round) {
    void* block = allocate(20 * kMiB, one);
    CHECK(fill(one, block, 20 * kMiB, 1));
    CHECK_EQ(pyalloc_record_stream(block, two, PYALLOC_STREAM_OWNED), PYALLOC_OK);
    CHECK_EQ(deallocate(block), PYALLOC_OK);
    CHECK_EQ(at(block, 20 * kMiB, two), PYALLOC_OK);
    CHECK(fill(two, block, 20 * kMiB, 2));
    CHECK_EQ(deallocate(block), PYALLOC_OK);
  }
}

TEST(without_memory_nothing_changes) {
  Gpu gpu("memory:64MiB");
  void* block = allocate(20 * kMiB);
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  trim();
  for (const char* call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    CHECK_EQ(simgpu_fail(call, 1, 0, 2), 0);
    CHECK(at(block, 20 * kMiB) != PYALLOC_OK);
    simgpu_clear_faults();
    CHECK_EQ(stats().requested_bytes[0].current, int64_t{0});
  }
  CHECK_EQ(at(block, 20 * kMiB), PYALLOC_OK);
  CHECK_EQ(deallocate(block), PYALLOC_OK);
}
