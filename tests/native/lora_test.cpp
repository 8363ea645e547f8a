// The packed pools, and the reserve of the lora pool: loads without driver calls on a full device, overflow.
#include <string>
#include <vector>

#include "adapters.h"
#include "driver/cuda_abi.h"

using namespace pyalloc;
using namespace test;

TEST(weights_are_packed_end_to_end) {
  Gpu gpu("memory:8GiB", "slack:0");
  Random random(3);
  std::vector<void*> blocks;
  int64_t rounded = 0;
  for (int i = 0; i < 1000; ++i) {
    size_t bytes = random.below(4) == 0 ? 1 + random.below(20 * kMiB) : 1 + random.below(300 * kKiB);
    rounded += static_cast<int64_t>((bytes + 511) / 512 * 512);
    blocks.push_back(in_pool(PYALLOC_POOL_WEIGHTS, bytes));
    CHECK(blocks.back() != nullptr);
  }
  pyalloc_pool_stats now = figures(PYALLOC_POOL_WEIGHTS);
  CHECK_EQ(now.allocated, rounded);
  CHECK(now.used < rounded + static_cast<int64_t>(kGranule) && now.reserved == now.used);
  for (size_t i = 1; i < blocks.size(); ++i) CHECK(address(blocks[i]) > address(blocks[i - 1]));
  pyalloc_block_info info{};
  info.size = sizeof info;
  CHECK_EQ(pyalloc_find_block(static_cast<char*>(blocks[7]) + 100, &info), PYALLOC_OK);
  CHECK_EQ(info.block, blocks[7]);
  CHECK(valid());
  for (size_t i = 0; i < blocks.size(); i += 2) deallocate(blocks[i]);
  CHECK(pyalloc_deallocate(blocks[0], nullptr) == PYALLOC_UNKNOWN_POINTER);
  CHECK(pyalloc_find_block(blocks[0], &info) == PYALLOC_UNKNOWN_POINTER);
  CHECK(valid());
  for (size_t i = 1; i < blocks.size(); i += 2) deallocate(blocks[i]);
  CHECK_EQ(figures(PYALLOC_POOL_WEIGHTS).used, int64_t{0});
  CHECK(valid());
}

TEST(loads_on_a_full_device_need_no_driver_call) {
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB");
  deallocate(allocate(512));
  CHECK_EQ(figures(PYALLOC_POOL_LORA).reserve, int64_t{64} * 1024 * 1024);
  std::vector<void*> others = fill_device();
  CHECK(allocate(kGranule) == nullptr);
  simgpu_reset_calls();
  Random random(5);
  std::vector<std::vector<void*>> adapters;
  size_t held = 0, loads = 0;
  std::vector<size_t> sizes;
  for (int step = 0; step < 3000; ++step) {
    size_t rank = size_t{8} << random.below(4);  // 8 to 64; q_proj and v_proj of 16 layers
    size_t bytes = rank * 16 * 2 * (2048 + 2048 + 2048 + 512);
    if (held + bytes <= 40 * kMiB) {
      std::vector<void*> adapter;
      for (int layer = 0; layer < 16; ++layer)
        for (size_t width : {2048, 2048, 2048, 512}) adapter.push_back(in_pool(PYALLOC_POOL_LORA, rank * width * 2));
      for (void* block : adapter) CHECK(block != nullptr);
      adapters.push_back(adapter);
      sizes.push_back(bytes);
      held += bytes;
      ++loads;
    } else {
      size_t at = random.below(adapters.size());
      for (void* block : adapters[at]) deallocate(block);
      held -= sizes[at];
      adapters[at] = adapters.back();
      sizes[at] = sizes.back();
      adapters.pop_back();
      sizes.pop_back();
    }
    if (failures() > 0) return;
  }
  CHECK(loads > 1000);
  CHECK_EQ(memory_calls(), int64_t{0});
  CHECK_EQ(stats().lora_overflows, int64_t{0});
  CHECK(valid());
  for (auto& adapter : adapters)
    for (void* block : adapter) deallocate(block);
  trim();
  CHECK_EQ(figures(PYALLOC_POOL_LORA).reserve, int64_t{64} * 1024 * 1024);
  void* whole = in_pool(PYALLOC_POOL_LORA, 64 * kMiB);
  CHECK(whole != nullptr);
  deallocate(whole);
  for (void* block : others) deallocate(block);
}

