// Pools that sleep: memory goes to the driver, addresses and blocks stay, contents come back where asked.
#include "sleep.h"

#include <atomic>
#include <thread>

using namespace test;
namespace cuda = pyalloc::cuda;

TEST(contents_come_back_at_the_same_addresses) {
  for (int pool : {kWeights, kKv, kGeneral, int{PYALLOC_POOL_WORKSPACE}}) {
    Gpu gpu("memory:1GiB");
    void* stream = gpu.stream();
    std::vector<Block> blocks = furnish(pool, stream, 3);
    void* other = in_pool(pool == kWeights ? kKv : kWeights, 3 * kMiB);
    uint64_t used = simgpu_used(0), released = 0;
    int64_t reserved = stats().reserved_bytes[0].current, allocated = stats().allocated_bytes[0].current;
    Seen out, in;
    CHECK_EQ(sleep({pool}, {pool}, &released, &out), PYALLOC_OK);
    CHECK(out.calls > 0 && out.done == out.total);
    CHECK_EQ(figures(pool).offloaded, static_cast<int64_t>(out.total));
    CHECK_EQ(figures(pool).asleep, static_cast<int64_t>(out.total));
    CHECK_EQ(figures(pool).used, int64_t{0});
    CHECK_EQ(figures(pool).reserved, int64_t{0});
    CHECK_EQ(simgpu_used(0), uint64_t{4 * kMiB});
    CHECK_EQ(released, used - 4 * kMiB);
    CHECK_EQ(stats().allocated_bytes[0].current, allocated);  // its blocks live on
    CHECK(unmapped(blocks[0].at) && !unmapped(other));
    pyalloc_block_info info{};
    info.size = sizeof info;
    for (const Block& one : blocks) {
      CHECK_EQ(pyalloc_find_block(one.at, &info), PYALLOC_OK);
      CHECK(info.block == one.at && info.segment_bytes == 0);
    }
    CHECK(valid());
    // Somebody else has the memory meanwhile.
    void* guest = allocate(900 * kMiB);
    if (pool != kGeneral) {
      CHECK(guest != nullptr && fill(nullptr, guest, 900 * kMiB, 9));
      deallocate(guest);
    }
    CHECK_EQ(wake({pool}, &in), PYALLOC_OK);
    CHECK(in.calls > 0 && in.total == out.total);
    CHECK(intact(blocks));
    CHECK(stats().reserved_bytes[0].current <= reserved + static_cast<int64_t>(900 * kMiB));
    CHECK_EQ(figures(pool).asleep, int64_t{0});
    CHECK_EQ(figures(pool).offloaded, int64_t{0});
    CHECK(valid());
    void* more = in_pool(pool, 5 * kMiB, stream);
    CHECK(more != nullptr && intact(blocks));
    deallocate(more);
    free_all(blocks);
    deallocate(other);
    CHECK(valid());
    trim();
    CHECK_EQ(simgpu_used(0), uint64_t{0});
  }
}

// The vLLM way: weights are restored, the KV cache is not, five times over.
TEST(cycles_use_the_same_memory_each_time) {
  Gpu gpu("memory:1GiB");
  void* stream = gpu.stream();
  std::vector<Block> weights = furnish(kWeights, stream, 1), kv = furnish(kKv, stream, 2);
  trim();
  uint64_t used = 0;
  for (int cycle = 0; cycle < 5; ++cycle) {
    CHECK_EQ(sleep({kWeights, kKv}, {kWeights}), PYALLOC_OK);
    CHECK_EQ(simgpu_used(0), uint64_t{0});
    CHECK_EQ(figures(kKv).offloaded, int64_t{0});
    CHECK_EQ(wake({kWeights}), PYALLOC_OK);  // in two steps, as vLLM does
    CHECK(unmapped(kv[0].at) && intact(weights));
    CHECK_EQ(wake({kKv}), PYALLOC_OK);
    if (cycle == 0) used = simgpu_used(0);
    CHECK_EQ(simgpu_used(0), used);
    for (const Block& one : kv) CHECK(fill(stream, one.at, one.bytes, one.value));
    CHECK(intact(weights) && intact(kv));
    CHECK(valid());
  }
  free_all(weights);
  free_all(kv);
}

