// Torch's private pools: uses, what their memory is kept from and when it is given up, numbers that are used again.
#include <string>
#include <thread>
#include <vector>

#include "graphs.h"

using namespace test;

namespace {

int64_t reserved() { return stats().reserved_bytes[0].current; }

}  // namespace

TEST(a_private_pool_counts_its_uses) {
  Gpu gpu("memory:1GiB");
  pyalloc_pool_key key{0, 7};
  CHECK_EQ(uses(key), 0);
  CHECK_EQ(pyalloc_private_pool_release(0, key), PYALLOC_OK);  // nothing was allocated on the device: nothing to say
  int number = retain(key);
  CHECK_EQ(uses(key), 1);
  CHECK_EQ(retain(key), number);
  CHECK_EQ(uses(key), 2);
  CHECK(retain({0, 8}) != number);
  release(key);
  CHECK_EQ(uses(key), 1);
  release(key);
  CHECK_EQ(uses(key), 0);
  CHECK(pyalloc_private_pool_release(0, key) == PYALLOC_INVALID_ARGUMENT && says("Could not find pool of id (0, 7)"));
  CHECK(pyalloc_private_pool_retain(0, {0, 0}, nullptr) == PYALLOC_INVALID_ARGUMENT && says("the default pool"));
  CHECK(pyalloc_private_pool_lend(0, key, 1) == PYALLOC_INVALID_ARGUMENT && says("Could not find pool"));
  void* pointer = nullptr;
  CHECK(pyalloc_allocate_in(0, 3000, nullptr, PYALLOC_STREAM_OWNED, 512, &pointer) == PYALLOC_INVALID_ARGUMENT &&
        says("pool 3000 is no pool of device 0"));
  CHECK(valid());
}

TEST(while_in_use_its_memory_serves_no_other_pool) {
  Gpu gpu("memory:256MiB");
  pyalloc_pool_key key{0, 1};
  int pool = retain(key);
  for (size_t bytes : {160 * kMiB, 500 * kKiB, size_t{700}}) deallocate(allocate_in(pool, bytes));
  CHECK(allocate(120 * kMiB) == nullptr);
  CHECK(says("\n  private (MemPool, CUDA graphs)     0 bytes allocated,  162.00 MiB reserved\n"));
  CHECK_EQ(trim(), uint64_t{0});
  CHECK_EQ(pyalloc_maintain(0), PYALLOC_OK);
  CHECK(reserved() >= int64_t{160} << 20);
  CHECK_EQ(of_pool(key).reserved_bytes[PYALLOC_KIND_ALL].current, reserved());
  CHECK(valid());
  release(key);
  void* general = allocate(240 * kMiB);
  CHECK(general != nullptr && fill(nullptr, general, 240 * kMiB, 3));
  CHECK(valid());
  deallocate(general);
}

TEST(trimming_a_live_pool_gives_back_what_no_block_needs) {
  Gpu gpu("memory:1GiB");
  pyalloc_pool_key key{0, 1};
  int pool = retain(key);
  void* kept = allocate_in(pool, 32 * kMiB);
  deallocate(allocate_in(pool, 400 * kMiB));
  uint64_t released = 0;
  CHECK_EQ(pyalloc_private_pool_trim(0, key, &released), PYALLOC_OK);
  CHECK_EQ(released, uint64_t{400} << 20);
  CHECK_EQ(of_pool(key).reserved_bytes[PYALLOC_KIND_ALL].current, int64_t{32} << 20);
  CHECK_EQ(of_pool(key).reserved_bytes[PYALLOC_KIND_ALL].peak, int64_t{432} << 20);
  CHECK(fill(nullptr, kept, 32 * kMiB, 1) && valid());
  deallocate(kept);
  release(key);
}

// Complaint 11: 60 % of the device in a pool, freed, then 70 %; and the same where what is free lies in two pieces.
TEST(a_pool_may_use_all_of_its_own_free_memory) {
  for (bool pieces : {false, true}) {
    Gpu gpu("memory:512MiB");
    pyalloc_pool_key key{0, 1};
    int pool = retain(key);
    size_t part = pieces ? 150 * kMiB : 300 * kMiB;
    void* first = allocate_in(pool, part);
    void* between = pieces ? allocate_in(pool, 2 * kMiB) : nullptr;
    void* second = pieces ? allocate_in(pool, part) : nullptr;
    deallocate(first);
    deallocate(second);
    void* large = allocate_in(pool, 360 * kMiB);
    CHECK(large != nullptr && fill(nullptr, large, 360 * kMiB, 9) && holds(large, 360 * kMiB, 9));
    CHECK(valid());
    deallocate(large);
    deallocate(between);
    release(key);
  }
}

