// Checkpoints of a private pool: its live blocks again at the same addresses, whatever happened since.
#include <algorithm>
#include <map>
#include <vector>

#include "graphs.h"

using namespace test;

namespace {

constexpr pyalloc_pool_key kKey{2, 0};
using Blocks = std::map<void*, size_t>;  // bytes asked for, by address

void add(void* context, const pyalloc_block_view* block) {
  (*static_cast<Blocks*>(context))[block->address] = block->requested;
}

Blocks live_blocks() {
  Blocks all;
  CHECK_EQ(pyalloc_private_pool_blocks(0, kKey, &all, add), PYALLOC_OK);
  return all;
}

struct Taken {
  Taken() { CHECK_EQ(pyalloc_checkpoint_take(0, kKey, &checkpoint), PYALLOC_OK); }
  ~Taken() { pyalloc_checkpoint_drop(checkpoint); }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  pyalloc_checkpoint* checkpoint = nullptr;
};

struct Told {
  Blocks freed, allocated;
};

pyalloc_status restore(const Taken& taken, Told& told) {
  return pyalloc_checkpoint_restore(
      taken.checkpoint, &told,
      [](void* context, const pyalloc_block_view* one) { add(&static_cast<Told*>(context)->freed, one); },
      [](void* context, const pyalloc_block_view* one) { add(&static_cast<Told*>(context)->allocated, one); });
}

// Allocates and frees at random in the pool.
void churn(int pool, const std::vector<void*>& streams, Random& random, Blocks& live, int steps) {
  for (int step = 0; step < steps; ++step) {
    if (live.size() > 60 || (random.below(5) < 2 && !live.empty())) {
      auto one = std::next(live.begin(), static_cast<ptrdiff_t>(random.below(live.size())));
      CHECK_EQ(deallocate(one->first), PYALLOC_OK);
      live.erase(one);
    } else {
      size_t bytes = random.bytes(6 * kMiB);
      void* block = allocate_in(pool, bytes, streams[random.below(streams.size())]);
      CHECK(block != nullptr);
      live[block] = bytes;
    }
  }
}

}  // namespace

TEST(blocks_are_had_again_at_the_same_addresses) {
  for (uint64_t seed = 1; seed <= 12 / (kSlowdown > 1 ? 3u : 1u); ++seed) {
    Gpu gpu("memory:2GiB");
    std::vector<void*> streams{nullptr, gpu.stream()};
    Random random(seed);
    int pool = retain(kKey);
    Blocks live;
    churn(pool, streams, random, live, 150);
    CHECK(live_blocks() == live);
    Taken taken;
    const Blocks saved = live;
    int64_t requested = stats().requested_bytes[0].current, blocks = stats().allocation[0].current;
    for (int round = 0; round < 4; ++round) {
      churn(pool, streams, random, live, round * 100);
      if (round == 3) {  // nothing of it is left, and all else is there
        for (const auto& [block, bytes] : live) deallocate(block);
        live.clear();
        churn(pool, streams, random, live, 100);
      }
      Told told;
      CHECK_EQ(restore(taken, told), PYALLOC_OK);
      CHECK(told.freed == live && told.allocated == saved);
      CHECK(live_blocks() == saved);
      CHECK_EQ(stats().requested_bytes[0].current, requested);
      CHECK_EQ(stats().allocation[0].current, blocks);
      CHECK(valid());
      for (const auto& [block, bytes] : saved) CHECK(fill(streams[0], block, bytes, 5));
      live = saved;
    }
    for (const auto& [block, bytes] : live) CHECK_EQ(deallocate(block), PYALLOC_OK);
    CHECK_EQ(stats().allocated_bytes[0].current, int64_t{0});
    release(kKey);
    trim();
    CHECK_EQ(stats().reserved_bytes[0].current, int64_t{0});
    CHECK(valid());
  }
}

TEST(going_back_needs_no_driver_call) {
  Gpu gpu("memory:1GiB");
  int pool = retain(kKey);
  std::vector<void*> blocks;
  for (size_t bytes : {size_t{600}, 60 * kKiB, 700 * kKiB, 20 * kMiB}) blocks.push_back(allocate_in(pool, bytes));
  Taken taken;
  for (void* block : blocks) deallocate(block);
  trim();
  CHECK(allocate(1010 * kMiB) == nullptr);  // the pool's memory is not to be had
  simgpu_reset_calls();
  Told told;
  CHECK_EQ(restore(taken, told), PYALLOC_OK);
  CHECK_EQ(simgpu_calls(nullptr), int64_t{0});
  CHECK_EQ(told.allocated.size(), size_t{4});
  for (void* block : blocks) CHECK_EQ(told.allocated.count(block), size_t{1});
  for (void* block : blocks) CHECK_EQ(deallocate(block), PYALLOC_OK);
}

