// Reclaimers that are taken off while other threads call them.
#include "reclaimers.h"

#include <atomic>
#include <thread>

#include "pools.h"

using namespace test;

TEST(a_reclaimer_that_was_removed_is_not_called) {
  Gpu gpu("memory:32MiB");
  Hook first, removed, last;
  first.run = [&](int, size_t) {
    std::thread([&] { CHECK_EQ(pyalloc_remove_reclaimer(Hook::call, &removed), PYALLOC_OK); }).join();
    return uint64_t{0};
  };
  removed.run = last.run = [](int, size_t) { return uint64_t{0}; };
  CHECK_EQ(pyalloc_add_reclaimer(Hook::call, &first, 3), PYALLOC_OK);
  CHECK_EQ(pyalloc_add_reclaimer(Hook::call, &removed, 2), PYALLOC_OK);
  CHECK_EQ(pyalloc_add_reclaimer(Hook::call, &last, 1), PYALLOC_OK);
  CHECK(allocate(64 * kMiB) == nullptr);
  CHECK_EQ(first.calls, 1);
  CHECK_EQ(removed.calls, 0);
  CHECK_EQ(last.calls, 1);
}

TEST(reclaimers_are_waited_for_as_long_as_the_caller_likes) {
  Gpu gpu("memory:32MiB");
  std::atomic<bool> inside{false}, leave{false};
  Hook hook;
  hook.run = [&](int, size_t) {
    inside = true;
    while (!leave) std::this_thread::yield();
    return uint64_t{0};
  };
  CHECK_EQ(pyalloc_add_reclaimer(Hook::call, &hook, 0), PYALLOC_OK);
  CHECK_EQ(pyalloc_await_reclaimers(0), PYALLOC_OK);
  std::thread other([] { CHECK(allocate(64 * kMiB) == nullptr); });
  while (!inside) std::this_thread::yield();
  CHECK_EQ(pyalloc_remove_reclaimer(Hook::call, &hook), PYALLOC_OK);  // does not wait
  CHECK_EQ(pyalloc_await_reclaimers(20), PYALLOC_WRONG_STATE);
  CHECK(says("has not returned after 20 ms"));
  std::thread waiting([] { CHECK_EQ(pyalloc_await_reclaimers(60000), PYALLOC_OK); });
  leave = true;
  waiting.join();
  other.join();
}
