// Large pages of the kv pool, where they are asked for: tensors from 4 to 16 MiB share slabs of 16 MiB, which come and go as one.
#include <map>
#include <vector>

#include "pools.h"

using namespace pyalloc;
using namespace test;

namespace {

constexpr int kKv = PYALLOC_POOL_KV, kWeights = PYALLOC_POOL_WEIGHTS;
constexpr int64_t kSlab = 16 * 1024 * 1024;

}  // namespace

TEST(kv_tensors_share_slabs_and_never_lie_over_their_border) {
  Gpu gpu("memory:64GiB", "kv_large_threshold:4MiB");
  Random random(11);
  std::map<void*, size_t> live;
  for (int i = 0; i < 3000; ++i) {
    size_t bytes = 4 * kMiB + random.below(12 * kMiB + 1);
    void* block = in_pool(kKv, bytes, nullptr);
    CHECK(block != nullptr);
    live[block] = bytes;
    if (live.size() > 200) {
      auto gone = std::next(live.begin(), static_cast<ptrdiff_t>(random.below(live.size())));
      CHECK_EQ(deallocate(gone->first), PYALLOC_OK);
      live.erase(gone);
    }
    if (i % 200 == 0) CHECK(valid());  // which looks for blocks over a border
  }
  CHECK_EQ(figures(kKv).used % kSlab, int64_t{0});
  void* first = in_pool(kKv, 5 * kMiB);
  live[first] = 5 * kMiB;
  for (const auto& [block, bytes] : live) CHECK(fill(nullptr, block, bytes, 7) && holds(block, bytes, 7));
  for (const auto& one : live) deallocate(one.first);
  CHECK_EQ(figures(kKv).used, int64_t{0});
  CHECK(valid());
}

TEST(three_tensors_of_five_mib_take_one_slab) {
  Gpu gpu("memory:64GiB", "kv_large_threshold:4MiB");
  std::vector<void*> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(in_pool(kKv, 5 * kMiB));
  CHECK_EQ(figures(kKv).used, kSlab);
  CHECK_EQ(stats().created_granules, int64_t{8});
  CHECK_EQ(stats().map_runs, int64_t{1});
  for (void* block : blocks) deallocate(block);
}

TEST(an_empty_slab_serves_another_pool_by_one_mapping_without_a_wait) {
  Gpu gpu("memory:64GiB,streams:deferred,seed:4", "kv_large_threshold:4MiB");
  void* stream = gpu.stream();
  void* filler = in_pool(kWeights, 64 * kGiB - 64 * kMiB);  // what is left is four slabs
  CHECK(filler != nullptr);
  std::vector<void*> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(in_pool(kKv, 4 * kMiB, stream));
  for (int i = 0; i < 4; ++i) CHECK(fill(stream, blocks[static_cast<size_t>(i)], 4 * kMiB, 1));
  for (int i = 0; i < 4; ++i) deallocate(blocks[static_cast<size_t>(i)]);
  CHECK_EQ(figures(kKv).used, 2 * kSlab);
  void* last = in_pool(kWeights, 16 * kMiB, stream);  // of what was never used
  int64_t runs = stats().map_runs;
  void* weights = in_pool(kWeights, 16 * kMiB, stream);
  CHECK(weights != nullptr);
  CHECK_EQ(stats().map_runs, runs + 1);
  CHECK_EQ(stats().event_waits, int64_t{0});
  CHECK_EQ(stats().num_sync_all_streams, int64_t{0});
  for (size_t i = 4; i < blocks.size(); ++i) deallocate(blocks[i]);
  for (void* block : {filler, last, weights}) deallocate(block);
  CHECK(valid());
}

TEST(where_no_slab_fits_a_tensor_takes_granules) {
  Gpu gpu("memory:64GiB", "kv_large_threshold:4MiB");
  void* filler = in_pool(kWeights, 64 * kGiB - 32 * kMiB);
  void* more = in_pool(kWeights, 24 * kMiB);
  CHECK(filler != nullptr && more != nullptr);
  void* block = in_pool(kKv, 7 * kMiB);
  CHECK(block != nullptr);
  CHECK_EQ(figures(kKv).used, int64_t{8} * 1024 * 1024);
  CHECK(in_pool(kKv, 4 * kMiB) == nullptr);
  CHECK(valid());
  for (void* one : {filler, more, block}) deallocate(one);
}

TEST(recorded_tensors_in_slabs_wait_and_foreign_ones_are_taken_after_a_wait) {
  Gpu gpu("memory:64GiB,streams:deferred,seed:4", "kv_large_threshold:4MiB");
  void *home = gpu.stream(), *other = gpu.stream();
  simgpu_set_stream_mode("timed", 1);
  simgpu_set_work_time(1000);
  void* block = in_pool(kKv, 6 * kMiB, home);
  CHECK(read(other, block, 6 * kMiB));
  CHECK_EQ(pyalloc_record_stream(block, other, PYALLOC_STREAM_OWNED), PYALLOC_OK);
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  CHECK_EQ(stats().pending_frees, int64_t{1});
  CHECK_EQ(figures(kKv).used, kSlab);
  void* next = in_pool(kKv, 6 * kMiB, home);
  CHECK(next != block);
  simgpu_advance(5000);
  CHECK_EQ(pyalloc_maintain(0), PYALLOC_OK);
  CHECK_EQ(stats().pending_frees, int64_t{0});
  CHECK_EQ(deallocate(next), PYALLOC_OK);
  CHECK_EQ(figures(kKv).used, int64_t{0});
  CHECK(valid());
}

