// Loads that are known not to fit the reserve: learned from those that overflowed, and left elsewhere whole.
#include "heap/adapter_loads.h"

#include <thread>
#include <vector>

#include "adapters.h"
#include "sleep.h"

using namespace pyalloc;
using namespace test;

namespace {

void note(AdapterLoads& loads, uint64_t first, uint64_t bytes, bool overflowed) {
  loads.begin(first);
  loads.took(bytes, overflowed);
  loads.end();
}

bool valid(const AdapterLoads& loads) {
  std::string reason;
  return loads.validate(reason);
}

// 64 tensors of `bytes` and twice that, in turn.
std::vector<void*> load(size_t bytes, int tensors = 64) {
  std::vector<void*> blocks;
  CHECK_EQ(pyalloc_push_pool(PYALLOC_POOL_LORA), PYALLOC_OK);
  for (int i = 0; i < tensors; ++i) blocks.push_back(allocate(bytes << (i % 2)));
  CHECK_EQ(pyalloc_pop_pool(PYALLOC_POOL_LORA), PYALLOC_OK);
  for (void* block : blocks) CHECK(block != nullptr);
  return blocks;
}

void unload(std::vector<void*>& blocks) {
  for (void* block : blocks) deallocate(block);
  blocks.clear();
}

// Loads of 96 MiB do not fit the reserve: the first one shows it.
void teach() {
  std::vector<void*> large = load(kMiB);
  unload(large);
}

int64_t in_reserve() { return figures(PYALLOC_POOL_LORA).requested; }

}  // namespace

TEST(a_kind_needs_what_its_smallest_load_of_late_did) {
  AdapterLoads loads;
  CHECK_EQ(loads.need(512), uint64_t{0});
  note(loads, 512, 9000, false);
  CHECK_EQ(loads.need(512), uint64_t{0});  // it fitted
  note(loads, 512, 8000, true);
  CHECK_EQ(loads.need(512), uint64_t{8000});
  CHECK_EQ(loads.need(1024), uint64_t{0});
  note(loads, 512, 700, false);  // another adapter that begins alike
  CHECK_EQ(loads.need(512), uint64_t{700});
  for (int i = 0; i < 4; ++i) note(loads, 512, 9000, true);
  CHECK_EQ(loads.need(512), uint64_t{9000});
  for (int i = 0; i < 4; ++i) note(loads, 512, 9000, false);
  CHECK_EQ(loads.need(512), uint64_t{0});
  note(loads, 2048, 0, true);  // all of it was refused
  CHECK_EQ(loads.need(2048), uint64_t{0});
  CHECK(valid(loads));
}

TEST(kinds_and_open_loads_are_few) {
  AdapterLoads loads;
  for (uint64_t first = 512; first <= 512 * 1000; first += 512) note(loads, first, first * 10, true);
  CHECK(valid(loads));
  CHECK_EQ(loads.need(512 * 1000), uint64_t{512 * 10000});
  CHECK_EQ(loads.need(512), uint64_t{0});
  for (int i = 0; i < 200; ++i)  // threads that end in their scopes
    std::thread([&loads] {
      if (loads.current() == nullptr) loads.begin(512);
    }).join();
  CHECK(valid(loads));
  loads.end();  // of a thread that has none
  CHECK(loads.current() == nullptr && valid(loads));
}

// 96 MiB, of which 64 go to the reserve the first time and none from then on.
TEST(an_adapter_that_cannot_fit_leaves_the_reserve_to_others) {
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB");
  std::vector<void*> large = load(kMiB);
  CHECK(in_reserve() > int64_t{60} * 1024 * 1024 && stats().lora_overflows > 0);
  unload(large);
  int64_t overflows = stats().lora_overflows;
  large = load(kMiB);
  CHECK_EQ(in_reserve(), int64_t{0});
  CHECK_EQ(stats().lora_overflows, overflows + 64);
  CHECK(valid());
  std::vector<void*> others = fill_device();
  simgpu_reset_calls();
  std::vector<void*> small = load(128 * kKiB);  // 12 MiB
  CHECK_EQ(memory_calls(), int64_t{0});
  CHECK_EQ(in_reserve(), int64_t{12} * 1024 * 1024);
  unload(small);
  unload(large);
  // Where memory is short elsewhere, the reserve serves it all the same.
  std::vector<void*> rest = fill_device();
  small = load(kMiB, 40);
  CHECK_EQ(in_reserve(), int64_t{60} * 1024 * 1024);
  unload(small);
  unload(rest);
  unload(others);
  CHECK(valid());
}

