// Pools: their blocks never share a granule, what one leaves idle serves the others, limits, scopes, figures.
#include "pools.h"

#include <string>
#include <thread>
#include <vector>

#include "driver/cuda_abi.h"

using namespace pyalloc;
using namespace test;

TEST(pools_share_no_granule) {
  Gpu gpu("memory:4GiB");
  std::vector<void*> blocks;
  for (int round = 0; round < 20; ++round)
    for (int pool = 0; pool < 5; ++pool)
      for (size_t bytes : {size_t{700}, 40 * kKiB, 900 * kKiB, 3 * kMiB}) blocks.push_back(in_pool(pool, bytes));
  struct Seen {
    std::string pool;
    uint64_t start, end;
  };
  std::vector<Seen> segments;
  auto add = [](void* context, const pyalloc_segment_view* one) {
    auto start = reinterpret_cast<uint64_t>(one->address);
    static_cast<std::vector<Seen>*>(context)->push_back({one->pool, start, start + one->bytes});
  };
  CHECK_EQ(pyalloc_snapshot(0, &segments, add, [](void*, const pyalloc_block_view*) {}), PYALLOC_OK);
  for (size_t i = 0; i < blocks.size(); ++i) {
    std::string expected = pyalloc_pool_name(static_cast<int>(i / 4 % 5));
    for (const Seen& one : segments)
      if (address(blocks[i]) / kGranule >= one.start / kGranule && address(blocks[i]) / kGranule < one.end / kGranule)
        CHECK(one.pool == expected);
  }
  int64_t requested = 0, reserved = 0;
  for (int pool = 0; pool < 5; ++pool) {
    pyalloc_pool_stats now = figures(pool);
    CHECK_EQ(now.blocks, int64_t{80});
    CHECK_EQ(now.requested, int64_t{20} * (700 + 40 * 1024 + 900 * 1024 + 3 * 1024 * 1024));
    CHECK(now.allocated >= now.requested && now.used >= now.allocated && now.reserved >= now.used);
    requested += now.requested;
    reserved += now.reserved;
  }
  CHECK_EQ(requested, stats().requested_bytes[0].current);
  CHECK_EQ(reserved, stats().reserved_bytes[0].current);
  CHECK(valid());
  for (void* block : blocks) deallocate(block);  // in no scope: a free goes by the address
  for (int pool = 0; pool < 5; ++pool) {
    CHECK_EQ(figures(pool).blocks, int64_t{0});
    CHECK_EQ(figures(pool).requested, int64_t{0});
    CHECK_EQ(figures(pool).requested_total, int64_t{20} * (700 + 40 * 1024 + 900 * 1024 + 3 * 1024 * 1024));
  }
  CHECK(valid());
}

TEST(idle_memory_of_one_pool_serves_another) {
  Gpu gpu("memory:256MiB");
  deallocate(in_pool(PYALLOC_POOL_KV, 200 * kMiB));
  void* weights = in_pool(PYALLOC_POOL_WEIGHTS, 240 * kMiB);
  CHECK(weights != nullptr);
  CHECK(fill(nullptr, weights, 240 * kMiB, 6) && holds(weights, 240 * kMiB, 6));
  CHECK_EQ(figures(PYALLOC_POOL_WEIGHTS).used, int64_t{240} * 1024 * 1024);
  CHECK_EQ(figures(PYALLOC_POOL_KV).used, int64_t{0});
  CHECK(valid());
  deallocate(weights);
}

TEST(a_limit_holds_for_its_pool_alone) {
  Gpu gpu("memory:1GiB", "kv_limit:64MiB");
  CHECK_EQ(figures(PYALLOC_POOL_KV).limit, int64_t{64} * 1024 * 1024);
  void* first = in_pool(PYALLOC_POOL_KV, 40 * kMiB);
  CHECK(first != nullptr);
  CHECK(in_pool(PYALLOC_POOL_KV, 40 * kMiB) == nullptr && says("the limit set for the pool is reached"));
  CHECK(valid());
  CHECK_EQ(figures(PYALLOC_POOL_KV).used, int64_t{40} * 1024 * 1024);
  void* other = in_pool(PYALLOC_POOL_WEIGHTS, 400 * kMiB);
  CHECK(other != nullptr);
  CHECK(pyalloc_set_pool_limit(0, PYALLOC_POOL_KV, 39 * kMiB) == PYALLOC_INVALID_ARGUMENT && says("uses 41943040"));
  CHECK_EQ(pyalloc_set_pool_limit(0, PYALLOC_POOL_KV, 80 * kMiB), PYALLOC_OK);
  void* second = in_pool(PYALLOC_POOL_KV, 40 * kMiB);
  CHECK(second != nullptr);
  std::vector<void*> small;  // up to 1 MiB: another path
  CHECK_EQ(pyalloc_set_pool_limit(0, PYALLOC_POOL_LORA, 4 * kMiB), PYALLOC_OK);
  while (void* block = in_pool(PYALLOC_POOL_LORA, 100 * kKiB)) small.push_back(block);
  CHECK(small.size() >= 35 && small.size() <= 40 && figures(PYALLOC_POOL_LORA).used == 4 * 1024 * 1024);
  CHECK_EQ(figures(PYALLOC_POOL_LORA).peak, int64_t{4} * 1024 * 1024);
  for (void* block : small) deallocate(block);
  CHECK_EQ(pyalloc_set_pool_limit(0, PYALLOC_POOL_KV, 0), PYALLOC_OK);
  void* third = in_pool(PYALLOC_POOL_KV, 100 * kMiB);
  for (void* block : {first, second, third, other}) {
    CHECK(block != nullptr);
    deallocate(block);
  }
  CHECK(valid());
}

