// Handles of several granules: few calls for large blocks, no memory lost between them, and small memory made of idle
// large ones when nothing else is left.
#include <vector>

#include "gpu.h"

using namespace test;

TEST(a_large_block_is_made_of_few_handles) {
  Gpu gpu("memory:1GiB");
  simgpu_reset_calls();
  void* block = allocate(100 * kMiB);  // 50 granules: 16 + 16 + 16 + 2
  CHECK_EQ(simgpu_calls("cuMemCreate"), 4);
  CHECK_EQ(simgpu_calls("cuMemMap"), 4);
  CHECK_EQ(simgpu_calls("cuMemSetAccess"), 1);
  CHECK_EQ(simgpu_used(0), uint64_t{100 * kMiB});
  CHECK(fill(nullptr, block, 100 * kMiB, 9) && holds(block, 100 * kMiB, 9));
  deallocate(block);
  CHECK_EQ(trim(), uint64_t{100 * kMiB});
  CHECK_EQ(simgpu_used(0), uint64_t{0});
}

TEST(a_granule_shared_with_a_neighbour_is_a_handle_of_its_own) {
  Gpu gpu("memory:1GiB");
  void* first = allocate(33 * kMiB);   // 16 granules and a half
  void* second = allocate(33 * kMiB);  // begins in the same granule
  CHECK_EQ(address(second), address(first) + 33 * kMiB);
  deallocate(first);
  // All but the shared granule is free to go: nothing is stranded in a handle that `second` holds.
  CHECK_EQ(trim(), uint64_t{32 * kMiB});
  CHECK_EQ(simgpu_used(0), uint64_t{34 * kMiB});
  deallocate(second);
  CHECK(valid());
}

TEST(idle_handles_move_whole) {
  Gpu gpu("memory:256MiB", "slack:0");
  void* first = allocate(96 * kMiB);
  void* wall = allocate(2 * kMiB);
  deallocate(first);
  simgpu_reset_calls();
  void* larger = allocate(98 * kMiB);  // the freed range is too short: its three handles move, and one is made
  CHECK_EQ(simgpu_calls("cuMemCreate"), 1);
  CHECK_EQ(simgpu_calls("cuMemMap"), 4);
  CHECK_EQ(stats().stolen_granules, int64_t{48});
  CHECK(fill(nullptr, larger, 98 * kMiB, 3) && holds(larger, 98 * kMiB, 3));
  deallocate(wall);
  deallocate(larger);
  CHECK(valid());
}

TEST(idle_large_handles_are_broken_up_for_small_blocks) {
  Gpu gpu("memory:128MiB");
  void* whole = allocate(128 * kMiB);
  void* other = allocate(512);
  CHECK(other == nullptr);
  deallocate(whole);
  std::vector<void*> blocks;
  for (int i = 0; i < 64; ++i) {  // 2 MiB each, a granule, on a device without one to spare
    void* block = allocate(2 * kMiB);
    CHECK(block != nullptr);
    blocks.push_back(block);
  }
  CHECK(valid());
  CHECK_EQ(stats().num_ooms, int64_t{1});
  for (void* block : blocks) deallocate(block);
  void* again = allocate(128 * kMiB);
  CHECK(again != nullptr);
  deallocate(again);
  CHECK(valid());
}

TEST(nothing_is_stranded_without_slack) {
  Gpu gpu("memory:1GiB", "slack:0");
  Random random(11);
  std::vector<std::pair<void*, size_t>> blocks;
  uint64_t live = 0;
  for (int step = 0; step < 1500 / kSlowdown; ++step) {
    if (blocks.empty() || (live < 700 * kMiB && random.below(10) < 6)) {
      size_t bytes = (1 + random.below(60)) * 2 * kMiB;  // whole granules, so that no block shares one
      void* pointer = allocate(bytes);
      if (pointer == nullptr) {
        CHECK(false);
        break;
      }
      blocks.emplace_back(pointer, bytes);
      live += bytes;
    } else {
      size_t at = random.below(blocks.size());
      deallocate(blocks[at].first);
      live -= blocks[at].second;
      blocks[at] = blocks.back();
      blocks.pop_back();
    }
    // What is neither live nor idle could serve nobody.
    auto held = static_cast<uint64_t>(stats().reserved_bytes[0].current);
    CHECK_EQ(held, live + static_cast<uint64_t>(stats().idle_bytes + stats().shelf_bytes));
  }
  CHECK(valid());
  for (auto& block : blocks) deallocate(block.first);
}