TEST(sleeping_and_waking_again_change_nothing) {
  Gpu gpu("memory:256MiB");
  std::vector<Block> weights = furnish(kWeights, nullptr, 4);
  CHECK_EQ(wake({kWeights, kKv}), PYALLOC_OK);  // nothing sleeps
  CHECK_EQ(sleep({kWeights}, {kWeights}), PYALLOC_OK);
  uint64_t released = 1;
  CHECK_EQ(sleep({kWeights, kKv}, {}, &released), PYALLOC_OK);  // what is kept is kept
  CHECK_EQ(released, uint64_t{0});
  CHECK_EQ(wake({kWeights, kKv, kWeights}), PYALLOC_OK);
  CHECK_EQ(wake({kWeights}), PYALLOC_OK);
  CHECK(intact(weights));
  free_all(weights);
  CHECK_EQ(sleep({}), PYALLOC_OK);
  CHECK_EQ(sleep({99}), PYALLOC_INVALID_ARGUMENT);
  CHECK(says("expected 0 to"));
  CHECK_EQ(pyalloc_sleep(nullptr, nullptr, 1, nullptr, nullptr, nullptr), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(wake({-1}), PYALLOC_INVALID_ARGUMENT);
}

TEST(a_sleeping_pool_hands_out_nothing_and_takes_frees) {
  for (int pool : {kWeights, kKv, kGeneral, int{PYALLOC_POOL_WORKSPACE}}) {
    Gpu gpu("memory:256MiB", "lora_reserve:0");
    std::vector<Block> blocks = furnish(pool, nullptr, 5);
    CHECK_EQ(sleep({pool}, {pool}), PYALLOC_OK);
    for (size_t bytes : {size_t{100}, 100 * kKiB, 600 * kKiB, 5 * kMiB, 40 * kMiB}) {
      void* refused = nullptr;
      In scope(pool);
      CHECK_EQ(pyalloc_allocate(0, nullptr, PYALLOC_STREAM_OWNED, bytes, &refused), PYALLOC_WRONG_STATE);
      CHECK(says("sleeps on device 0") && says("pyalloc.wake()"));
      void* newcomer = gpu.stream();  // a lane that is made now
      CHECK_EQ(pyalloc_allocate(0, newcomer, PYALLOC_STREAM_OWNED, bytes, &refused), PYALLOC_WRONG_STATE);
    }
    CHECK_EQ(stats().num_ooms, int64_t{0});
    for (size_t i = 0; i < blocks.size(); i += 2) {
      CHECK_EQ(deallocate(blocks[i].at), PYALLOC_OK);
      CHECK_EQ(deallocate(blocks[i].at), PYALLOC_UNKNOWN_POINTER);
      blocks[i] = blocks.back();
      blocks.pop_back();
      CHECK(valid());
    }
    int64_t asleep = figures(pool).asleep;
    CHECK_EQ(wake({pool}), PYALLOC_OK);
    CHECK(intact(blocks));
    CHECK_EQ(figures(pool).used, asleep);  // what was freed needs no memory
    CHECK(valid());
    CHECK_EQ(sleep({pool}), PYALLOC_OK);
    free_all(blocks);
    CHECK_EQ(figures(pool).asleep, int64_t{0});
    CHECK_EQ(wake({pool}), PYALLOC_OK);
    void* next = in_pool(pool, 1000);
    CHECK(next != nullptr);
    deallocate(next);
    CHECK(valid());
  }
}

TEST(work_that_is_under_way_is_waited_for) {
  Gpu gpu("memory:256MiB,streams:deferred,seed:6");
  void *one = gpu.stream(), *two = gpu.stream();
  void* block = in_pool(kWeights, 30 * kMiB, one);
  void* recorded = in_pool(kWeights, 5 * kMiB, one);
  CHECK(fill(one, block, 30 * kMiB, 7));
  CHECK(fill(two, recorded, 5 * kMiB, 8));
  CHECK_EQ(pyalloc_record_stream(recorded, two, PYALLOC_STREAM_OWNED), PYALLOC_OK);
  deallocate(recorded);
  CHECK(simgpu_pending() > 0);
  CHECK_EQ(sleep({kWeights}, {kWeights}), PYALLOC_OK);
  CHECK_EQ(simgpu_pending(), int64_t{0});
  CHECK_EQ(figures(kWeights).offloaded, static_cast<int64_t>(30 * kMiB));
  CHECK_EQ(wake({kWeights}), PYALLOC_OK);
  CHECK(holds(block, 30 * kMiB, 7));
  deallocate(block);
}

TEST(memory_that_moved_here_leaves_its_old_address_first) {
  Gpu gpu("memory:128MiB,streams:deferred,seed:2");
  void *one = gpu.stream(), *two = gpu.stream();
  void* first = allocate(100 * kMiB, one);
  CHECK(fill(one, first, 100 * kMiB, 1));
  deallocate(first);
  void* block = in_pool(kWeights, 100 * kMiB, two);
  CHECK(stats().stale_mappings > 0 && fill(two, block, 100 * kMiB, 2));
  CHECK_EQ(sleep({kWeights}, {kWeights}), PYALLOC_OK);
  CHECK(simgpu_used(0) <= 28 * kMiB);
  CHECK_EQ(wake({kWeights}), PYALLOC_OK);
  CHECK(holds(block, 100 * kMiB, 2));
  deallocate(block);
}

// What is short when it wakes: half of the memory is taken. Everything stays as it was, and a later wake works.
TEST(waking_climbs_the_ladder) {
  Gpu gpu("memory:256MiB");
  void* weights = in_pool(kWeights, 150 * kMiB);
  CHECK(fill(nullptr, weights, 150 * kMiB, 3));
  CHECK_EQ(sleep({kWeights}, {kWeights}), PYALLOC_OK);
  void* cache = allocate(200 * kMiB);
  pyalloc_reclaim_fn drop = [](void* context, int, size_t bytes) -> uint64_t {
    CHECK_EQ(bytes, 150 * kMiB);
    deallocate(*static_cast<void**>(context));
    return 200 * kMiB;
  };
  CHECK_EQ(pyalloc_add_reclaimer(drop, &cache, 0), PYALLOC_OK);
  CHECK_EQ(wake({kWeights}), PYALLOC_OK);
  CHECK_EQ(stats().rung_reclaimers, int64_t{1});
  CHECK(holds(weights, 150 * kMiB, 3));
  deallocate(weights);
}

TEST(limits_count_what_wakes) {
  Gpu gpu("memory:256MiB", "limit:128MiB");
  void* weights = in_pool(kWeights, 100 * kMiB);
  CHECK_EQ(sleep({kWeights}), PYALLOC_OK);
  void* other = allocate(100 * kMiB);
  CHECK(other != nullptr);
  CHECK_EQ(wake({kWeights}), PYALLOC_OUT_OF_MEMORY);
  CHECK(says("limit"));
  deallocate(other);
  CHECK_EQ(wake({kWeights}), PYALLOC_OK);
  deallocate(weights);
}

// The system's, or the driver's, host memory is short: everything stays as it was.
// A block larger than the machine: refused before anything is pinned.
TEST(peers_reach_what_woke) {
  Gpu gpu("memory:256MiB", "", 2);
  void* block = in_pool(kWeights, 10 * kMiB);
  deallocate(allocate(100, nullptr, 1));
  CHECK_EQ(pyalloc_enable_peer_access(1, 0), PYALLOC_OK);
  CHECK_EQ(sleep({kWeights}, {kWeights}), PYALLOC_OK);
  CHECK_EQ(wake({kWeights}), PYALLOC_OK);
  void* theirs = gpu.stream(1);
  Gpu::use(1);
  CHECK(fill(theirs, block, 10 * kMiB, 5));
  Gpu::use(0);
  deallocate(block);
}

namespace {

struct Ear {
  int64_t unmapping = 0, mapped = 0;
  static void hear(void* context, const pyalloc_mapping_event* event) {
    auto& self = *static_cast<Ear*>(context);
    CHECK(!unmapped(event->address));  // before it goes, and after it came
    (event->kind == PYALLOC_MAPPED ? self.mapped : self.unmapping) += static_cast<int64_t>(event->bytes);
  }
};

}  // namespace

TEST(observers_hear_of_sleep_and_wake) {
  Gpu gpu("memory:256MiB");
  void* block = in_pool(kWeights, 40 * kMiB);
  Ear ear;
  CHECK_EQ(pyalloc_add_mapping_observer(&Ear::hear, &ear, 3), PYALLOC_OK);
  CHECK_EQ(sleep({kWeights}, {kWeights}), PYALLOC_OK);
  CHECK_EQ(ear.unmapping, static_cast<int64_t>(40 * kMiB));
  CHECK_EQ(wake({kWeights}), PYALLOC_OK);
  CHECK_EQ(ear.mapped, static_cast<int64_t>(40 * kMiB));
  CHECK_EQ(simgpu_fail("cuMemUnmap", 1, 1, cuda::kUnknown), 0);
  CHECK_EQ(sleep({kWeights}), PYALLOC_DRIVER_ERROR);
  CHECK_EQ(ear.mapped, static_cast<int64_t>(80 * kMiB));  // it stays after all
  CHECK_EQ(pyalloc_remove_mapping_observer(&Ear::hear, &ear), PYALLOC_OK);
  deallocate(block);
}

TEST(threads_free_and_allocate_elsewhere_meanwhile) {
  Gpu gpu("memory:1GiB", "maintenance:on,decay:2");
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      Gpu::use(0);
      Random random(static_cast<uint64_t>(t) + 10);
      std::vector<void*> mine;
      while (!over) {
        int pool = random.below(2) == 0 ? kGeneral : kKv;
        In scope(pool);
        void* block = nullptr;
        pyalloc_status status = pyalloc_allocate(0, nullptr, PYALLOC_STREAM_OWNED, random.bytes(8 * kMiB), &block);
        CHECK(status == PYALLOC_OK || (pool == kKv && status == PYALLOC_WRONG_STATE));
        if (status == PYALLOC_OK) mine.push_back(block);
        while (mine.size() > 20 || (!mine.empty() && random.below(3) == 0)) {
          size_t at = random.below(mine.size());
          CHECK_EQ(deallocate(mine[at]), PYALLOC_OK);
          mine[at] = mine.back();
          mine.pop_back();
        }
      }
      for (void* block : mine) deallocate(block);
    });
  }
  std::vector<Block> weights = furnish(kWeights, nullptr, 8);
  for (int cycle = 0; cycle < 20 / kSlowdown + 2; ++cycle) {
    CHECK_EQ(sleep({kWeights, kKv}, {kWeights, kKv}), PYALLOC_OK);
    CHECK(valid());
    CHECK_EQ(wake({kWeights, kKv}), PYALLOC_OK);
    CHECK(intact(weights) && valid());
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  free_all(weights);
  CHECK(valid());
}