TEST(blocks_outlive_their_pool) {
  Gpu gpu("memory:512MiB");
  pyalloc_pool_key key{0, 5};
  int pool = retain(key);
  std::vector<void*> blocks;
  for (size_t bytes : {size_t{700}, 100 * kKiB, 30 * kMiB}) blocks.push_back(allocate_in(pool, bytes));
  release(key);
  CHECK_EQ(pyalloc_private_pool_trim(0, key, nullptr), PYALLOC_OK);
  CHECK(retain({0, 6}) != pool);  // its number is not free yet
  CHECK(fill(nullptr, blocks[2], 30 * kMiB, 4) && holds(blocks[2], 30 * kMiB, 4));
  for (void* block : blocks) CHECK_EQ(deallocate(block), PYALLOC_OK);
  CHECK_EQ(deallocate(blocks[0]), PYALLOC_UNKNOWN_POINTER);
  uint64_t released = 0;
  CHECK_EQ(pyalloc_private_pool_trim(0, key, &released), PYALLOC_OK);
  CHECK(released >= 32 * kMiB);
  CHECK_EQ(reserved(), int64_t{0});
  CHECK(retain({0, 7}) == pool);
  release({0, 6});
  release({0, 7});
  CHECK(valid());
}

TEST(ten_thousand_pools_need_the_addresses_of_a_few) {
  Gpu gpu("memory:1GiB");
  int64_t after_some = 0;
  for (uint64_t i = 1; i <= 10000 / kSlowdown; ++i) {
    int pool = retain({0, i});
    void* blocks[] = {allocate_in(pool, 3 * kMiB), allocate_in(pool, 20 * kKiB)};
    release({0, i});
    for (void* block : blocks) CHECK_EQ(deallocate(block), PYALLOC_OK);
    if (i % 2 == 0) pyalloc_private_pool_trim(0, {0, i}, nullptr);
    if (i == 20) after_some = simgpu_calls("cuMemAddressReserve");
  }
  CHECK_EQ(simgpu_calls("cuMemAddressReserve"), after_some);
  int64_t remembered = 0;
  CHECK_EQ(pyalloc_private_pools(0, &remembered,
                                 [](void* count, const pyalloc_private_pool*) { ++*static_cast<int64_t*>(count); }),
           PYALLOC_OK);
  CHECK(remembered > 100 && remembered < 300);
  CHECK_EQ(pyalloc_reset_peak_stats(0), PYALLOC_OK);
  CHECK(valid());
}

TEST(a_pool_with_the_id_of_one_that_is_gone_goes_on_where_that_was) {
  Gpu gpu("memory:1GiB");
  pyalloc_pool_key key{3, 0};
  int pool = retain(key);
  void* block = allocate_in(pool, 8 * kMiB);
  release(key);
  CHECK_EQ(retain(key), pool);
  deallocate(block);
  CHECK_EQ(trim(), uint64_t{0});
  CHECK(allocate_in(pool, 8 * kMiB) == block);
  release(key);
  deallocate(block);
  CHECK_EQ(trim(), 8 * kMiB);
}

TEST(a_lending_pool_serves_others_before_they_are_refused) {
  Gpu gpu("memory:256MiB");
  pyalloc_pool_key mean{0, 1}, lender{0, 2};
  void* held = allocate_in(retain(mean), 80 * kMiB);
  void* lent = allocate_in(retain(lender), 100 * kMiB);
  void* rest = allocate(70 * kMiB);
  CHECK_EQ(pyalloc_private_pool_lend(0, lender, 1), PYALLOC_OK);
  CHECK(allocate(60 * kMiB) == nullptr);  // nothing is free anywhere
  deallocate(held);
  deallocate(lent);
  CHECK(allocate(60 * kMiB) == lent);
  CHECK_EQ(stats().rung_lenders, int64_t{1});
  CHECK_EQ(pyalloc_private_pool_lend(0, lender, 0), PYALLOC_OK);
  deallocate(lent);
  CHECK(allocate(60 * kMiB) == nullptr);
  CHECK_EQ(pyalloc_private_pool_lend(0, lender, 1), PYALLOC_OK);
  CHECK(allocate_in(retain(mean), 120 * kMiB) == nullptr);  // a private pool borrows from no other
  CHECK(valid());
  deallocate(rest);
}

