// The ledger: a device's whole account of one moment, what its margin promises, and how far free memory goes.
#include <atomic>
#include <thread>
#include <vector>

#include "pools.h"

using namespace test;

extern "C" {
pyalloc::cuda::Result cuMemAlloc_v2(uint64_t* address, size_t bytes);
pyalloc::cuda::Result cuMemFree_v2(uint64_t address);
}

namespace {

struct Account {
  pyalloc_ledger whole{};
  std::vector<pyalloc_pool_stats> pools;
  pyalloc_pool_stats of_private{};
};

Account account() {
  Account now;
  now.whole.size = sizeof now.whole;
  now.pools.resize(static_cast<size_t>(pyalloc_pool_count()));
  for (pyalloc_pool_stats& pool : now.pools) pool.size = sizeof pool;
  now.of_private.size = sizeof now.of_private;
  CHECK_EQ(pyalloc_get_ledger(0, &now.whole, now.pools.data(), pyalloc_pool_count(), &now.of_private), PYALLOC_OK);
  return now;
}

bool adds_up(const Account& now) {
  const pyalloc_ledger& whole = now.whole;
  int64_t reserved = now.of_private.reserved, used = now.of_private.used, requested = now.of_private.requested;
  for (const pyalloc_pool_stats& pool : now.pools) {
    reserved += pool.reserved;
    used += pool.used;
    requested += pool.requested;
  }
  return whole.reserved + whole.shelf + whole.outside + whole.free == whole.total && whole.reserved == reserved &&
         whole.used == used && whole.requested == requested && whole.largest_remapped >= whole.largest_free;
}

int64_t as_number(size_t bytes) { return static_cast<int64_t>(bytes); }

}  // namespace

TEST(the_account_adds_up_while_threads_allocate) {
  Gpu gpu("memory:2GiB,oracle:off", "lora_reserve:16MiB,decay:1");
  uint64_t foreign = 0;
  CHECK_EQ(cuMemAlloc_v2(&foreign, 24 * kMiB), pyalloc::cuda::kSuccess);
  std::atomic<bool> stop{false};
  std::atomic<int64_t> done{0};
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    threads.emplace_back([&, seed] {
      Gpu::use(0);
      Random random(seed);
      std::vector<void*> held;
      while (!stop.load()) {
        void* block = in_pool(static_cast<int>(random.below(5)), random.bytes(64 * kMiB));
        if (block != nullptr) held.push_back(block);
        if (block == nullptr || held.size() > 40) {
          deallocate(held[held.size() / 2]);
          held.erase(held.begin() + static_cast<ptrdiff_t>(held.size() / 2));
        }
        if (random.below(50) == 0) trim();
        done.fetch_add(1, std::memory_order_relaxed);
      }
      for (void* block : held) deallocate(block);
    });
  }
  for (int looks = 0; looks < 300 / kSlowdown || done.load() < 20000 / kSlowdown; ++looks) {
    Account now = account();
    // What is outside is known here to the byte, so figures of two moments would show.
    if (now.whole.total != 0) CHECK(adds_up(now) && now.whole.outside == as_number(24 * kMiB));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(valid());
  CHECK_EQ(account().whole.requested, int64_t{0});
  CHECK_EQ(cuMemFree_v2(foreign), pyalloc::cuda::kSuccess);
  CHECK_EQ(account().whole.outside, int64_t{0});
}

// What the margin says is left can be had, and no granule more.
TEST(the_margin_is_what_can_still_be_had) {
  for (const char* options : {"limit:256MiB", "memory_fraction:0.5", "slack:0.5", "lora_reserve:32MiB"}) {
    Gpu gpu("memory:512MiB", options);
    uint64_t foreign = 0;
    CHECK_EQ(cuMemAlloc_v2(&foreign, 100 * kMiB), pyalloc::cuda::kSuccess);
    void* kept = in_pool(PYALLOC_POOL_WEIGHTS, 30 * kMiB);
    deallocate(in_pool(PYALLOC_POOL_KV, 90 * kMiB));
    Account now = account();
    CHECK(adds_up(now) && now.whole.idle == as_number(90 * kMiB));
    auto margin = static_cast<size_t>(now.whole.margin);
    CHECK(allocate(margin + kGranule) == nullptr);
    void* rest = allocate(margin);
    CHECK(rest != nullptr);
    CHECK_EQ(account().whole.margin, int64_t{0});
    deallocate(rest);
    deallocate(kept);
    CHECK_EQ(cuMemFree_v2(foreign), pyalloc::cuda::kSuccess);
    CHECK(valid());
  }
}