TEST(what_does_not_fit_the_reserve_overflows_or_fails) {
  for (const char* overflow : {"general", "error"}) {
    Gpu gpu("memory:1GiB", std::string("lora_reserve:64MiB,lora_overflow:") + overflow);
    void* fits = in_pool(PYALLOC_POOL_LORA, 60 * kMiB);
    CHECK(fits != nullptr);
    void* large = in_pool(PYALLOC_POOL_LORA, 100 * kMiB);
    if (std::string(overflow) == "general") {
      CHECK(large != nullptr && figures(PYALLOC_POOL_GENERAL).requested == 100 * 1024 * 1024);
      CHECK_EQ(stats().lora_overflows, int64_t{1});
    } else {
      CHECK(large == nullptr && stats().num_ooms == 1);
    }
    CHECK_EQ(figures(PYALLOC_POOL_LORA).requested, int64_t{60} * 1024 * 1024);
    deallocate(large);
    deallocate(fits);
    CHECK(valid());
  }
}

// What is prepared lies beside the reserve, so that the reserve's free memory is none for it.
TEST(a_reserve_that_cannot_be_had_is_done_without) {
  Gpu gpu("memory:100MiB", "lora_reserve:64MiB");
  void* block = in_pool(PYALLOC_POOL_LORA, 80 * kMiB);
  CHECK(block != nullptr);
  CHECK_EQ(figures(PYALLOC_POOL_LORA).reserve, int64_t{0});
  CHECK(pyalloc_lora_prepare(0, kMiB) == PYALLOC_WRONG_STATE && says("lora_reserve is 0, or could not be set aside"));
  deallocate(block);
  CHECK(valid());
}

TEST(the_reserve_passes_between_streams_in_order) {
  Gpu gpu("memory:1GiB,streams:timed", "lora_reserve:64MiB");
  simgpu_set_work_time(1e6);
  Random random(8);
  std::vector<void*> streams = {nullptr, gpu.stream(), gpu.stream()}, blocks;
  size_t held = 0;
  std::vector<size_t> sizes;
  for (int step = 0; step < 2000; ++step) {
    size_t bytes = 1 + random.below(6 * kMiB);
    if (held + bytes < 50 * kMiB && random.below(10) < 6) {
      void* stream = streams[random.below(3)];
      void* block = in_pool(PYALLOC_POOL_LORA, bytes, stream);
      CHECK(block != nullptr && fill(stream, block, bytes, 1));
      blocks.push_back(block);
      sizes.push_back(bytes);
      held += bytes;
    } else if (!blocks.empty()) {
      size_t at = random.below(blocks.size());
      deallocate(blocks[at]);
      held -= sizes[at];
      blocks[at] = blocks.back();
      sizes[at] = sizes.back();
      blocks.pop_back();
      sizes.pop_back();
    }
    if (step % 100 == 0) CHECK(valid());
    if (failures() > 0) return;
  }
  for (void* block : blocks) deallocate(block);
  CHECK(valid());
}

// --- what an attacker found ---

TEST(the_reserve_is_found_behind_many_unmapped_holes) {
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB,slack:0");
  deallocate(allocate(512));
  void* reserve = in_pool(PYALLOC_POOL_LORA, 64 * kMiB);
  CHECK_EQ(pyalloc_lora_prepare(0, 300 * kMiB), PYALLOC_OK);
  CHECK_EQ(pyalloc_push_pool(PYALLOC_POOL_LORA), PYALLOC_OK);
  std::vector<void*> holes, kept;
  for (int i = 0; i < 36; ++i) {
    holes.push_back(allocate(4 * kMiB));
    kept.push_back(allocate(2 * kMiB));
  }
  CHECK_EQ(pyalloc_pop_pool(PYALLOC_POOL_LORA), PYALLOC_OK);
  deallocate(reserve);
  for (void* block : holes) deallocate(block);
  std::vector<void*> others = fill_device();  // takes the holes' memory
  void* load = in_pool(PYALLOC_POOL_LORA, 3 * kMiB);
  CHECK(load != nullptr && valid());
  deallocate(load);
  for (void* block : kept) deallocate(block);
  for (void* block : others) deallocate(block);
}

TEST(a_limit_of_the_lora_pool_below_the_reserve_holds) {
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB,lora_limit:32MiB");
  deallocate(allocate(512));
  CHECK_EQ(figures(PYALLOC_POOL_LORA).limit, int64_t{32} * 1024 * 1024);
  CHECK_EQ(figures(PYALLOC_POOL_LORA).reserve, int64_t{0});
  CHECK(in_pool(PYALLOC_POOL_LORA, 60 * kMiB) == nullptr);
  CHECK(valid());
}

TEST(the_reason_of_a_refusal_is_the_last_one) {
  {
    Gpu gpu("memory:1GiB", "lora_reserve:64MiB,lora_overflow:error,kv_limit:4MiB");
    CHECK(in_pool(PYALLOC_POOL_KV, 10 * kMiB) == nullptr && says("raise the limit of the pool 'kv'"));
    CHECK(in_pool(PYALLOC_POOL_LORA, 100 * kMiB) == nullptr && !says("raise the limit"));
    CHECK_EQ(stats().num_oom_rejections, int64_t{1});
  }
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB,general_limit:40MiB");
  CHECK(in_pool(PYALLOC_POOL_LORA, 100 * kMiB) == nullptr && says("raise the limit of the pool 'general'"));
  CHECK_EQ(stats().lora_overflows, int64_t{0});
}

