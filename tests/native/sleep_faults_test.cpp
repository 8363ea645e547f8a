// Sleeping and waking where memory, host memory or the driver fails: all of it happens or nothing.
#include "sleep.h"

using namespace test;
namespace cuda = pyalloc::cuda;

TEST(a_wake_without_memory_changes_nothing) {
  Gpu gpu("memory:256MiB");
  std::vector<Block> weights = furnish(kWeights, nullptr, 7);
  void* kv = in_pool(kKv, 100 * kMiB);
  CHECK_EQ(sleep({kWeights, kKv}, {kWeights}), PYALLOC_OK);
  void* guest = allocate(200 * kMiB);
  CHECK(guest != nullptr);
  uint64_t used = simgpu_used(0);
  pyalloc_pool_stats before = figures(kWeights);
  for (int tries = 0; tries < 3; ++tries) {
    CHECK_EQ(wake({kWeights, kKv}), PYALLOC_OUT_OF_MEMORY);
    CHECK(says("CUDA out of memory") && says("\nPools:\n"));
    CHECK(says("pyalloc has 200.00 MiB allocated") &&
          says("\n  kv          0 bytes allocated,     0 bytes reserved, 100.00 MiB asleep\n"));
    CHECK(says("free memory. Then call pyalloc.wake() again"));
    CHECK_EQ(simgpu_used(0), used);
    CHECK_EQ(figures(kWeights).asleep, before.asleep);
    CHECK_EQ(figures(kWeights).offloaded, before.offloaded);
    CHECK(valid());
  }
  CHECK_EQ(stats().num_ooms, int64_t{3});
  deallocate(guest);
  CHECK_EQ(wake({kWeights, kKv}), PYALLOC_OK);  // from what is idle now
  CHECK(intact(weights));
  free_all(weights);
  deallocate(kv);
  CHECK(valid());
}

TEST(sleep_without_host_memory_changes_nothing) {
  Gpu gpu("memory:512MiB");
  void* block = in_pool(kWeights, 200 * kMiB);  // chunks of 64 MiB
  CHECK(fill(nullptr, block, 200 * kMiB, 4));
  CHECK_EQ(simgpu_fail("cuMemHostAlloc", 3, 1, cuda::kOutOfMemory), 0);
  CHECK_EQ(sleep({kWeights}, {kWeights}), PYALLOC_OUT_OF_MEMORY);
  CHECK(says("cuMemHostAlloc"));
  CHECK_EQ(figures(kWeights).asleep, int64_t{0});
  CHECK_EQ(figures(kWeights).offloaded, int64_t{0});
  CHECK(holds(block, 200 * kMiB, 4) && valid());
  void* more = in_pool(kWeights, kMiB);
  CHECK(more != nullptr);
  deallocate(more);
  deallocate(block);
}

TEST(sleep_asks_what_the_host_has) {
  if (kSlowdown > 1) return;  // a sanitizer leaves the process too few addresses
  Gpu gpu("memory:2048GiB");
  void* block = in_pool(kWeights, size_t{1900} * kGiB);
  CHECK(block != nullptr);
  simgpu_reset_calls();
  CHECK_EQ(sleep({kWeights}, {kWeights}), PYALLOC_OUT_OF_MEMORY);
  CHECK(says("of host memory are needed") && says("offload fewer pools"));
  CHECK_EQ(simgpu_calls("cuMemHostAlloc"), int64_t{0});
  deallocate(block);
}

TEST(several_devices_sleep_together_or_not_at_all) {
  Gpu gpu("memory:256MiB", "", 2);
  void *one = nullptr, *two = nullptr;
  {
    In scope(kWeights);
    one = allocate(40 * kMiB, nullptr, 0);
    two = allocate(40 * kMiB, nullptr, 1);
  }
  Gpu::use(0);
  CHECK(fill(nullptr, one, 40 * kMiB, 1));
  CHECK_EQ(simgpu_fail("cuMemcpyDtoHAsync", 2, 1, cuda::kUnknown), 0);  // the second device's
  CHECK_EQ(sleep({kWeights}, {kWeights}), PYALLOC_DRIVER_ERROR);
  CHECK(says("cuMemcpyDtoHAsync"));
  CHECK(!unmapped(one) && !unmapped(two) && simgpu_used(0) == 40 * kMiB);
  simgpu_clear_faults();
  CHECK_EQ(simgpu_fail("cuMemUnmap", 2, 1, cuda::kUnknown), 0);  // the first sleeps already
  CHECK_EQ(sleep({kWeights}, {kWeights}), PYALLOC_DRIVER_ERROR);
  CHECK(!unmapped(one) && !unmapped(two) && holds(one, 40 * kMiB, 1));
  CHECK(valid());
  simgpu_clear_faults();
  CHECK_EQ(sleep({kWeights}, {kWeights}), PYALLOC_OK);
  CHECK(unmapped(one) && unmapped(two));
  void* guest = allocate(250 * kMiB, nullptr, 1);
  CHECK(guest != nullptr);
  CHECK_EQ(wake({kWeights}), PYALLOC_OUT_OF_MEMORY);  // of the second; the first lies back
  CHECK(unmapped(one) && unmapped(two) && simgpu_used(0) == 0);
  CHECK(pyalloc_validate(0) == PYALLOC_OK && pyalloc_validate(1) == PYALLOC_OK);
  deallocate(guest);
  CHECK_EQ(wake({kWeights}), PYALLOC_OK);
  CHECK(holds(one, 40 * kMiB, 1));
  deallocate(one);
  deallocate(two);
}