TEST(an_adapter_that_overflowed_once_fits_when_there_is_room) {
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB");
  std::vector<void*> first = load(512 * kKiB), second = load(512 * kKiB);  // 48 MiB each
  CHECK(stats().lora_overflows > 0);
  int64_t overflows = stats().lora_overflows;
  unload(first);
  unload(second);
  first = load(512 * kKiB);
  CHECK_EQ(in_reserve(), int64_t{48} * 1024 * 1024);
  CHECK_EQ(stats().lora_overflows, overflows);
  second = load(512 * kKiB);
  CHECK_EQ(in_reserve(), int64_t{48} * 1024 * 1024);
  // A small adapter that begins with the same tensor is taken for a large one once, and no more.
  std::vector<void*> small = load(512 * kKiB, 8);
  CHECK_EQ(in_reserve(), int64_t{48} * 1024 * 1024);
  unload(small);
  small = load(512 * kKiB, 8);
  CHECK_EQ(in_reserve(), int64_t{54} * 1024 * 1024);
  unload(small);
  unload(first);
  unload(second);
  CHECK(valid());
}

TEST(what_is_known_of_loads_refuses_nothing) {
  for (const char* overflow : {"general", "error"}) {
    Gpu gpu("memory:256MiB", std::string("lora_reserve:64MiB,lora_overflow:") + overflow);
    std::vector<void*> others = fill_device();
    for (int round = 0; round < 3; ++round) {
      CHECK_EQ(pyalloc_push_pool(PYALLOC_POOL_LORA), PYALLOC_OK);
      std::vector<void*> blocks;
      while (void* block = allocate(3 * kMiB)) blocks.push_back(block);
      CHECK_EQ(blocks.size(), size_t{21});
      CHECK_EQ(pyalloc_pop_pool(PYALLOC_POOL_LORA), PYALLOC_OK);
      unload(blocks);
    }
    unload(others);
    CHECK(valid());
  }
}

// What is to go elsewhere and cannot, for another reason than memory, is served by the reserve as if nothing were known.
TEST(a_load_that_cannot_go_elsewhere_is_tried_in_the_reserve) {
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB");
  teach();
  CHECK_EQ(sleep({kGeneral}), PYALLOC_OK);
  std::vector<void*> part = load(kMiB, 40);
  CHECK_EQ(in_reserve(), int64_t{60} * 1024 * 1024);
  unload(part);
  CHECK_EQ(wake({kGeneral}), PYALLOC_OK);
  auto learn = [&] {
    for (int i = 0; i < 4; ++i) teach();
    trim();
  };
  learn();
  for (const char* call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    CHECK_EQ(simgpu_fail(call, 1, 0, cuda::kUnknown), 0);
    part = load(kMiB, 40);
    CHECK_EQ(in_reserve(), int64_t{60} * 1024 * 1024);
    simgpu_clear_faults();
    unload(part);
    learn();
  }
  CHECK(valid());
}

// Tensors that live for a moment, as those of another type do while they are converted.
TEST(what_a_load_frees_again_it_does_not_need) {
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB");
  auto convert = [] {
    std::vector<void*> blocks;
    In scope(PYALLOC_POOL_LORA);
    for (int i = 0; i < 40; ++i) {
      void* other = allocate(kMiB);
      blocks.push_back(allocate(kMiB));
      CHECK_EQ(deallocate(other), PYALLOC_OK);
    }
    return blocks;
  };
  std::vector<void*> others = load(512 * kKiB, 40), first = convert();  // 30 MiB, so it overflows
  CHECK(stats().lora_overflows > 0);
  for (int round = 0; round < 6; ++round) {  // and is known to, while the others are there
    unload(first);
    int64_t overflows = stats().lora_overflows;
    first = convert();
    CHECK_EQ(in_reserve(), int64_t{30} * 1024 * 1024);
    CHECK_EQ(stats().lora_overflows, overflows + 80);
  }
  unload(first);
  unload(others);
  int64_t overflows = stats().lora_overflows;
  first = convert();
  CHECK_EQ(in_reserve(), int64_t{40} * 1024 * 1024);
  CHECK_EQ(stats().lora_overflows, overflows);
  unload(first);
  CHECK(valid());
}