TEST(the_threshold_is_an_option) {
  for (const char* options : {"", "kv_large_threshold:0", "kv_large_threshold:17MiB"}) {
    Gpu gpu("memory:64GiB", options);
    void* block = in_pool(kKv, 5 * kMiB);
    CHECK_EQ(figures(kKv).used, int64_t{6} * 1024 * 1024);
    deallocate(block);
  }
  Gpu gpu("memory:64GiB", "kv_large_threshold:2MiB");
  void* block = in_pool(kKv, 2 * kMiB);
  CHECK_EQ(figures(kKv).used, kSlab);
  deallocate(block);
}

TEST(blocks_up_to_one_mib_lie_in_no_slab) {
  Gpu gpu("memory:64GiB", "kv_large_threshold:64KiB");
  std::vector<void*> blocks;
  for (int i = 0; i < 200; ++i) blocks.push_back(in_pool(kKv, 100 * kKiB + static_cast<size_t>(i) * 5 * kKiB));
  CHECK(valid());
  for (void* block : blocks) CHECK_EQ(deallocate(block), PYALLOC_OK);
  CHECK_EQ(stats().bad_frees, int64_t{0});
}

// As caches do that grow by concatenation: slabs would be left half empty.
TEST(by_default_kv_tensors_take_what_they_need) {
  Gpu gpu("memory:16GiB");
  std::vector<void*> caches;
  for (int i = 0; i < 64; ++i) caches.push_back(in_pool(kKv, 17 * kMiB / 2));
  for (size_t tokens = 1; tokens <= 8; ++tokens)
    for (void*& cache : caches) {
      void* longer = in_pool(kKv, 17 * kMiB / 2 + tokens * 8 * kKiB);
      deallocate(cache);
      cache = longer;
    }
  pyalloc_pool_stats now = figures(kKv);
  CHECK(now.used < now.requested + now.requested / 20);
  for (void* cache : caches) deallocate(cache);
  int images = 0;
  CHECK_EQ(pyalloc_create_pool("slabs", kKv, 16 * kMiB, 0, &images), PYALLOC_OK);
  void* block = in_pool(images, 5 * kMiB);
  CHECK_EQ(figures(images).used, kSlab);  // asked for
  deallocate(block);
  CHECK(valid());
}

TEST(a_pool_of_ones_own_may_be_like_another) {
  Gpu gpu("memory:64GiB", "kv_large_threshold:4MiB");
  int images = 0, steps = 0, packed = 0, again = 0;
  CHECK_EQ(pyalloc_create_pool("images", kKv, 32 * kMiB, 0, &images), PYALLOC_OK);
  CHECK_EQ(pyalloc_create_pool("steps", PYALLOC_POOL_WORKSPACE, UINT64_MAX, 0, &steps), PYALLOC_OK);
  CHECK_EQ(pyalloc_create_pool("packed", kWeights, UINT64_MAX, 0, &packed), PYALLOC_OK);
  void* block = in_pool(images, 20 * kMiB);
  CHECK_EQ(figures(images).used, 2 * kSlab);
  deallocate(block);
  auto step = [&] {
    In scope(steps);
    void *first = allocate(3 * kMiB), *second = allocate(700);
    deallocate(first);
    deallocate(second);
    return std::make_pair(first, second);
  };
  CHECK(step() == step());
  std::vector<void*> blocks;
  for (int i = 0; i < 500; ++i) blocks.push_back(in_pool(packed, 700 * kKiB + 513));
  CHECK(figures(packed).used <= 500 * int64_t{700 * 1024 + 1024} + 2 * 1024 * 1024);
  CHECK(valid());
  for (void* one : blocks) deallocate(one);
  CHECK(pyalloc_create_pool("images", kKv, 32 * kMiB, 0, &again) == PYALLOC_OK && again == images);
  CHECK(pyalloc_create_pool("images", -1, UINT64_MAX, 0, &again) == PYALLOC_OK && again == images);
  CHECK(pyalloc_create_pool("images", kKv, UINT64_MAX, 0, &again) == PYALLOC_INVALID_ARGUMENT &&
        says("another layout"));
  CHECK(pyalloc_create_pool("odd", kKv, 5 * kMiB, 0, &again) == PYALLOC_INVALID_ARGUMENT && says("4, 8, 16 or 32 MiB"));
  CHECK(pyalloc_create_pool("odd", kWeights, 4 * kMiB, 0, &again) == PYALLOC_INVALID_ARGUMENT &&
        says("a pool like kv"));
  CHECK(pyalloc_create_pool("odd", PYALLOC_POOL_LORA, UINT64_MAX, 0, &again) == PYALLOC_INVALID_ARGUMENT &&
        says("'odd' cannot be like 'lora'"));
  CHECK(pyalloc_create_pool("odd", 60, UINT64_MAX, 0, &again) == PYALLOC_INVALID_ARGUMENT && says("like pool 60"));
  CHECK(pyalloc_find_pool("odd", 0, &again) == PYALLOC_INVALID_ARGUMENT);  // no refusal made it
}

TEST(slabs_count_under_the_pools_limit) {
  Gpu gpu("memory:64GiB", "kv_large_threshold:4MiB,kv_limit:40MiB");
  std::vector<void*> blocks;
  for (void* block = nullptr; (block = in_pool(kKv, 8 * kMiB)) != nullptr;) blocks.push_back(block);
  CHECK_EQ(blocks.size(), size_t{5});  // two slabs of two, and granules
  CHECK(valid());
  for (void* block : blocks) deallocate(block);
}