TEST(a_checkpoint_of_a_pool_that_is_gone_is_refused) {
  Gpu gpu("memory:1GiB");
  CHECK(pyalloc_checkpoint_take(0, kKey, nullptr) == PYALLOC_INVALID_ARGUMENT);
  pyalloc_checkpoint* none = nullptr;
  CHECK(pyalloc_checkpoint_take(0, kKey, &none) == PYALLOC_INVALID_ARGUMENT && says("Could not find"));
  int pool = retain(kKey);
  deallocate(allocate_in(pool, 5 * kMiB));
  Taken taken;
  release(kKey);
  Told told;
  CHECK(restore(taken, told) == PYALLOC_INVALID_ARGUMENT && says("Could not find pool of id (2, 0)"));
  trim();
  retain(kKey);
  CHECK(restore(taken, told) == PYALLOC_WRONG_STATE && says("was given up since the checkpoint was taken"));
  CHECK(pyalloc_checkpoint_restore(nullptr, nullptr, nullptr, nullptr) == PYALLOC_INVALID_ARGUMENT);
}

TEST(freed_blocks_that_wait_are_waited_for_or_refused) {
  Gpu gpu("memory:1GiB,streams:deferred,seed:4");
  void *stream = gpu.stream(), *side = gpu.stream();
  int pool = retain(kKey);
  for (size_t bytes : {size_t{900}, 5 * kMiB}) {
    void* block = allocate_in(pool, bytes, stream);
    Taken with_block;
    CHECK(fill(side, block, bytes, 1));
    CHECK_EQ(pyalloc_record_stream(block, side, PYALLOC_STREAM_OWNED), PYALLOC_OK);
    deallocate(block);
    CHECK(stats().pending_frees == 1);
    Told told;
    CHECK_EQ(restore(with_block, told), PYALLOC_OK);
    CHECK_EQ(told.allocated.count(block), size_t{1});
    CHECK_EQ(stats().pending_frees, int64_t{0});
    // The same, freed by going back itself.
    CHECK_EQ(pyalloc_record_stream(block, side, PYALLOC_STREAM_OWNED), PYALLOC_OK);
    CHECK_EQ(restore(with_block, told), PYALLOC_OK);
    // And where it cannot be waited for.
    begin_capture(stream);
    follow(stream, side);
    void* captured = allocate_in(pool, bytes, stream);
    CHECK_EQ(pyalloc_record_stream(captured, side, PYALLOC_STREAM_OWNED), PYALLOC_OK);
    deallocate(captured);
    pyalloc_checkpoint* refused = nullptr;
    CHECK(pyalloc_checkpoint_take(0, kKey, &refused) == PYALLOC_WRONG_STATE && says("wait for another stream"));
    follow(side, stream);
    Graph graph(stream);
    deallocate(block);
    simgpu_step(-1);
    CHECK(valid());
  }
}

TEST(a_pool_that_sleeps_does_not_go_back) {
  Gpu gpu("memory:1GiB");
  int pool = retain(kKey);
  void *old = allocate_in(pool, 5 * kMiB), *small = allocate_in(pool, 900);
  Taken taken;
  deallocate(old);
  void* later = allocate_in(pool, 9 * kMiB);
  const int pools[] = {PYALLOC_PRIVATE_POOLS};
  CHECK_EQ(pyalloc_sleep(pools, nullptr, 1, nullptr, nullptr, nullptr), PYALLOC_OK);
  Blocks before = live_blocks();
  Told told;
  CHECK(restore(taken, told) == PYALLOC_WRONG_STATE && says("sleeps on device 0"));
  CHECK(live_blocks() == before && before.count(later) == 1);
  CHECK_EQ(pyalloc_wake(pools, 1, nullptr, nullptr), PYALLOC_OK);
  CHECK_EQ(restore(taken, told), PYALLOC_OK);
  CHECK(live_blocks() == told.allocated && told.allocated.count(old) == 1 && told.allocated.count(small) == 1);
  deallocate(old);
  deallocate(small);
  release(kKey);
}

