// Physical memory: committed only under live blocks, shared at the edges, returned by trim and decay, kept within limits.
#include <unistd.h>

#include <string>
#include <vector>

#include "gpu.h"

using namespace test;

TEST(granules_are_committed_only_under_live_blocks) {
  Gpu gpu("memory:256MiB");
  CHECK_EQ(simgpu_used(0), uint64_t{0});
  void* first = allocate(3 * kMiB);  // granules 0 and 1
  CHECK_EQ(simgpu_used(0), uint64_t{2 * kGranule});
  void* second = allocate(3 * kMiB);  // shares granule 1, ends with granule 2
  CHECK_EQ(address(second), address(first) + 3 * kMiB);
  CHECK_EQ(simgpu_used(0), uint64_t{3 * kGranule});
  void* third = allocate(2 * kMiB + 512);
  CHECK_EQ(simgpu_used(0), uint64_t{5 * kGranule});
  CHECK_EQ(stats().idle_bytes, int64_t{0});
  deallocate(second);
  CHECK_EQ(stats().idle_bytes, static_cast<int64_t>(kGranule));
  deallocate(third);
  CHECK_EQ(stats().idle_bytes, static_cast<int64_t>(3 * kGranule));
  CHECK_EQ(trim(), uint64_t{3 * kGranule});
  CHECK_EQ(simgpu_used(0), uint64_t{2 * kGranule});
  CHECK(fill(nullptr, first, 3 * kMiB, 5) && holds(first, 3 * kMiB, 5));
  deallocate(first);
  CHECK(valid());
}

TEST(reserved_follows_live_closely) {
  Gpu gpu("memory:1GiB", "slack:0");
  Random random(3);
  std::vector<std::pair<void*, size_t>> blocks;
  uint64_t live = 0, peak_live = 0;
  for (int step = 0; step < 3000 / kSlowdown; ++step) {
    if (blocks.empty() || (live < 400 * kMiB && random.below(10) < 6)) {
      size_t bytes = kMiB + random.below(24 * kMiB);
      void* pointer = allocate(bytes);
      CHECK(pointer != nullptr);
      blocks.emplace_back(pointer, bytes);
      live += bytes;
      if (live > peak_live) peak_live = live;
    } else {
      size_t at = random.below(blocks.size());
      deallocate(blocks[at].first);
      live -= blocks[at].second;
      blocks[at] = blocks.back();
      blocks.pop_back();
    }
  }
  auto reserved = static_cast<uint64_t>(stats().reserved_bytes[0].peak);
  CHECK(reserved < peak_live + peak_live / 10 + 16 * kGranule);
  CHECK(valid());
  for (auto& block : blocks) deallocate(block.first);
}

TEST(trim_returns_everything_idle) {
  for (const char* mode : {"immediate", "deferred"}) {
    Gpu gpu(std::string("memory:256MiB,seed:3,streams:") + mode);
    void *one = gpu.stream(), *two = gpu.stream(), *theirs = gpu.stream();
    std::vector<void*> blocks;
    for (size_t bytes : {size_t{100}, 12 * kKiB, 300 * kKiB, 5 * kMiB, 40 * kMiB}) {
      for (void* stream : {one, two}) {
        blocks.push_back(allocate(bytes, stream));
        CHECK(fill(stream, blocks.back(), bytes, 1));
      }
      void* other = nullptr;
      CHECK_EQ(pyalloc_allocate(0, theirs, 0, bytes, &other), PYALLOC_OK);
      CHECK_EQ(pyalloc_record_stream(blocks.back(), one, PYALLOC_STREAM_OWNED), PYALLOC_OK);
      blocks.push_back(other);
    }
    void* kept = allocate(100 * kKiB, one);
    for (void* block : blocks) CHECK_EQ(deallocate(block), PYALLOC_OK);
    CHECK(trim() > 100 * kMiB);
    CHECK_EQ(simgpu_used(0), uint64_t{kGranule});
    CHECK_EQ(stats().idle_bytes + stats().shelf_bytes + stats().pending_frees, int64_t{0});
    CHECK_EQ(stats().reserved_bytes[0].current, static_cast<int64_t>(kGranule));
    CHECK(valid());
    deallocate(kept);
    trim();
    CHECK_EQ(simgpu_used(0), uint64_t{0});
    void* again = allocate(20 * kMiB, two);
    CHECK(again != nullptr);
    deallocate(again);
  }
}

TEST(decay_returns_what_has_been_idle_long_enough) {
  Gpu gpu("memory:256MiB", "decay:3600000");
  deallocate(allocate(20 * kMiB));
  CHECK_EQ(pyalloc_maintain(0), PYALLOC_OK);
  CHECK_EQ(simgpu_used(0), uint64_t{10 * kGranule});  // an hour has not passed
  gpu.end();

  Gpu quick("memory:256MiB", "decay:1");
  void* live = allocate(4 * kMiB);
  deallocate(allocate(20 * kMiB));
  for (int round = 0; round < 2000 && simgpu_used(0) > 2 * kGranule; ++round) {
    CHECK_EQ(pyalloc_maintain(-1), PYALLOC_OK);
    ::usleep(1000);  // idle time is counted in milliseconds
  }
  CHECK_EQ(simgpu_used(0), uint64_t{2 * kGranule});
  CHECK_EQ(stats().reserved_bytes[0].current, static_cast<int64_t>(2 * kGranule));
  deallocate(live);
  CHECK(valid());
  quick.end();

  Gpu never("memory:256MiB", "decay:0");
  deallocate(allocate(20 * kMiB));
  for (int round = 0; round < 50; ++round) pyalloc_maintain(0);
  CHECK_EQ(simgpu_used(0), uint64_t{10 * kGranule});
}