TEST(scopes_nest_and_belong_to_their_thread) {
  Gpu gpu("memory:1GiB");
  CHECK_EQ(pyalloc_current_pool(), int{PYALLOC_POOL_GENERAL});
  {
    In outer(PYALLOC_POOL_KV);
    {
      In inner(PYALLOC_POOL_LORA);
      CHECK_EQ(pyalloc_current_pool(), int{PYALLOC_POOL_LORA});
      CHECK(pyalloc_pop_pool(PYALLOC_POOL_WEIGHTS) == PYALLOC_WRONG_STATE && says("no scope of that pool is open"));
      std::thread([] { CHECK_EQ(pyalloc_current_pool(), int{PYALLOC_POOL_GENERAL}); }).join();
    }
    CHECK_EQ(pyalloc_current_pool(), int{PYALLOC_POOL_KV});
  }
  CHECK(pyalloc_pop_pool(PYALLOC_POOL_GENERAL) == PYALLOC_WRONG_STATE && says("no scope of that pool is open"));
  // Left in the wrong order, as interleaved coroutines do: an error, and nothing stays open.
  CHECK_EQ(pyalloc_push_pool(PYALLOC_POOL_KV), PYALLOC_OK);
  CHECK_EQ(pyalloc_push_pool(PYALLOC_POOL_LORA), PYALLOC_OK);
  CHECK(pyalloc_pop_pool(PYALLOC_POOL_KV) == PYALLOC_WRONG_STATE && says("'kv' was left before 'lora'"));
  CHECK_EQ(pyalloc_current_pool(), int{PYALLOC_POOL_LORA});
  CHECK_EQ(pyalloc_pop_pool(PYALLOC_POOL_LORA), PYALLOC_OK);
  CHECK_EQ(pyalloc_current_pool(), int{PYALLOC_POOL_GENERAL});
  CHECK(pyalloc_push_pool(99) == PYALLOC_INVALID_ARGUMENT && says("pool 99; expected 0 to "));
  int pushed = 0;
  while (pyalloc_push_pool(PYALLOC_POOL_KV) == PYALLOC_OK) ++pushed;
  CHECK(pushed == 1000 && says("1000 pool scopes are open"));
  while (pushed-- > 0) CHECK_EQ(pyalloc_pop_pool(PYALLOC_POOL_KV), PYALLOC_OK);
}

TEST(a_suggestion_gives_way_to_the_users_scope) {
  Gpu gpu("memory:1GiB");
  CHECK_EQ(pyalloc_suggest_pool(PYALLOC_POOL_WEIGHTS), 1);
  CHECK_EQ(pyalloc_suggest_pool(PYALLOC_POOL_LORA), 1);  // suggestions nest
  CHECK_EQ(pyalloc_current_pool(), int{PYALLOC_POOL_LORA});
  {
    In users(PYALLOC_POOL_GENERAL);  // general is a choice too
    CHECK_EQ(pyalloc_suggest_pool(PYALLOC_POOL_KV), 0);
    CHECK_EQ(pyalloc_current_pool(), int{PYALLOC_POOL_GENERAL});
    std::thread([] {
      CHECK_EQ(pyalloc_suggest_pool(PYALLOC_POOL_KV), 1);
      CHECK_EQ(pyalloc_pop_pool(PYALLOC_POOL_KV), PYALLOC_OK);
    }).join();
  }
  CHECK_EQ(pyalloc_suggest_pool(PYALLOC_POOL_WEIGHTS), 0);  // an adapter is being loaded
  CHECK_EQ(pyalloc_suggest_pool(PYALLOC_POOL_KV), 1);
  CHECK_EQ(pyalloc_pop_pool(PYALLOC_POOL_KV), PYALLOC_OK);
  CHECK_EQ(pyalloc_pop_pool(PYALLOC_POOL_LORA), PYALLOC_OK);
  CHECK_EQ(pyalloc_pop_pool(PYALLOC_POOL_WEIGHTS), PYALLOC_OK);
  for (int bad : {-1, 64}) CHECK_EQ(pyalloc_suggest_pool(bad), 0);
  CHECK_EQ(pyalloc_current_pool(), int{PYALLOC_POOL_GENERAL});
}

