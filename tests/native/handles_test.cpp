// Handles of several granules: few calls for large blocks, no memory lost between them, and small memory made of idle
// large ones when nothing else is left.
#include <vector>

#include "driver/cuda_abi.h"
#include "gpu.h"

using namespace pyalloc;
using namespace test;

TEST(a_large_block_is_made_of_few_handles) {
  Gpu gpu("memory:32GiB", "slack:0.01");  // too little slack for more than the block needs
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

TEST(a_small_device_gets_small_handles) {
  Gpu gpu("memory:4GiB", "slack:0.01");
  simgpu_reset_calls();
  deallocate(allocate(64 * kMiB));  // 32 granules in handles of at most 1/256 of the device's 2,048
  CHECK_EQ(simgpu_calls("cuMemCreate"), 4);
  void* most = allocate(4000 * kMiB);
  CHECK(most != nullptr);
  simgpu_reset_calls();
  void* more = allocate(64 * kMiB);  // memory is tight now: single granules can go anywhere
  CHECK_EQ(simgpu_calls("cuMemCreate"), 32);
  deallocate(more);
  deallocate(most);
  CHECK(valid());
}

TEST(a_new_handle_reaches_beyond_its_block_for_the_next) {
  Gpu gpu("memory:32GiB");
  void* large = allocate(2000 * kMiB);  // its slack pays for a handle that is not full
  void* first = allocate(3 * kMiB);
  simgpu_reset_calls();
  void* next = allocate(12 * kMiB);
  CHECK_EQ(address(next), address(first) + 3 * kMiB);
  CHECK_EQ(simgpu_calls("cuMemCreate") + simgpu_calls("cuMemMap") + simgpu_calls("cuMemSetAccess"), 0);
  CHECK(fill(nullptr, next, 12 * kMiB, 5) && holds(next, 12 * kMiB, 5));
  CHECK(valid());
  for (void* block : {large, first, next}) deallocate(block);
  CHECK(valid());
}

TEST(blocks_of_a_small_program_take_what_they_need) {
  Gpu gpu("memory:32GiB");
  void* block = allocate(3 * kMiB);
  CHECK_EQ(simgpu_used(0), uint64_t{4 * kMiB});
  deallocate(block);
}

// A freed end of the used addresses and the unused ones behind it are one place.
TEST(a_longer_block_grows_out_of_the_freed_end) {
  Gpu gpu("memory:32GiB,streams:timed", "slack:0.01,cross_stream_wait:off");
  simgpu_set_work_time(1e9);
  void *stream = gpu.stream(), *another = gpu.stream();
  void* first = allocate(64 * kMiB, stream);
  CHECK(fill(stream, first, 64 * kMiB, 1));
  deallocate(first);
  simgpu_reset_calls();
  void* longer = allocate(96 * kMiB, stream);
  CHECK_EQ(longer, first);
  CHECK_EQ(simgpu_calls("cuMemCreate"), 1);
  CHECK_EQ(simgpu_used(0), uint64_t{96 * kMiB});
  deallocate(longer);
  simgpu_fail("cuMemCreate", 1, 1, cuda::kUnknown);
  CHECK(allocate(200 * kMiB, stream) == nullptr && valid());
  simgpu_clear_faults();
  // What failed has taken no addresses from the other stream.
  void* other = allocate(64 * kMiB, another);
  CHECK_EQ(address(other), address(first) + 96 * kMiB);
  deallocate(other);
  simgpu_advance(1e11);
  CHECK(valid());
}

TEST(idle_handles_move_whole) {
  Gpu gpu("memory:32GiB", "slack:0.01");
  void* first = allocate(96 * kMiB);
  void* wall = allocate(2 * kMiB);
  deallocate(first);
  simgpu_reset_calls();
  void* larger = allocate(104 * kMiB);  // the freed range is too short: its three handles move, and one is made
  CHECK_EQ(simgpu_calls("cuMemCreate"), 1);
  CHECK_EQ(simgpu_calls("cuMemMap"), 4);
  CHECK_EQ(stats().stolen_granules, int64_t{48});
  CHECK(fill(nullptr, larger, 104 * kMiB, 3) && holds(larger, 104 * kMiB, 3));
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
      CHECK(pointer != nullptr);
      if (pointer == nullptr) break;
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

// 68 MiB are wanted: one granule, for which a large idle handle is broken up, one that is there, and 32 more. The driver
// refuses to take the handle back, so it goes to the shelf and from there into the 32, where it must not be stolen again.
TEST(a_handle_the_driver_refuses_is_not_taken_twice) {
  Gpu gpu("memory:1GiB,streams:timed", "slack:0,cross_stream_wait:off");
  simgpu_set_work_time(1e9);
  void *a = gpu.stream(), *b = gpu.stream();
  void *one = allocate(2 * kMiB, b), *other = allocate(2 * kMiB, b), *large = allocate(64 * kMiB, b);
  void* wall = allocate(2 * kMiB, b);
  deallocate(one);
  deallocate(large);
  trim();
  void* used = allocate(160 * kMiB, a);
  CHECK(fill(a, used, 160 * kMiB, 1));
  deallocate(used);
  deallocate(allocate(160 * kMiB, b));
  deallocate(other);
  simgpu_advance(1e11);
  simgpu_fail("cuMemRelease", 1, 1, cuda::kUnknown);
  void* last = allocate(68 * kMiB, b);
  CHECK(last != nullptr && valid());
  simgpu_clear_faults();
  deallocate(last);
  deallocate(wall);
  CHECK(valid());
}

TEST(a_lowered_limit_leaves_room_for_what_fits) {
  Gpu gpu("memory:1GiB");
  deallocate(allocate(960 * kMiB));
  CHECK_EQ(pyalloc_set_limit(0, 256 * kMiB), PYALLOC_OK);
  void* block = allocate(2 * kMiB);
  CHECK(block != nullptr);
  deallocate(block);
  CHECK(valid());
}

TEST(large_handles_on_the_shelf_serve_small_blocks) {
  Gpu gpu("memory:64MiB");
  deallocate(allocate(64 * kMiB));
  simgpu_fail("cuMemRelease", 1, 1, cuda::kUnknown);
  trim();
  std::vector<void*> blocks;
  for (int i = 0; i < 32; ++i) blocks.push_back(allocate(2 * kMiB));
  for (void* block : blocks) {
    CHECK(block != nullptr);
    deallocate(block);
  }
  CHECK(valid());
}

TEST(a_block_of_the_whole_device_after_a_small_one) {
  Gpu gpu("memory:64MiB");
  void* stream = gpu.stream();
  deallocate(allocate(3 * kMiB, stream));
  trim();
  void* whole = allocate(64 * kMiB, stream);
  CHECK(whole != nullptr);
  deallocate(whole);
}

// However blocks share handles and are freed, an eighth of the device can be had.
TEST(some_of_the_memory_can_always_move) {
  Gpu gpu("memory:32GiB");
  std::vector<void*> freed, kept;
  for (int i = 0; i < 1020; ++i) {  // each kept one would lie in a handle of 32 MiB with a freed one
    freed.push_back(allocate(30 * kMiB));
    kept.push_back(allocate(2 * kMiB));
  }
  for (void* block : freed) deallocate(block);
  CHECK(valid());
  for (int i = 0; i < 3; ++i) {
    void* large = allocate(kGiB);
    CHECK(large != nullptr);
    kept.push_back(large);
  }
  for (void* block : kept) deallocate(block);
  CHECK(valid());
}

// As the parameters, gradients and states of a training step do. Sharing is no reason to move memory.
TEST(blocks_share_most_of_the_handles_without_a_driver_call) {
  Gpu gpu("memory:32GiB");
  std::vector<void*> blocks;
  for (int i = 0; i < 22; ++i) blocks.push_back(allocate(kGiB));
  for (void* block : blocks) deallocate(block);
  blocks.clear();
  simgpu_reset_calls();
  for (int i = 0; i < 1024; ++i) blocks.push_back(allocate(21 * kMiB));  // 21.5 GiB, no two in whole handles
  CHECK_EQ(simgpu_calls("cuMemMap"), int64_t{0});
  for (void* block : blocks) deallocate(block);
  CHECK(valid());
}

// Blocks that share handles and of which half are freed, on a small device.
TEST(freeing_half_of_the_neighbours_strands_little) {
  for (const char* conf : {"slack:0", "slack:0.03"}) {
    Gpu gpu("memory:1GiB", conf);
    deallocate(allocate(800 * kMiB));
    std::vector<void*> freed, kept;
    for (int i = 0; i < 25; ++i) {
      freed.push_back(allocate(30 * kMiB));
      kept.push_back(allocate(2 * kMiB));
    }
    for (void* block : freed) deallocate(block);
    void* large = allocate(800 * kMiB);
    CHECK(large != nullptr);
    deallocate(large);
    for (void* block : kept) deallocate(block);
    CHECK(valid());
  }
}
