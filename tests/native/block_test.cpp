// What every caller relies on: alignment, sizes, blocks that never overlap, and pointers that are not blocks.
#include <cstdint>
#include <map>
#include <vector>

#include "gpu.h"

using namespace test;

namespace {

// Every border the heap knows: size classes, slabs to extents (16 KiB), small to large (1 MiB), granules (2 MiB).
std::vector<size_t> border_sizes() {
  std::vector<size_t> sizes;
  for (size_t border = 512; border <= 16 * kKiB; border += 512)
    for (size_t bytes : {border - 1, border, border + 1}) sizes.push_back(bytes);
  for (size_t border : {kMiB, kGranule, 2 * kGranule, 4 * kGranule})
    for (size_t bytes : {border - 513, border - 512, border - 1, border, border + 1, border + 512, border + 513})
      sizes.push_back(bytes);
  return sizes;
}

}  // namespace

TEST(sizes_and_alignment) {
  Gpu gpu("memory:512MiB");
  for (size_t bytes : border_sizes()) {
    void* pointer = allocate(bytes);
    CHECK(pointer != nullptr);
    CHECK_EQ(address(pointer) % 512, uint64_t{0});
    pyalloc_freed freed{};
    CHECK_EQ(pyalloc_deallocate(pointer, &freed), PYALLOC_OK);
    CHECK_EQ(freed.requested, bytes);
    CHECK(freed.allocated >= bytes && freed.allocated % 512 == 0);
    CHECK(freed.allocated < bytes + (bytes <= 8 * kKiB || bytes > 16 * kKiB ? 512 : 1024));
    CHECK_EQ(freed.device, 0);
    CHECK(freed.stream == nullptr);
  }
  CHECK(valid());
}

TEST(zero_bytes_is_a_null_pointer) {
  Gpu gpu("memory:64MiB");
  void* pointer = &gpu;
  CHECK_EQ(pyalloc_allocate(0, nullptr, PYALLOC_STREAM_OWNED, 0, &pointer), PYALLOC_OK);
  CHECK(pointer == nullptr);
  CHECK_EQ(deallocate(nullptr), PYALLOC_OK);
  CHECK_EQ(stats().allocation[0].allocated, int64_t{0});
}

TEST(huge_sizes_do_not_wrap) {
  Gpu gpu("memory:64MiB");
  void* kept = allocate(kMiB);
  for (size_t bytes : {size_t{1} << 60, SIZE_MAX, SIZE_MAX - 511, SIZE_MAX - kGranule, size_t{1} << 50,
                       (size_t{1} << 50) + 1, size_t{1} << 40}) {
    void* pointer = &gpu;
    CHECK_EQ(pyalloc_allocate(0, nullptr, PYALLOC_STREAM_OWNED, bytes, &pointer), PYALLOC_OUT_OF_MEMORY);
    CHECK(pointer == &gpu);
    CHECK(std::strstr(pyalloc_last_error(), "out of memory") != nullptr);
  }
  CHECK_EQ(simgpu_used(0), uint64_t{kGranule});
  CHECK_EQ(deallocate(kept), PYALLOC_OK);
  CHECK(valid());
}

TEST(bad_arguments_are_named) {
  Gpu gpu("memory:64MiB");
  void* pointer = nullptr;
  CHECK_EQ(pyalloc_allocate(0, nullptr, 0, 512, nullptr), PYALLOC_INVALID_ARGUMENT);
  for (int device : {-1, 1, 64, 1000}) {
    CHECK_EQ(pyalloc_allocate(device, nullptr, 0, 512, &pointer), PYALLOC_INVALID_ARGUMENT);
    CHECK(std::strstr(pyalloc_last_error(), std::to_string(device).c_str()) != nullptr);
  }
}