// Every driver call that sleep and wake make, failing in turn.
TEST(contiguous_blocks_wake_in_one_handle) {
  Gpu gpu("memory:256MiB");
  int pool = 0;
  CHECK_EQ(pyalloc_create_pool("network", -1, UINT64_MAX, 1, &pool), PYALLOC_OK);
  std::vector<Block> blocks = furnish(pool, nullptr, 12);
  void* large = in_pool(pool, 45 * kMiB);
  simgpu_reset_calls();
  CHECK_EQ(sleep({pool}, {pool}), PYALLOC_OK);
  CHECK_EQ(wake({pool}), PYALLOC_OK);
  CHECK(intact(blocks) && valid());
  free_all(blocks);
  deallocate(large);
  trim();
  CHECK_EQ(simgpu_used(0), uint64_t{0});
}

// What is kept for a private pool's next graph sleeps with it, and only live blocks' memory is needed when it wakes.
TEST(a_private_pool_in_use_sleeps_and_wakes) {
  Gpu gpu("memory:256MiB", "check:full");
  pyalloc_pool_key key{1, 0};
  int pool = 0;
  CHECK_EQ(pyalloc_private_pool_retain(0, key, &pool), PYALLOC_OK);
  void *kept = nullptr, *idle = nullptr, *small = nullptr;
  CHECK_EQ(pyalloc_allocate_in(0, pool, nullptr, PYALLOC_STREAM_OWNED, 10 * kMiB, &kept), PYALLOC_OK);
  CHECK_EQ(pyalloc_allocate_in(0, pool, nullptr, PYALLOC_STREAM_OWNED, 30 * kMiB, &idle), PYALLOC_OK);
  CHECK_EQ(pyalloc_allocate_in(0, pool, nullptr, PYALLOC_STREAM_OWNED, 3000, &small), PYALLOC_OK);
  CHECK(fill(nullptr, kept, 10 * kMiB, 3) && fill(nullptr, small, 3000, 4));
  deallocate(idle);
  CHECK_EQ(sleep({PYALLOC_PRIVATE_POOLS}, {PYALLOC_PRIVATE_POOLS}), PYALLOC_OK);
  CHECK(valid());
  CHECK_EQ(simgpu_used(0), uint64_t{0});
  CHECK_EQ(wake({PYALLOC_PRIVATE_POOLS}), PYALLOC_OK);
  CHECK(valid() && holds(kept, 10 * kMiB, 3) && holds(small, 3000, 4));
  CHECK_EQ(sleep({PYALLOC_PRIVATE_POOLS}), PYALLOC_OK);
  CHECK_EQ(pyalloc_private_pool_release(0, key), PYALLOC_OK);
  CHECK(valid());
  CHECK_EQ(pyalloc_private_pool_retain(0, key, &pool), PYALLOC_OK);
  CHECK(valid());
  deallocate(kept);
  CHECK(valid());
  CHECK_EQ(wake({PYALLOC_PRIVATE_POOLS}), PYALLOC_OK);
  CHECK(valid());
  deallocate(small);
  CHECK_EQ(pyalloc_private_pool_release(0, key), PYALLOC_OK);
}

TEST(a_pool_that_sleeps_lends_nothing) {
  Gpu gpu("memory:128MiB");
  pyalloc_pool_key key{1, 0};
  CHECK_EQ(pyalloc_private_pool_retain(0, key, nullptr), PYALLOC_OK);
  CHECK_EQ(pyalloc_private_pool_lend(0, key, 1), PYALLOC_OK);
  CHECK_EQ(sleep({PYALLOC_PRIVATE_POOLS}), PYALLOC_OK);
  void* refused = nullptr;
  CHECK_EQ(pyalloc_allocate(0, nullptr, PYALLOC_STREAM_OWNED, 200 * kMiB, &refused), PYALLOC_OUT_OF_MEMORY);
  CHECK(says("CUDA out of memory"));
  CHECK_EQ(stats().num_ooms, int64_t{1});
}
