// predict_lifetimes: what dies young goes to the workspace pool by itself, what lives long does not.
#include "heap/lifetimes.h"

#include <deque>
#include <vector>

#include "pools.h"

using namespace pyalloc;
using namespace test;

namespace {

constexpr int kGeneral = PYALLOC_POOL_GENERAL, kWorkspace = PYALLOC_POOL_WORKSPACE;
const char* const kOn = "predict_lifetimes:on";

void* allocate_and_free(size_t bytes, int times) {
  void* last = nullptr;
  for (int i = 0; i < times; ++i) {
    last = allocate(bytes);
    CHECK_EQ(deallocate(last), PYALLOC_OK);
  }
  return last;
}

bool in_workspace(size_t bytes, void* stream = nullptr) {
  int64_t before = figures(kWorkspace).blocks;
  void* block = allocate(bytes, stream);
  bool there = figures(kWorkspace).blocks > before;
  deallocate(block);
  return there;
}

}  // namespace

TEST(a_size_must_die_young_several_times) {
  Lifetimes lifetimes;
  uint64_t birth = 0;
  for (int i = 0; i < 3; ++i) {
    CHECK(!lifetimes.dies_young(40));
    birth = lifetimes.tick();
    lifetimes.died(40, birth);
  }
  CHECK(lifetimes.dies_young(40));
  birth = lifetimes.tick();
  for (int i = 0; i < 255; ++i) lifetimes.tick();
  lifetimes.died(40, birth + 1);
  CHECK(lifetimes.dies_young(40));
  lifetimes.died(40, birth - 1);  // 257 others came after it
  for (int i = 0; i < 8; ++i) {
    CHECK(!lifetimes.dies_young(40));
    lifetimes.died(40, lifetimes.tick());
  }
  CHECK(lifetimes.dies_young(40));
}

TEST(what_dies_young_goes_to_the_workspace) {
  Gpu gpu("memory:1GiB", kOn);
  void* stream = gpu.stream();
  for (size_t bytes : {20 * kKiB, 300 * kKiB, 5 * kMiB}) {
    CHECK(!in_workspace(bytes));
    allocate_and_free(bytes, 4);
    CHECK(in_workspace(bytes));
    CHECK(!in_workspace(bytes, stream));  // what one stream does says nothing of another
  }
  allocate_and_free(10 * kKiB, 20);
  CHECK(!in_workspace(10 * kKiB));  // slots of slabs stay where they are
  CHECK(valid());
}

TEST(what_lives_long_does_not) {
  Gpu gpu("memory:4GiB", kOn);
  std::deque<void*> kept;
  for (int i = 0; i < 1000; ++i) {  // each outlives 300 others
    kept.push_back(allocate(2 * kMiB));
    if (kept.size() <= 300) continue;
    deallocate(kept.front());
    kept.pop_front();
  }
  CHECK_EQ(figures(kWorkspace).blocks, int64_t{0});
  CHECK_EQ(figures(kGeneral).blocks, int64_t{300});
  for (void* block : kept) deallocate(block);
  CHECK(valid());
}

TEST(a_scope_is_not_overruled_and_nothing_is_predicted_by_default) {
  {
    Gpu gpu("memory:1GiB", kOn);
    allocate_and_free(5 * kMiB, 10);
    CHECK(in_workspace(5 * kMiB));
    In scope(kGeneral);
    CHECK(!in_workspace(5 * kMiB));
  }
  Gpu gpu("memory:1GiB");
  allocate_and_free(5 * kMiB, 10);
  CHECK(!in_workspace(5 * kMiB));
}

TEST(a_full_workspace_pool_refuses_nothing) {
  Gpu gpu("memory:1GiB", "predict_lifetimes:on,workspace_limit:4MiB");
  allocate_and_free(10 * kMiB, 10);
  void* block = allocate(10 * kMiB);
  CHECK(block != nullptr);
  CHECK_EQ(figures(kGeneral).blocks, int64_t{1});
  deallocate(block);
}

TEST(predicted_blocks_do_not_disturb_the_steps_of_a_scope) {
  Gpu gpu("memory:1GiB", kOn);
  allocate_and_free(300 * kKiB, 10);
  allocate_and_free(3 * kMiB, 10);
  auto step = [] {
    In scope(kWorkspace);
    return std::vector<void*>{allocate_and_free(300 * kKiB, 1), allocate_and_free(3 * kMiB, 1)};
  };
  std::vector<void*> first = step();
  void *small = allocate(300 * kKiB), *large = allocate(3 * kMiB);
  CHECK_EQ(figures(kWorkspace).blocks, int64_t{2});
  CHECK(step() == first);
  deallocate(small);
  deallocate(large);
}