// Random allocations and frees; every block's bytes stay what its owner wrote, so no two blocks share any.
TEST(blocks_never_overlap) {
  Gpu gpu("memory:256MiB");
  struct Block {
    size_t bytes;
    uint8_t mark;
  };
  std::map<uint64_t, Block> blocks;
  Random random(7);
  size_t live = 0;
  for (int step = 0; step < 6000 / kSlowdown; ++step) {
    bool grow = blocks.empty() || (live < 160 * kMiB && random.below(100) < 55);
    if (grow) {
      size_t bytes = random.bytes(24 * kMiB);
      void* pointer = allocate(bytes);
      CHECK(pointer != nullptr);
      uint64_t at = address(pointer);
      auto next = blocks.lower_bound(at);
      CHECK(next == blocks.end() || at + bytes <= next->first);
      CHECK(next == blocks.begin() || std::prev(next)->first + std::prev(next)->second.bytes <= at);
      auto mark = static_cast<uint8_t>(1 + random.below(255));
      CHECK(fill(nullptr, pointer, bytes, mark));
      blocks[at] = {bytes, mark};
      live += bytes;
    } else {
      auto victim = std::next(blocks.begin(), static_cast<int64_t>(random.below(blocks.size())));
      CHECK(holds(reinterpret_cast<void*>(victim->first), victim->second.bytes, victim->second.mark));
      CHECK_EQ(deallocate(reinterpret_cast<void*>(victim->first)), PYALLOC_OK);
      live -= victim->second.bytes;
      blocks.erase(victim);
    }
    if (step % 64 == 0) CHECK(valid());
  }
  for (const auto& [at, block] : blocks) {
    CHECK(holds(reinterpret_cast<void*>(at), block.bytes, block.mark));
    CHECK_EQ(deallocate(reinterpret_cast<void*>(at)), PYALLOC_OK);
  }
  CHECK(valid());
  trim();
  CHECK_EQ(simgpu_used(0), uint64_t{0});
}

// Sizes from 16 KiB to 256 KiB are extents while there are few of them and slots of slabs when there are many.
TEST(middle_sizes_as_extents_and_as_slots) {
  Gpu gpu("memory:512MiB", "check:full");
  void* stream = gpu.stream();
  for (size_t bytes : {16 * kKiB + 1, 20 * kKiB, 33 * kKiB, 100 * kKiB, 255 * kKiB + 1, 256 * kKiB, 256 * kKiB + 1}) {
    std::vector<void*> blocks;
    Random random(bytes);
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 150; ++i) {
        blocks.push_back(allocate(bytes, stream));
        CHECK(blocks.back() != nullptr);
        CHECK(fill(stream, blocks.back(), bytes, static_cast<uint8_t>(1 + address(blocks.back()) / 512 % 251)));
        if (i % 10 == 0) CHECK_EQ(pyalloc_record_stream(blocks.back(), nullptr, PYALLOC_STREAM_OWNED), PYALLOC_OK);
      }
      CHECK(valid());
      CHECK_EQ(stats().allocation[0].current, static_cast<int64_t>(blocks.size()));
      while (blocks.size() > static_cast<size_t>(round == 2 ? 0 : 40)) {
        size_t at = random.below(blocks.size());
        void* block = blocks[at];
        blocks[at] = blocks.back();
        blocks.pop_back();
        CHECK(holds(block, bytes, static_cast<uint8_t>(1 + address(block) / 512 % 251)));
        CHECK_EQ(deallocate(block), PYALLOC_OK);
        CHECK_EQ(deallocate(block), PYALLOC_UNKNOWN_POINTER);
      }
      CHECK(valid());
    }
  }
  pyalloc_maintain(0);
  trim();
  CHECK_EQ(stats().active[0].current, int64_t{0});
  CHECK_EQ(simgpu_used(0), uint64_t{0});
}