// On a device with nothing left to create, free memory serves exactly the request that is said to be the largest.
TEST(the_largest_request_after_remapping_is_served) {
  for (size_t block : {3 * kMiB, 5 * kMiB - 512, 2 * kMiB, 9 * kMiB}) {
    for (const char* slack : {"slack:0", "slack:0.05"}) {
      Gpu gpu("memory:256MiB", slack);
      std::vector<void*> blocks;
      while (void* one = allocate(block)) blocks.push_back(one);
      for (size_t i = 0; i < blocks.size(); i += 2) deallocate(blocks[i]);
      Account now = account();
      const pyalloc_pool_stats& pool = now.pools[PYALLOC_POOL_GENERAL];
      CHECK(pool.largest_remapped > pool.largest_free && pool.largest_remapped <= pool.reserved - pool.allocated);
      auto largest = static_cast<size_t>(now.whole.largest_remapped + now.whole.free);
      CHECK(allocate(largest + kGranule) == nullptr);
      void* served = allocate(largest / kGranule * kGranule);
      CHECK(served != nullptr);
      deallocate(served);
      for (size_t i = 1; i < blocks.size(); i += 2) deallocate(blocks[i]);
      CHECK_EQ(account().whole.largest_remapped, account().whole.reserved);  // all of it is one piece again
      CHECK(valid());
    }
  }
}

TEST(the_activation_peak_is_of_what_is_held_for_the_moment) {
  Gpu gpu("memory:1GiB");
  void* weights = in_pool(PYALLOC_POOL_WEIGHTS, 300 * kMiB);
  void* cache = in_pool(PYALLOC_POOL_KV, 100 * kMiB);
  void* first = in_pool(PYALLOC_POOL_WORKSPACE, 50 * kMiB);
  void* second = allocate(20 * kMiB);
  deallocate(first);
  void* third = allocate(10 * kMiB);
  int images = -1;
  CHECK_EQ(pyalloc_create_pool("images", PYALLOC_POOL_KV, UINT64_MAX, 0, &images), PYALLOC_OK);
  deallocate(in_pool(images, 90 * kMiB));
  // 50 and 20 at once; the peaks of the pools one by one would say 50 and 30.
  CHECK_EQ(account().whole.activation_peak, as_number(70 * kMiB));
  CHECK_EQ(pyalloc_reset_pool_peak(0, PYALLOC_POOL_WEIGHTS), PYALLOC_OK);
  CHECK_EQ(account().whole.activation_peak, as_number(70 * kMiB));
  CHECK_EQ(pyalloc_reset_pool_peak(0, PYALLOC_POOL_GENERAL), PYALLOC_OK);
  CHECK_EQ(account().whole.activation_peak, as_number(30 * kMiB));
  for (void* block : {weights, cache, second, third}) deallocate(block);
  CHECK(valid());
}

TEST(a_ledger_of_nothing_and_wrong_arguments) {
  Gpu gpu("memory:1GiB", "kv_limit:64MiB");
  Account now = account();
  CHECK(adds_up(now) && now.whole.total == 0);
  CHECK_EQ(now.pools[PYALLOC_POOL_KV].limit, as_number(64 * kMiB));
  pyalloc_ledger whole{};
  CHECK(pyalloc_get_ledger(0, &whole, nullptr, 0, nullptr) == PYALLOC_INVALID_ARGUMENT &&
        says("ledger->size is not set"));
  whole.size = sizeof whole;
  CHECK_EQ(pyalloc_get_ledger(0, &whole, nullptr, 0, nullptr), PYALLOC_OK);
  CHECK(pyalloc_get_ledger(0, &whole, nullptr, 1, nullptr) == PYALLOC_INVALID_ARGUMENT &&
        says("1 pools; expected room for 0"));
  CHECK(pyalloc_get_ledger(0, &whole, now.pools.data(), 65, nullptr) == PYALLOC_INVALID_ARGUMENT && says("65 pools"));
  CHECK(pyalloc_get_ledger(9, &whole, nullptr, 0, nullptr) == PYALLOC_INVALID_ARGUMENT &&
        says("device 9; expected 0 to 0"));
  now.pools[1].size = 8;
  CHECK(pyalloc_get_ledger(0, &whole, now.pools.data(), 2, nullptr) == PYALLOC_INVALID_ARGUMENT &&
        says("pools[1].size"));
  pyalloc_pool_stats of_private{};
  CHECK(pyalloc_get_ledger(0, &whole, nullptr, 0, &of_private) == PYALLOC_INVALID_ARGUMENT &&
        says("private_pools->size"));
}