TEST(refusals_are_told_apart_beside_a_reserve) {
  char text[1 << 14];
  auto counts = [&](const char* part) {
    pyalloc_oom_json(text, sizeof text);
    return std::string(text).find(part) != std::string::npos;
  };
  {
    Gpu gpu("memory:1GiB", "lora_reserve:64MiB");
    deallocate(allocate(512));
    std::vector<void*> others = fill_device();  // its last refusals are for want of memory, though the reserve is idle
    CHECK(allocate(20 * kMiB) == nullptr &&
          says("  lora        0 bytes allocated,   64.00 MiB reserved, 64.00 MiB for adapters alone\n"));
    CHECK(counts("\"fragmentation\": 0, \"pinned\": "));
    CHECK(says("Reason: pinned, ") && says("64.00 MiB are set aside for LoRA adapters: lower lora_reserve"));
    CHECK(allocate(80 * kMiB) == nullptr && says("Reason: capacity, "));  // the reserve would not do either
    CHECK(in_pool(PYALLOC_POOL_LORA, 65 * kMiB) == nullptr && says("Reason: capacity, "));
    for (void* block : others) deallocate(block);
  }
  {  // the same within a limit of the user's
    Gpu gpu("memory:1GiB", "limit:512MiB,lora_reserve:64MiB,kv_limit:32MiB");
    void* others = allocate(440 * kMiB);
    CHECK(others != nullptr && allocate(20 * kMiB) == nullptr && says("Reason: pinned, the limit set for pyalloc"));
    CHECK(says("64.00 MiB are set aside for LoRA adapters: lower lora_reserve") && says("; or raise the limit ("));
    CHECK(allocate(80 * kMiB) == nullptr && says("Reason: limit, ") && says("Next step: raise the limit ("));
    CHECK(in_pool(PYALLOC_POOL_KV, 40 * kMiB) == nullptr && says("Reason: limit, the limit set for the pool"));
    CHECK(in_pool(PYALLOC_POOL_LORA, 80 * kMiB) == nullptr && says("Reason: limit, "));
    CHECK_EQ(stats().num_oom_rejections, int64_t{4});
    deallocate(others);
  }
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB,lora_overflow:error");
  CHECK(in_pool(PYALLOC_POOL_LORA, 100 * kMiB) == nullptr && says("raise lora_reserve"));
  CHECK(counts("\"capacity\": 0, \"limit\": 1, \"fragmentation\": 0, \"pinned\": 0}"));
}

TEST(statistics_of_packed_pools_add_up) {
  Gpu gpu("memory:1GiB");
  std::vector<void*> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(in_pool(PYALLOC_POOL_WEIGHTS, 512 * kKiB));
  pyalloc_device_stats now = stats();
  for (int kind = 0; kind < PYALLOC_KINDS; ++kind)
    CHECK(now.reserved_bytes[kind].current >= now.allocated_bytes[kind].current);
  CHECK_EQ(now.inactive_split_bytes[0].current,
           now.inactive_split_bytes[1].current + now.inactive_split_bytes[2].current);
  for (void* block : blocks) deallocate(block);
}

TEST(slabs_emptied_by_a_rung_are_given_up) {
  {
    Gpu gpu("memory:64MiB,streams:deferred,seed:3");
    void* other = gpu.stream();
    std::vector<void*> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(allocate(10000));
    for (void* block : blocks) {
      fill(other, block, 10000, 1);
      CHECK_EQ(pyalloc_record_stream(block, other, PYALLOC_STREAM_OWNED), PYALLOC_OK);
      deallocate(block);
    }
    void* whole = in_pool(PYALLOC_POOL_KV, 64 * kMiB);
    CHECK(whole != nullptr);
    deallocate(whole);
  }
  static std::vector<void*> cache;
  Gpu gpu("memory:64MiB");
  for (int i = 0; i < 8; ++i) cache.push_back(allocate(10000));
  auto drop = [](void*, int, size_t) -> uint64_t {
    for (void* block : cache) deallocate(block);
    uint64_t freed = cache.size() * 10000;
    cache.clear();
    return freed;
  };
  CHECK_EQ(pyalloc_add_reclaimer(drop, nullptr, 0), PYALLOC_OK);
  void* whole = allocate(64 * kMiB);
  CHECK(whole != nullptr);
  deallocate(whole);
  deallocate(in_pool(PYALLOC_POOL_KV, 512));
  CHECK_EQ(pyalloc_set_pool_limit(0, PYALLOC_POOL_KV, 1 * kMiB), PYALLOC_OK);  // the kept slab counts as used
}