TEST(wrong_frees_leave_the_heap_intact) {
  Gpu gpu("memory:256MiB");
  for (size_t bytes : {size_t{1}, size_t{512}, size_t{700}, 16 * kKiB, 16 * kKiB + 1, kMiB, kMiB + 1, 5 * kMiB}) {
    void *block = allocate(bytes), *neighbour = allocate(bytes);
    int64_t bad = stats().bad_frees;
    char* start = static_cast<char*>(block);
    for (ptrdiff_t inside : {1, 8, 256, 511, 512, 8192}) {
      if (static_cast<size_t>(inside) < bytes) CHECK_EQ(deallocate(start + inside), PYALLOC_UNKNOWN_POINTER);
    }
    CHECK_EQ(deallocate(start - 1), PYALLOC_UNKNOWN_POINTER);
    CHECK_EQ(deallocate(&gpu), PYALLOC_UNKNOWN_POINTER);
    CHECK_EQ(deallocate(reinterpret_cast<void*>(uint64_t{0xFFFFFFFFFFFFFE00})), PYALLOC_UNKNOWN_POINTER);
    CHECK_EQ(deallocate(reinterpret_cast<void*>(uint64_t{512})), PYALLOC_UNKNOWN_POINTER);
    CHECK_EQ(deallocate(block), PYALLOC_OK);
    CHECK_EQ(deallocate(block), PYALLOC_UNKNOWN_POINTER);
    CHECK(std::strstr(pyalloc_last_error(), "freed already") != nullptr);
    CHECK(stats().bad_frees > bad + 4);
    CHECK_EQ(stats().allocation[0].current, int64_t{1});
    CHECK(fill(nullptr, neighbour, bytes, 3) && holds(neighbour, bytes, 3));
    CHECK_EQ(deallocate(neighbour), PYALLOC_OK);
    CHECK(valid());
  }
}

TEST(find_block_sees_live_blocks_only) {
  Gpu gpu("memory:256MiB");
  void* stream = gpu.stream();
  for (size_t bytes : {size_t{1}, size_t{600}, 9 * kKiB + 1, 16 * kKiB, 20 * kKiB, kMiB, 3 * kMiB + 5}) {
    void* block = allocate(bytes, stream);
    for (size_t inside : {size_t{0}, bytes / 2, bytes - 1}) {
      pyalloc_block_info info{};
      info.size = sizeof info;
      CHECK_EQ(pyalloc_find_block(static_cast<char*>(block) + inside, &info), PYALLOC_OK);
      CHECK(info.block == block && info.stream == stream);
      CHECK_EQ(info.device, 0);
      CHECK_EQ(info.requested, bytes);
      CHECK(info.allocated >= bytes);
      CHECK(address(info.segment) <= address(block) &&
            address(info.segment) + info.segment_bytes >= address(block) + bytes);
      CHECK_EQ(info.segment_bytes % kGranule, size_t{0});
    }
    CHECK_EQ(deallocate(block), PYALLOC_OK);
    pyalloc_block_info info{};
    info.size = sizeof info;
    CHECK_EQ(pyalloc_find_block(block, &info), PYALLOC_UNKNOWN_POINTER);
    info.size = 4;
    CHECK_EQ(pyalloc_find_block(block, &info), PYALLOC_INVALID_ARGUMENT);
  }
  pyalloc_block_info info{};
  info.size = sizeof info;
  CHECK_EQ(pyalloc_find_block(&gpu, &info), PYALLOC_UNKNOWN_POINTER);
}

TEST(small_blocks_make_no_driver_call_when_warm) {
  Gpu gpu("memory:64MiB");
  std::vector<void*> blocks;
  for (int round = 0; round < 3; ++round) {
    if (round == 1) simgpu_reset_calls();
    for (size_t bytes = 1; bytes <= 16 * kKiB; bytes += 700) blocks.push_back(allocate(bytes));
    blocks.push_back(allocate(3 * kMiB));
    blocks.push_back(allocate(100 * kKiB));
    for (void* block : blocks) CHECK_EQ(deallocate(block), PYALLOC_OK);
    blocks.clear();
  }
  CHECK_EQ(simgpu_calls(nullptr), int64_t{0});
  CHECK_EQ(simgpu_calls("cuEventRecord"), int64_t{0});
  CHECK_EQ(simgpu_calls("cuCtxGetCurrent"), int64_t{0});
}