TEST(limits_hold_before_the_driver_is_asked) {
  struct {
    const char* configuration;
    double fraction;
    uint64_t limit;
  } cases[] = {{"limit:32MiB", -1, 0}, {"memory_fraction:0.125", -1, 0}, {"", 0.125, 0},
               {"", -1, 32 * kMiB},    {"limit:64MiB", -1, 32 * kMiB},   {"memory_fraction:0.5", 0.125, 0}};
  for (bool open_first : {false, true}) {
    for (const auto& one : cases) {
      Gpu gpu("memory:256MiB", one.configuration);
      if (open_first) deallocate(allocate(512));
      if (one.fraction >= 0) CHECK_EQ(pyalloc_set_memory_fraction(0, one.fraction), PYALLOC_OK);
      if (one.limit != 0) CHECK_EQ(pyalloc_set_limit(0, one.limit), PYALLOC_OK);
      std::vector<void*> blocks;
      simgpu_reset_calls();
      while (void* block = allocate(4 * kMiB)) blocks.push_back(block);
      CHECK(blocks.size() == 8 || (open_first && blocks.size() == 7));
      CHECK(simgpu_used(0) <= 32 * kMiB);
      CHECK(simgpu_calls("cuMemCreate") <= 16);
      CHECK_EQ(stats().num_oom_rejections, int64_t{1});
      CHECK(std::strstr(pyalloc_last_error(), "limit") != nullptr);
      deallocate(blocks.back());
      blocks.pop_back();
      CHECK((blocks.emplace_back(allocate(4 * kMiB))) != nullptr);
      for (void* block : blocks) deallocate(block);
      CHECK(valid());
    }
  }
}

TEST(fractions_are_checked_and_kept) {
  Gpu gpu("memory:256MiB");
  double fraction = 0;
  CHECK_EQ(pyalloc_get_memory_fraction(0, &fraction), PYALLOC_OK);
  CHECK(fraction == 1.0);
  for (double wrong : {-0.1, 1.1, __builtin_nan(""), __builtin_inf()})
    CHECK_EQ(pyalloc_set_memory_fraction(0, wrong), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(pyalloc_set_memory_fraction(0, 0.25), PYALLOC_OK);
  deallocate(allocate(512));
  CHECK_EQ(pyalloc_get_memory_fraction(0, &fraction), PYALLOC_OK);
  CHECK(fraction == 0.25);
  CHECK_EQ(pyalloc_set_memory_fraction(7, 0.5), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(pyalloc_set_memory_fraction(0, 0), PYALLOC_OK);
  CHECK(allocate(40 * kMiB) == nullptr);
}

TEST(a_limit_below_what_is_held_stops_growth_only) {
  Gpu gpu("memory:256MiB");
  void* held = allocate(40 * kMiB);
  CHECK_EQ(pyalloc_set_limit(0, 20 * kMiB), PYALLOC_OK);
  CHECK(allocate(20 * kMiB) == nullptr);
  CHECK(fill(nullptr, held, 40 * kMiB, 2) && holds(held, 40 * kMiB, 2));
  deallocate(held);
  void* again = allocate(10 * kMiB);
  CHECK(again != nullptr);
  deallocate(again);
  CHECK_EQ(pyalloc_set_limit(0, 0), PYALLOC_OK);
  void* large = allocate(200 * kMiB);
  CHECK(large != nullptr);
  deallocate(large);
}

TEST(largest_free_is_the_largest_free_run) {
  Gpu gpu("memory:256MiB");
  uint64_t largest = 7;
  CHECK_EQ(pyalloc_largest_free(0, &largest), PYALLOC_OK);
  CHECK_EQ(largest, uint64_t{0});
  void *a = allocate(6 * kMiB), *b = allocate(10 * kMiB), *c = allocate(4 * kMiB), *d = allocate(4 * kMiB);
  deallocate(b);
  CHECK_EQ(pyalloc_largest_free(0, &largest), PYALLOC_OK);
  CHECK_EQ(largest, uint64_t{10 * kMiB});
  deallocate(d);
  CHECK_EQ(pyalloc_largest_free(0, &largest), PYALLOC_OK);
  CHECK_EQ(largest, uint64_t{10 * kMiB});
  deallocate(a);
  CHECK_EQ(pyalloc_largest_free(0, &largest), PYALLOC_OK);
  CHECK_EQ(largest, uint64_t{16 * kMiB});
  trim();
  CHECK_EQ(pyalloc_largest_free(0, &largest), PYALLOC_OK);
  CHECK_EQ(largest, uint64_t{0});
  deallocate(c);
}

TEST(an_80_gib_device_with_every_granule_mapped) {
  Gpu gpu("memory:80GiB,oracle:off");
  std::vector<void*> blocks;
  while (void* block = allocate(4 * kGiB)) blocks.push_back(block);
  CHECK_EQ(blocks.size(), size_t{20});
  CHECK_EQ(simgpu_used(0), uint64_t{80 * kGiB});
  uint8_t mark = 1;
  for (void* block : blocks) {
    CHECK_EQ(simgpu_write(address(block) + 4 * kGiB - 1, &mark, 1), 0);
    ++mark;
  }
  for (void* block : blocks) deallocate(block);
  void* whole = allocate(80 * kGiB);  // other addresses in part: every granule moves or stays
  CHECK(whole != nullptr);
  deallocate(whole);
  CHECK(valid());
  trim();
  CHECK_EQ(simgpu_used(0), uint64_t{0});
}
