// The functions behind torch's MemPools: whose segments they are, who is not called, and what a free waits for.
#include <cstring>

#include "pools.h"

using namespace test;

namespace {

void* segment(int pool, size_t bytes, void* stream = nullptr) {
  pyalloc_malloc_fn allocate = pyalloc_segment_malloc(pool);
  CHECK(allocate != nullptr);
  return allocate(static_cast<ptrdiff_t>(bytes), 0, stream);
}

void free_segment(void* pointer, void* stream = nullptr) { pyalloc_segment_free(pointer, 0, 0, stream); }

int calls = 0;
uint64_t reclaim(void*, int, size_t) { return ++calls, 0; }
void observe(void*, int, size_t, size_t, size_t, int) { ++calls; }

}  // namespace

TEST(a_segment_is_of_its_pool_in_whatever_scope) {
  Gpu gpu("memory:256MiB");
  uint32_t tag = 0;
  CHECK_EQ(pyalloc_push_tag("request", &tag), PYALLOC_OK);
  void *kv = nullptr, *weights = nullptr;
  {
    In scope(PYALLOC_POOL_WEIGHTS);
    kv = segment(PYALLOC_POOL_KV, 20 * kMiB);
    weights = allocate(3 * kMiB);
  }
  CHECK_EQ(pyalloc_pop_tag(tag), PYALLOC_OK);
  CHECK_EQ(figures(PYALLOC_POOL_KV).requested, int64_t{20 * kMiB});
  CHECK_EQ(figures(PYALLOC_POOL_WEIGHTS).requested, int64_t{3 * kMiB});
  pyalloc_bill bill{};
  bill.size = sizeof bill;
  CHECK_EQ(pyalloc_get_bill("request", &bill), PYALLOC_OK);
  CHECK_EQ(bill.bytes, int64_t{3 * kMiB});

  int drafts = 0;
  CHECK(pyalloc_segment_malloc(pyalloc_pool_count()) == nullptr);
  CHECK(pyalloc_segment_malloc(-1) == nullptr);
  CHECK_EQ(pyalloc_find_pool("drafts", 1, &drafts), PYALLOC_OK);
  void* draft = segment(drafts, 2 * kMiB);
  CHECK_EQ(figures(drafts).blocks, int64_t{1});
  CHECK(segment(drafts, 0) == nullptr);
  for (void* one : {kv, draft, static_cast<void*>(nullptr)}) free_segment(one);
  CHECK_EQ(figures(PYALLOC_POOL_KV).blocks + figures(drafts).blocks, int64_t{0});
  free_segment(weights);  // no matter how it was had
  CHECK(valid());
}

TEST(what_cannot_be_had_is_null_and_nobody_is_called) {
  Gpu gpu("memory:64MiB");
  CHECK_EQ(pyalloc_add_reclaimer(&reclaim, nullptr, 0), PYALLOC_OK);
  CHECK_EQ(pyalloc_add_oom_observer(&observe, nullptr), PYALLOC_OK);
  void* first = segment(PYALLOC_POOL_KV, 20 * kMiB);
  CHECK(segment(PYALLOC_POOL_KV, 60 * kMiB) == nullptr);
  CHECK_EQ(calls, 0);
  CHECK(allocate(60 * kMiB) == nullptr);  // outside of torch's lock they are
  CHECK_EQ(calls, 2);
  CHECK_EQ(pyalloc_set_pool_limit(0, PYALLOC_POOL_KV, 30 * kMiB), PYALLOC_OK);
  CHECK(segment(PYALLOC_POOL_KV, 20 * kMiB) == nullptr);
  void* weights = segment(PYALLOC_POOL_WEIGHTS, 20 * kMiB);
  CHECK(weights != nullptr);
  pyalloc_malloc_fn allocate_kv = pyalloc_segment_malloc(PYALLOC_POOL_KV);
  CHECK(allocate_kv(-1, 0, nullptr) == nullptr);
  CHECK(allocate_kv(2 * kMiB, 7, nullptr) == nullptr);  // no such device
  free_segment(first);
  first = segment(PYALLOC_POOL_KV, 20 * kMiB);
  CHECK(first != nullptr);
  for (void* one : {first, weights}) free_segment(one);
  CHECK_EQ(pyalloc_remove_reclaimer(&reclaim, nullptr), PYALLOC_OK);
  CHECK(valid());
}

TEST(a_free_waits_for_streams_that_nobody_named) {
  Gpu gpu("memory:64MiB,streams:deferred,seed:3");
  void *one = gpu.stream(), *two = gpu.stream(), *three = gpu.stream();
  for (int round = 0; round < 20; ++round) {
    void* block = segment(PYALLOC_POOL_KV, 40 * kMiB, one);  // asked for on one stream
    CHECK(block != nullptr);
    CHECK(fill(two, block, 40 * kMiB, 1));  // used on another
    free_segment(block, one);
    void* next = segment(PYALLOC_POOL_WEIGHTS, 40 * kMiB, three);
    CHECK(next != nullptr);
    CHECK(fill(three, next, 40 * kMiB, 2));
    free_segment(next, three);
  }
  gpu.check_no_violations();
}

TEST(a_free_that_cannot_wait_keeps_the_memory) {
  Gpu gpu("memory:64MiB,streams:deferred,seed:3");
  void *one = gpu.stream(), *two = gpu.stream();
  void* block = segment(PYALLOC_POOL_KV, 40 * kMiB, one);
  CHECK(fill(two, block, 40 * kMiB, 1));
  CHECK_EQ(simgpu_fail("cuCtxSynchronize", 1, 1, 700), 0);
  free_segment(block, one);
  CHECK_EQ(figures(PYALLOC_POOL_KV).blocks, int64_t{1});
  free_segment(block, one);
  CHECK_EQ(figures(PYALLOC_POOL_KV).blocks, int64_t{0});
  CHECK(valid());
}

TEST(every_device_that_can_may_use_a_segment) {
  Gpu gpu("memory:64MiB", "", 3);
  void* first = segment(PYALLOC_POOL_KV, 20 * kMiB);
  void* stream = gpu.stream(1);
  Gpu::use(1);
  CHECK(fill(stream, first, 20 * kMiB, 7));
  CHECK_EQ(cuStreamSynchronize(static_cast<pyalloc::cuda::Stream>(stream)), pyalloc::cuda::kSuccess);
  CHECK(holds(first, 20 * kMiB, 7));
  // Of a device whose heap opens later as well.
  void* second = pyalloc_segment_malloc(PYALLOC_POOL_KV)(20 * kMiB, 2, nullptr);
  CHECK(fill(stream, second, 20 * kMiB, 8));
  CHECK_EQ(cuStreamSynchronize(static_cast<pyalloc::cuda::Stream>(stream)), pyalloc::cuda::kSuccess);
  CHECK(holds(second, 20 * kMiB, 8));
  Gpu::use(0);
  free_segment(first);
  pyalloc_segment_free(second, 0, 2, nullptr);
}