// What was idle when it was given up may have gone to others, though live blocks kept the pool.
TEST(a_pool_that_is_used_anew_does_not_go_back) {
  Gpu gpu("memory:1GiB");
  int pool = retain(kKey);
  void *idle = allocate_in(pool, 40 * kMiB), *live = allocate_in(pool, 5 * kMiB);
  Taken taken;
  deallocate(idle);
  release(kKey);
  trim();
  retain(kKey);
  Told told;
  CHECK(restore(taken, told) == PYALLOC_WRONG_STATE && says("was given up since the checkpoint was taken"));
  CHECK(live_blocks() == (Blocks{{live, 5 * kMiB}}));
  deallocate(live);
  release(kKey);
}

// Which of its blocks wait for whom is known before any is freed.
TEST(going_back_is_refused_whole_while_a_stream_of_its_blocks_is_captured) {
  Gpu gpu("memory:1GiB");
  void *stream = gpu.stream(), *side = gpu.stream();
  int pool = retain(kKey);
  for (size_t bytes : {size_t{900}, 600 * kKiB, 5 * kMiB}) {
    void* saved = allocate_in(pool, bytes, stream);
    Taken taken;
    deallocate(saved);
    std::vector<void*> others;
    for (int i = 0; i < 3; ++i) others.push_back(allocate_in(pool, bytes + 1, stream));
    CHECK_EQ(pyalloc_record_stream(others[1], side, PYALLOC_STREAM_OWNED), PYALLOC_OK);
    const Blocks live = live_blocks();
    begin_capture(side);
    Told told;
    CHECK(restore(taken, told) == PYALLOC_WRONG_STATE && says("being captured; end the capture first"));
    CHECK(told.freed.empty() && told.allocated.empty());
    CHECK(live_blocks() == live && stats().pending_frees == 0);
    CHECK(capturing(side) && valid());
    {
      Graph graph(side);
    }
    CHECK_EQ(restore(taken, told), PYALLOC_OK);
    CHECK(told.freed == live && told.allocated.size() == 1);
    CHECK_EQ(deallocate(saved), PYALLOC_OK);
  }
}

// Memory that came from another stream, which is not known to be done with it: a captured pool has it only then.
TEST(going_back_waits_for_streams_that_had_the_memory_before) {
  Gpu gpu("memory:64MiB,streams:timed");
  simgpu_set_work_time(1e9);  // done when it is waited for
  void *stream = gpu.stream(), *side = gpu.stream();
  int pool = retain(kKey);
  void* before = allocate(60 * kMiB, side);
  CHECK(fill(side, before, 60 * kMiB, 1));
  deallocate(before);
  void *small = allocate_in(pool, 900, stream), *large = allocate_in(pool, 20 * kMiB, stream);
  CHECK(small != nullptr && large != nullptr && stats().stolen_granules > 0);
  Taken taken;
  deallocate(small);
  deallocate(large);
  Told told;
  CHECK_EQ(restore(taken, told), PYALLOC_OK);
  CHECK_EQ(told.allocated.size(), size_t{2});
  CHECK(live_blocks().size() == 2 && valid());
  for (void* block : {small, large}) CHECK_EQ(deallocate(block), PYALLOC_OK);
}

TEST(going_back_waits_for_the_device_where_a_stream_is_gone) {
  Gpu gpu("memory:1GiB,streams:deferred,seed:3");
  void *stream = gpu.stream(), *gone = gpu.stream();
  int pool = retain(kKey);
  void* saved = allocate_in(pool, 5 * kMiB, stream);
  Taken taken;
  deallocate(saved);
  void* other = allocate_in(pool, 3 * kMiB, stream);
  CHECK_EQ(pyalloc_record_stream(other, gone, 0), PYALLOC_OK);
  CHECK_EQ(cuStreamDestroy_v2(driver_stream(gone)), pyalloc::cuda::kSuccess);
  Told told;
  CHECK_EQ(restore(taken, told), PYALLOC_OK);
  CHECK(told.freed.count(other) == 1 && told.allocated.count(saved) == 1 && live_blocks().size() == 1);
  CHECK(valid());
  CHECK_EQ(deallocate(saved), PYALLOC_OK);
}