TEST(each_refusal_leaves_the_pool_awake_or_asleep_as_it_was) {
  static const char* const calls[] = {"cuCtxSynchronize",  "cuMemHostAlloc",     "cuMemFreeHost",
                                      "cuStreamCreate",    "cuStreamDestroy",    "cuStreamSynchronize",
                                      "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync",  "cuMemUnmap",
                                      "cuMemRelease",      "cuMemCreate",        "cuMemMap",
                                      "cuMemSetAccess",    "cuStreamIsCapturing"};
  int planned = 0;
  for (const char* call : calls) {
    for (int64_t times : {1, 0}) {
      for (cuda::Result error : {cuda::kOutOfMemory, cuda::kUnknown}) {
        for (int64_t nth = 1; nth < 40; ++nth) {
          Gpu gpu("memory:256MiB");
          int failures = test::failures();
          std::vector<Block> weights = furnish(kWeights, nullptr, 9);
          void* kv = in_pool(kKv, 20 * kMiB);
          simgpu_reset_calls();
          CHECK_EQ(simgpu_fail(call, nth, times, error), 0);
          pyalloc_status slept = sleep({kWeights, kKv}, {kWeights});
          CHECK(valid());
          if (slept != PYALLOC_OK) {
            CHECK(pyalloc_last_error()[0] != 0);
            CHECK(slept == PYALLOC_DRIVER_ERROR || slept == PYALLOC_OUT_OF_MEMORY || slept == PYALLOC_WRONG_STATE);
          }
          pyalloc_status woke = wake({kWeights, kKv});
          CHECK(valid());
          bool reached = simgpu_calls(call) >= nth;
          simgpu_clear_faults();
          if (woke != PYALLOC_OK) {
            CHECK(slept == PYALLOC_OK);
            CHECK(unmapped(kv));
            CHECK_EQ(wake({kWeights, kKv}), PYALLOC_OK);
          }
          CHECK(intact(weights) && !unmapped(kv) && valid());
          void* more = in_pool(kWeights, 3 * kMiB);
          CHECK(more != nullptr);
          deallocate(more);
          free_all(weights);
          deallocate(kv);
          pyalloc_maintain(0);
          trim();
          trim();
          CHECK_EQ(simgpu_used(0), uint64_t{0});
          CHECK(valid());
          gpu.end();
          if (test::failures() != failures)
            std::fprintf(stderr, "  ... %s, call %lld, %s, error %d\n", call, (long long)nth,
                         times == 0 ? "for ever" : "once", error);
          if (!reached || test::failures() > 20) break;
          ++planned;
        }
      }
    }
  }
  CHECK(planned > 60);
}

TEST(closing_while_asleep_loses_nothing) {
  Gpu gpu("memory:256MiB");
  std::vector<Block> weights = furnish(kWeights, nullptr, 11);
  CHECK_EQ(sleep({kWeights}, {kWeights}), PYALLOC_OK);
  free_all(weights);
  CHECK_EQ(pyalloc_shutdown(), PYALLOC_OK);
}

// What was enqueued may still be on its way to memory that goes again.
TEST(a_copy_that_cannot_be_waited_for_is_over_before_its_memory_goes) {
  for (bool device_fails : {false, true}) {
    Gpu gpu("memory:256MiB,streams:deferred,seed:3");
    std::vector<Block> blocks = furnish(kWeights, nullptr, 5);
    int64_t lain = figures(kWeights).used;
    CHECK_EQ(sleep({kWeights}, {kWeights}), PYALLOC_OK);
    CHECK_EQ(simgpu_fail("cuStreamSynchronize", 1, 0, cuda::kUnknown), 0);
    if (device_fails) CHECK_EQ(simgpu_fail("cuCtxSynchronize", 1, 0, cuda::kUnknown), 0);
    for (int tries = 0; tries < 2; ++tries) {
      CHECK_EQ(wake({kWeights}), PYALLOC_DRIVER_ERROR);
      gpu.check_no_violations();
      CHECK_EQ(figures(kWeights).asleep,
               device_fails ? 0 : lain);  // else the memory stays, and waits for the next wake
      CHECK(in_pool(kWeights, 512) == nullptr && says("sleeps on device"));
      CHECK(valid());
    }
    simgpu_clear_faults();
    CHECK_EQ(wake({kWeights}), PYALLOC_OK);
    CHECK(intact(blocks) && valid());
    free_all(blocks);
  }
}