TEST(memory_of_a_pool_is_reused_on_the_stream_that_freed_it) {
  Gpu gpu("memory:256MiB,streams:deferred,seed:5");
  void *one = gpu.stream(), *two = gpu.stream();
  pyalloc_pool_key key{0, 1};
  int pool = retain(key);
  Random random(11);
  std::vector<void*> live;
  for (int step = 0; step < 2000 / kSlowdown; ++step) {
    void* stream = random.below(2) != 0 ? one : two;
    if (live.size() > 20 || (random.below(3) == 0 && !live.empty())) {
      size_t at = random.below(live.size());
      CHECK_EQ(deallocate(live[at]), PYALLOC_OK);
      live[at] = live.back();
      live.pop_back();
    } else {
      size_t bytes = random.bytes(8 * kMiB);
      void* block = random.below(4) == 0 ? allocate(bytes, stream) : allocate_in(pool, bytes, stream);
      CHECK(block != nullptr && fill(stream, block, bytes, static_cast<uint8_t>(step)));
      live.push_back(block);
    }
    if (step % 100 == 0) CHECK(valid());
    if (step % 333 == 0) pyalloc_private_pool_trim(0, key, nullptr);
    if (step % 7 == 0) simgpu_step(3);
  }
  for (void* block : live) deallocate(block);
  release(key);
  simgpu_step(-1);
  trim();
  CHECK_EQ(reserved(), int64_t{0});
  CHECK(valid());
}

// The core's own rollback under private pools: every driver call of one failing.
TEST(a_failed_call_leaves_the_pool_as_it_was) {
  for (const char* call : {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    for (int nth = 1; nth <= 4; ++nth) {
      Gpu gpu("memory:512MiB");
      deallocate(allocate(512));
      simgpu_fail(call, nth, 1, 2);
      pyalloc_pool_key key{0, 1};
      int pool = 0;
      std::vector<void*> blocks;
      if (pyalloc_private_pool_retain(0, key, &pool) == PYALLOC_OK) {
        for (size_t bytes : {3 * kMiB, 100 * kKiB, size_t{512}, 40 * kMiB}) blocks.push_back(allocate_in(pool, bytes));
      } else {
        CHECK_EQ(uses(key), 0);
      }
      CHECK(valid());
      simgpu_clear_faults();
      int again = retain(key);
      void* block = allocate_in(again, 3 * kMiB);
      CHECK(block != nullptr && valid());
      deallocate(block);
      for (void* one : blocks) deallocate(one);
      while (uses(key) > 0) release(key);
      trim();
      CHECK_EQ(stats().reserved_bytes[0].current, int64_t{0});
    }
  }
}

TEST(threads_make_use_and_give_up_pools) {
  Gpu gpu("memory:2GiB", "maintenance:on");
  std::vector<std::thread> threads;
  for (uint64_t thread = 1; thread <= 4; ++thread) {
    threads.emplace_back([thread] {
      Gpu::use(0);
      void* stream = Gpu::stream();
      Random random(thread);
      std::vector<void*> live;
      for (uint64_t round = 0; round < 120 / kSlowdown; ++round) {
        pyalloc_pool_key key{thread, round};
        int pool = retain(key);
        for (int step = 0; step < 20; ++step) {
          void* block = allocate_in(pool, random.bytes(4 * kMiB), stream);
          CHECK(block != nullptr);
          live.push_back(block);
          if (random.below(2) == 0) {
            CHECK_EQ(deallocate(live.front()), PYALLOC_OK);
            live.erase(live.begin());
          }
        }
        release(key);
        if (round % 5 == 0) pyalloc_private_pool_trim(0, key, nullptr);
        if (live.size() > 30) {
          for (void* block : live) CHECK_EQ(deallocate(block), PYALLOC_OK);
          live.clear();
        }
      }
      for (void* block : live) CHECK_EQ(deallocate(block), PYALLOC_OK);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(valid());
  trim();
  CHECK_EQ(reserved(), int64_t{0});
}

TEST(guarded_blocks_of_a_pool_fault_after_their_free) {
  Gpu gpu("memory:1GiB", "guard:on");
  pyalloc_pool_key key{0, 1};
  int pool = retain(key);
  void* block = allocate_in(pool, 1000);
  CHECK(fill(nullptr, block, 1000, 1));
  deallocate(block);
  CHECK(!fill(nullptr, block, 1000, 2));
  simgpu_clear_violations();
  CHECK(valid());
  release(key);
}

// A pool that is used again keeps what was idle: that is in use from then on, as peaks say.
TEST(keeping_memory_again_counts_in_peaks) {
  Gpu gpu("memory:1GiB");
  pyalloc_pool_key key{0, 9};
  void* other = allocate(60 * kMiB);
  deallocate(allocate_in(retain(key), 40 * kMiB));
  release(key);
  CHECK_EQ(pyalloc_reset_pool_peak(0, PYALLOC_POOL_GENERAL), PYALLOC_OK);
  retain(key);
  CHECK(valid());
  pyalloc_ledger ledger{};
  ledger.size = sizeof ledger;
  CHECK_EQ(pyalloc_get_ledger(0, &ledger, nullptr, 0, nullptr), PYALLOC_OK);
  CHECK(ledger.activation_peak >= int64_t{100} << 20);
  release(key);
  deallocate(other);
}
