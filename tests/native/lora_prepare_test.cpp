// Memory prepared for a large adapter: where it lies, what it leaves behind, and who may use it.
#include <thread>
#include <vector>

#include "adapters.h"

using namespace pyalloc;
using namespace test;

namespace {

void watch(void*, const pyalloc_mapping_event*) {}

std::vector<void*> load(const std::vector<size_t>& tensors) {
  std::vector<void*> blocks;
  CHECK_EQ(pyalloc_push_pool(PYALLOC_POOL_LORA), PYALLOC_OK);
  for (size_t bytes : tensors) blocks.push_back(allocate(bytes));
  CHECK_EQ(pyalloc_pop_pool(PYALLOC_POOL_LORA), PYALLOC_OK);
  return blocks;
}

}  // namespace

TEST(memory_that_cannot_be_prepared_says_why) {
  Gpu gpu("memory:200MiB", "lora_reserve:64MiB");
  void* block = allocate(16 * kMiB);
  CHECK(pyalloc_lora_prepare(0, 160 * kMiB) == PYALLOC_OUT_OF_MEMORY && says("Reason: pinned"));
  CHECK(pyalloc_lora_prepare(0, 190 * kMiB) == PYALLOC_OUT_OF_MEMORY && says("Reason: capacity"));
  CHECK(says("before the load: prepare for less, or free memory first."));
  CHECK_EQ(pyalloc_set_limit(0, 180 * kMiB), PYALLOC_OK);
  CHECK(pyalloc_lora_prepare(0, 190 * kMiB) == PYALLOC_OUT_OF_MEMORY && says("Reason: limit"));
  CHECK(says("prepare for less, or free memory first; or raise the limit (PYALLOC_CONF limit"));
  CHECK_EQ(pyalloc_set_limit(0, 0), PYALLOC_OK);
  CHECK_EQ(pyalloc_lora_prepare(0, 120 * kMiB), PYALLOC_OK);
  deallocate(block);
}

TEST(a_load_prepared_for_needs_no_driver_call) {
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB");
  deallocate(allocate(300 * kMiB));
  CHECK_EQ(pyalloc_lora_prepare(0, 400 * kMiB), PYALLOC_OK);
  CHECK_EQ(figures(PYALLOC_POOL_LORA).reserve, int64_t{464} * 1024 * 1024);
  std::vector<void*> others = fill_device();
  CHECK_EQ(pyalloc_push_pool(PYALLOC_POOL_LORA), PYALLOC_OK);
  simgpu_reset_calls();
  std::vector<void*> adapter;
  for (int i = 0; i < 8; ++i) adapter.push_back(allocate(50 * kMiB));
  for (void* block : adapter) CHECK(block != nullptr && fill(nullptr, block, 50 * kMiB, 4));
  CHECK_EQ(memory_calls(), int64_t{0});
  CHECK_EQ(pyalloc_pop_pool(PYALLOC_POOL_LORA), PYALLOC_OK);  // the load ends
  CHECK_EQ(figures(PYALLOC_POOL_LORA).reserve, int64_t{64} * 1024 * 1024);
  CHECK(valid());
  for (void* block : adapter) CHECK(holds(block, 50 * kMiB, 4));
  // The device has no more: refused whole, and the reserve is as it was.
  CHECK(pyalloc_lora_prepare(0, 100 * kMiB) == PYALLOC_OUT_OF_MEMORY);
  CHECK_EQ(figures(PYALLOC_POOL_LORA).reserve, int64_t{64} * 1024 * 1024);
  for (void* block : adapter) deallocate(block);
  CHECK_EQ(pyalloc_lora_prepare(0, 100 * kMiB), PYALLOC_OK);
  CHECK_EQ(pyalloc_lora_prepare(0, 0), PYALLOC_OK);  // never mind
  CHECK_EQ(figures(PYALLOC_POOL_LORA).reserve, int64_t{64} * 1024 * 1024);
  void* rest = allocate(300 * kMiB);
  CHECK(rest != nullptr);
  deallocate(rest);
  for (void* block : others) deallocate(block);
  CHECK_EQ(stats().lora_prepares, int64_t{2});
  CHECK(valid());
}

TEST(prepared_memory_serves_a_load_on_another_stream) {
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB");
  deallocate(allocate(512));
  void* stream = gpu.stream();
  CHECK_EQ(pyalloc_lora_prepare(0, 96 * kMiB), PYALLOC_OK);
  CHECK_EQ(figures(PYALLOC_POOL_LORA).used, int64_t{160} * 1024 * 1024);  // on top of the reserve
  CHECK_EQ(pyalloc_push_pool(PYALLOC_POOL_LORA), PYALLOC_OK);
  void *first = allocate(60 * kMiB), *second = allocate(36 * kMiB);
  CHECK_EQ(pyalloc_pop_pool(PYALLOC_POOL_LORA), PYALLOC_OK);
  CHECK_EQ(pyalloc_lora_prepare(0, 400 * kMiB), PYALLOC_OK);
  deallocate(first);
  deallocate(second);
  std::vector<void*> others = fill_device(), load;
  CHECK_EQ(pyalloc_push_pool(PYALLOC_POOL_LORA), PYALLOC_OK);
  for (int i = 0; i < 8; ++i) load.push_back(allocate(50 * kMiB, stream));
  CHECK_EQ(pyalloc_pop_pool(PYALLOC_POOL_LORA), PYALLOC_OK);
  for (void* block : load) {
    CHECK(block != nullptr);
    deallocate(block);
  }
  CHECK(valid());
  for (void* block : others) deallocate(block);
}