TEST(pools_have_names) {
  Gpu gpu("memory:1GiB");
  int pool = -1;
  CHECK(pyalloc_find_pool("kv", 0, &pool) == PYALLOC_OK && pool == PYALLOC_POOL_KV);
  CHECK(pyalloc_find_pool("drafts", 0, &pool) == PYALLOC_INVALID_ARGUMENT && says("there are: general, weights, kv"));
  CHECK_EQ(pyalloc_find_pool("drafts", 1, &pool), PYALLOC_OK);
  int again = -1;
  CHECK(pyalloc_find_pool("drafts", 1, &again) == PYALLOC_OK && again == pool);
  CHECK(std::string(pyalloc_pool_name(pool)) == "drafts" && pyalloc_pool_count() == pool + 1);
  for (const char* bad : {"", "Drafts", "a b", "a:b", "a23456789012345678901234567890123"})
    CHECK(pyalloc_find_pool(bad, 1, &again) == PYALLOC_INVALID_ARGUMENT && says("cannot be named"));
  CHECK(pyalloc_pool_name(-1) == nullptr && pyalloc_pool_name(64) == nullptr);
  void* block = in_pool(pool, 5 * kMiB);
  CHECK_EQ(figures(pool).blocks, int64_t{1});
  deallocate(block);
  for (int i = 0; pyalloc_pool_count() < 64; ++i)
    CHECK_EQ(pyalloc_find_pool(("p" + std::to_string(i)).c_str(), 1, &again), PYALLOC_OK);
  CHECK(pyalloc_find_pool("one_more", 1, &again) == PYALLOC_INVALID_ARGUMENT && says("at most 64 pools"));
}

TEST(a_recorded_block_of_a_pool_waits_for_its_streams) {
  Gpu gpu("memory:1GiB,streams:timed");
  simgpu_set_work_time(1e9);
  void *own = gpu.stream(), *user = gpu.stream();
  for (size_t bytes : {64 * kKiB, 8 * kMiB}) {
    void* block = in_pool(PYALLOC_POOL_KV, bytes, own);
    CHECK_EQ(pyalloc_record_stream(block, own, PYALLOC_STREAM_OWNED), PYALLOC_OK);
    CHECK_EQ(pyalloc_record_stream(block, user, PYALLOC_STREAM_OWNED), PYALLOC_OK);
    CHECK(fill(user, block, bytes, 1));
    deallocate(block);
    CHECK_EQ(figures(PYALLOC_POOL_KV).blocks, int64_t{0});
    CHECK_EQ(stats().pending_frees, int64_t{1});
    void* next = in_pool(PYALLOC_POOL_KV, bytes, own);
    CHECK(next != block && valid());
    deallocate(next);
    simgpu_advance(1e11);
    deallocate(in_pool(PYALLOC_POOL_KV, bytes, own));
    CHECK_EQ(stats().pending_frees, int64_t{0});
  }
  CHECK(valid());
}

TEST(every_pool_under_random_work) {
  for (const char* conf : {"check:full", "slack:0,check:full", "check:full,kv_limit:200MiB"}) {
    Gpu gpu("memory:1GiB,streams:timed", conf);
    simgpu_set_work_time(2e5);
    Random random(21);
    std::vector<void*> streams = {nullptr, gpu.stream(), gpu.stream()}, blocks;
    for (int step = 0; step < 6000 / kSlowdown; ++step) {
      if (random.below(10) < 6) {
        size_t bytes = random.below(3) == 0 ? 1 + random.below(60 * kMiB) : 1 + random.below(2 * kMiB);
        void* block = in_pool(static_cast<int>(random.below(5)), bytes, streams[random.below(3)]);
        if (block != nullptr) blocks.push_back(block);
      }
      if (!blocks.empty() && (blocks.size() > 60 || random.below(10) < 5)) {
        size_t at = random.below(blocks.size());
        deallocate(blocks[at]);
        blocks[at] = blocks.back();
        blocks.pop_back();
      }
      if (step % 50 == 0) pyalloc_maintain(0);
      if (step % 200 == 0) CHECK(valid());
      if (failures() > 0) return;
    }
    for (void* block : blocks) deallocate(block);
    CHECK(valid());
  }
}