TEST(memory_prepared_within_a_load_is_used_by_it) {
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB");
  teach();
  std::vector<void*> large;
  {
    In scope(PYALLOC_POOL_LORA);
    large.push_back(allocate(kMiB));
    CHECK_EQ(in_reserve(), int64_t{0});
    CHECK_EQ(pyalloc_lora_prepare(0, 96 * kMiB), PYALLOC_OK);
    for (int i = 0; i < 96; ++i) large.push_back(allocate(kMiB));
    CHECK_EQ(in_reserve(), int64_t{96} * 1024 * 1024);
  }
  unload(large);
  large = load(kMiB);
  CHECK_EQ(in_reserve(), int64_t{0});  // it taught nothing
  unload(large);
  CHECK(valid());
}

TEST(a_load_elsewhere_is_refused_while_the_pool_sleeps) {
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB");
  teach();
  std::vector<void*> large;
  {
    In scope(PYALLOC_POOL_LORA);
    large.push_back(allocate(kMiB));
    CHECK_EQ(in_reserve(), int64_t{0});
    CHECK_EQ(sleep({PYALLOC_POOL_LORA}), PYALLOC_OK);
    CHECK(allocate(kMiB) == nullptr && says("sleeps"));
    CHECK_EQ(wake({PYALLOC_POOL_LORA}), PYALLOC_OK);
    large.push_back(allocate(kMiB));
    CHECK_EQ(in_reserve(), int64_t{0});
  }
  unload(large);
  CHECK(valid());
}

TEST(a_thread_is_not_at_the_load_of_one_that_ended) {
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB");
  teach();
  std::vector<void*> large;
  for (int i = 0; i < 20; ++i) {
    std::thread([&] {
      CHECK_EQ(pyalloc_push_pool(PYALLOC_POOL_LORA), PYALLOC_OK);
      large.push_back(allocate(kMiB));
    }).join();
    CHECK_EQ(in_reserve(), int64_t{0});
    std::vector<void*> small;
    std::thread([&] { small = load(64 * kKiB); }).join();  // often by the same std::thread::id
    CHECK_EQ(in_reserve(), int64_t{6} * 1024 * 1024);
    unload(small);
    unload(large);
  }
  CHECK(valid());
}

TEST(a_load_prepared_for_is_left_where_it_was_prepared) {
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB");
  for (int round = 0; round < 6; ++round) {
    bool prepared = round > 0 && round < 5;
    if (prepared) CHECK_EQ(pyalloc_lora_prepare(0, 96 * kMiB), PYALLOC_OK);
    int64_t overflows = stats().lora_overflows;
    std::vector<void*> blocks = load(kMiB);
    CHECK_EQ(stats().lora_overflows > overflows, !prepared);
    if (round == 5) CHECK_EQ(in_reserve(), int64_t{0});  // those prepared for taught nothing else
    unload(blocks);
  }
  CHECK(valid());
}

TEST(loads_of_many_threads_are_told_apart) {
  Gpu gpu("memory:4GiB", "lora_reserve:64MiB");
  teach();
  std::vector<void*> large;
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number)
    threads.emplace_back([number] {
      for (int round = 0; round < 50; ++round) {
        std::vector<void*> blocks = load(number % 2 == 0 ? kMiB : 64 * kKiB);
        unload(blocks);
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::vector<void*> small = load(64 * kKiB);
  CHECK_EQ(in_reserve(), int64_t{6} * 1024 * 1024);
  unload(small);
  large = load(kMiB);
  CHECK_EQ(in_reserve(), int64_t{0});
  unload(large);
  CHECK(valid());
}