TEST(absurd_and_concurrent_preparations) {
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB");
  deallocate(allocate(512));
  for (uint64_t bytes : {UINT64_MAX, UINT64_MAX - 1, uint64_t{INT64_MAX}, uint64_t{1} << 50})
    CHECK_EQ(pyalloc_lora_prepare(0, bytes), PYALLOC_OUT_OF_MEMORY);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([] {
      Gpu::use(0);
      for (int step = 0; step < 300 / kSlowdown; ++step) pyalloc_lora_prepare(0, 100 * kMiB);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(pyalloc_lora_prepare(0, 0), PYALLOC_OK);
  CHECK(valid());
  CHECK_EQ(figures(PYALLOC_POOL_LORA).used, int64_t{64} * 1024 * 1024);
}

TEST(a_load_prepared_for_leaves_the_reserve_to_others) {
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB");
  deallocate(allocate(512));
  CHECK_EQ(pyalloc_lora_prepare(0, 100 * kMiB), PYALLOC_OK);
  std::vector<void*> large = load(std::vector<size_t>(10, 10 * kMiB));
  std::vector<void*> others = fill_device();
  simgpu_reset_calls();
  std::vector<void*> small = load(std::vector<size_t>(32, 2 * kMiB));
  for (void* block : small) CHECK(block != nullptr);
  CHECK_EQ(memory_calls(), int64_t{0});
  for (const auto* blocks : {&large, &small, &others})
    for (void* block : *blocks) deallocate(block);
  CHECK(valid());
}

// Each adapter is prepared for, loaded, and unloaded in any order: the pool's free memory does not end in pieces.
TEST(adapters_prepared_for_leave_no_pieces) {
  for (bool observed : {false, true}) {
    Gpu gpu("memory:2GiB", "lora_reserve:64MiB");
    deallocate(allocate(512));
    if (observed)
      CHECK_EQ(pyalloc_add_mapping_observer(&watch, nullptr, PYALLOC_MAPPED | PYALLOC_UNMAPPING), PYALLOC_OK);
    Random random(observed ? 8 : 7);
    std::vector<std::vector<void*>> adapters;
    std::vector<size_t> sizes;
    size_t held = 0;
    for (int step = 0; step < 300 / kSlowdown; ++step) {
      std::vector<size_t> tensors;
      size_t bytes = 0;
      for (size_t part = (kMiB / 8 << random.below(5)) + 512 * random.below(8), i = 0; i < 32; ++i, bytes += part)
        tensors.push_back(part);
      while (held + bytes > 700 * kMiB) {
        size_t at = random.below(adapters.size());
        for (void* block : adapters[at]) deallocate(block);
        held -= sizes[at];
        adapters.erase(adapters.begin() + static_cast<ptrdiff_t>(at));
        sizes.erase(sizes.begin() + static_cast<ptrdiff_t>(at));
      }
      CHECK_EQ(pyalloc_lora_prepare(0, bytes), PYALLOC_OK);
      simgpu_reset_calls();
      adapters.push_back(load(tensors));
      CHECK_EQ(memory_calls(), int64_t{0});
      for (void* block : adapters.back()) CHECK(block != nullptr);
      sizes.push_back(bytes);
      held += bytes;
      pyalloc_pool_stats now = figures(PYALLOC_POOL_LORA);
      int64_t free = now.reserved - now.allocated;
      if (!observed) CHECK(10 * (free - now.largest_free) < 4 * free);  // external fragmentation under 40 %
      if (step % 16 == 0) CHECK(valid());
    }
    for (const std::vector<void*>& adapter : adapters)
      for (void* block : adapter) deallocate(block);
    CHECK_EQ(stats().lora_overflows, int64_t{0});
    CHECK(valid());
    if (observed) CHECK_EQ(pyalloc_remove_mapping_observer(&watch, nullptr), PYALLOC_OK);
  }
}

TEST(a_refused_preparation_leaves_what_was_prepared) {
  for (bool observed : {false, true}) {
    Gpu gpu("memory:1GiB", "lora_reserve:64MiB");
    deallocate(allocate(512));
    if (observed)
      CHECK_EQ(pyalloc_add_mapping_observer(&watch, nullptr, PYALLOC_MAPPED | PYALLOC_UNMAPPING), PYALLOC_OK);
    CHECK_EQ(pyalloc_lora_prepare(0, 300 * kMiB), PYALLOC_OK);
    for (uint64_t bytes : {2 * kGiB, size_t{UINT64_MAX}}) {
      CHECK_EQ(pyalloc_lora_prepare(0, bytes), PYALLOC_OUT_OF_MEMORY);
      CHECK_EQ(figures(PYALLOC_POOL_LORA).reserve, int64_t{364} * 1024 * 1024);
    }
    CHECK(valid());
    std::vector<void*> others = fill_device();
    simgpu_reset_calls();
    std::vector<void*> adapter = load(std::vector<size_t>(30, 10 * kMiB));
    CHECK_EQ(memory_calls(), int64_t{0});
    for (const auto* blocks : {&adapter, &others})
      for (void* block : *blocks) deallocate(block);
    CHECK(valid());
    if (observed) CHECK_EQ(pyalloc_remove_mapping_observer(&watch, nullptr), PYALLOC_OK);
  }
}

TEST(what_an_adapter_left_is_free_memory_of_the_device) {
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB");
  deallocate(allocate(512));
  CHECK_EQ(pyalloc_lora_prepare(0, 300 * kMiB), PYALLOC_OK);
  for (void* block : load({300 * kMiB})) deallocate(block);
  pyalloc_ledger whole{};
  whole.size = sizeof whole;
  CHECK_EQ(pyalloc_get_ledger(0, &whole, nullptr, 0, nullptr), PYALLOC_OK);
  CHECK_EQ(whole.largest_free, int64_t{300} * 1024 * 1024);  // and not the reserve beside it
  CHECK_EQ(whole.set_aside, int64_t{64} * 1024 * 1024);
}
