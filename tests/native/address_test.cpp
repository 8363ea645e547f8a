// What the C ABI says of one address: the block that starts there, its state, its pool, and whose address space it is.
#include <cstdlib>
#include <map>

#include "pools.h"

using namespace test;

namespace {

struct Found {
  pyalloc_block_view block{};
  pyalloc_owner owner{};
  bool there;
  explicit Found(const void* at) : there(pyalloc_block_at(at, &block, &owner) == PYALLOC_OK) {}
};

void* plus(void* pointer, size_t bytes) { return static_cast<char*>(pointer) + bytes; }

void check_block(void* pointer, size_t requested, int pool, void* stream) {
  Found found(pointer);
  CHECK(found.there);
  CHECK_EQ(found.block.address, pointer);
  CHECK_EQ(found.block.requested, requested);
  CHECK(found.block.bytes >= requested);
  CHECK_EQ(found.block.state, PYALLOC_BLOCK_LIVE);
  CHECK_EQ(found.block.stream, stream);
  CHECK_EQ(found.owner.pool, pool);
  CHECK_EQ(found.owner.device, 0);
  if (requested > 512) CHECK(!Found(plus(pointer, 512)).there);
  CHECK(!Found(plus(pointer, 1)).there);
}

const std::vector<size_t> kSizes = {1, 512, 4000, 16 * kKiB, 100 * kKiB, kMiB, 3 * kMiB, 5 * kMiB, 40 * kMiB};

}  // namespace

TEST(every_block_is_found_at_its_start_and_nowhere_else) {
  for (const char* configuration : {"", "guard:on"}) {
    Gpu gpu("memory:2GiB", configuration);
    void* side = Gpu::stream();
    std::map<void*, size_t> blocks;
    for (int pool = 0; pool < pyalloc_pool_count(); ++pool) {
      for (void* stream : {static_cast<void*>(nullptr), side}) {
        for (size_t size : kSizes) {
          void* block = in_pool(pool, size, stream);
          CHECK(blocks.emplace(block, size).second);
          check_block(block, size, pool, stream);
          pyalloc_owner owner{};
          CHECK_EQ(pyalloc_owner_of(block, &owner), PYALLOC_OK);
          CHECK_EQ(owner.pool, pool);
          CHECK(owner.stream == stream || owner.stream == nullptr);
          CHECK(owner.key.first == 0 && owner.key.second == 0);
        }
      }
    }
    for (const auto& [block, size] : blocks) {
      CHECK_EQ(deallocate(block), PYALLOC_OK);
      CHECK(!Found(block).there);
    }
  }
}

TEST(blocks_that_wait_for_a_stream_say_so) {
  Gpu gpu("memory:1GiB,streams:deferred,seed:5");
  void* side = Gpu::stream();
  for (size_t size : kSizes) {
    void* block = allocate(size);
    CHECK_EQ(pyalloc_record_stream(block, side, PYALLOC_STREAM_OWNED), PYALLOC_OK);
    CHECK(fill(side, block, size, 1));
    CHECK_EQ(deallocate(block), PYALLOC_OK);
    Found waiting(block);
    CHECK(waiting.there);
    CHECK_EQ(waiting.block.state, PYALLOC_BLOCK_PENDING);
    CHECK_EQ(waiting.block.requested, size);
    CHECK_EQ(cuStreamSynchronize(static_cast<pyalloc::cuda::Stream>(side)), pyalloc::cuda::kSuccess);
    CHECK_EQ(pyalloc_maintain(0), PYALLOC_OK);
    CHECK(!Found(block).there);
  }
}

TEST(what_is_not_ours_is_refused) {
  Gpu gpu("memory:1GiB");
  void* block = allocate(1000);
  pyalloc_block_view view{};
  CHECK_EQ(pyalloc_block_at(&view, &view, nullptr), PYALLOC_UNKNOWN_POINTER);
  CHECK_EQ(pyalloc_block_at(nullptr, &view, nullptr), PYALLOC_UNKNOWN_POINTER);
  CHECK_EQ(pyalloc_block_at(block, nullptr, nullptr), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(pyalloc_block_at(block, &view, nullptr), PYALLOC_OK);
  pyalloc_owner owner{};
  CHECK_EQ(pyalloc_owner_of(&view, &owner), PYALLOC_UNKNOWN_POINTER);
  CHECK_EQ(pyalloc_owner_of(block, nullptr), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  CHECK_EQ(pyalloc_owner_of(block, &owner), PYALLOC_OK);  // the address space stays its pool's
}

TEST(a_segment_keeps_its_stream_and_blocks_of_the_driver_are_segments) {
  struct Walk {
    std::map<void*, void*> streams;
    size_t bytes = 0, blocks = 0;
  };
  auto walk = [](Walk& seen) {
    CHECK_EQ(pyalloc_snapshot(
                 0, &seen,
                 [](void* context, const pyalloc_segment_view* segment) {
                   auto* to = static_cast<Walk*>(context);
                   to->streams[segment->address] = segment->stream;
                   to->bytes += segment->bytes;
                 },
                 [](void* context, const pyalloc_block_view*) { ++static_cast<Walk*>(context)->blocks; }),
             PYALLOC_OK);
  };
  {
    Gpu gpu("memory:1GiB");
    void* side = Gpu::stream();
    void *small = allocate(1000, side), *large = allocate(5 * kMiB, side);
    Walk before, after;
    walk(before);
    CHECK_EQ(deallocate(small), PYALLOC_OK);
    CHECK_EQ(deallocate(large), PYALLOC_OK);
    walk(after);
    CHECK(before.streams == after.streams);
    CHECK_EQ(before.streams.size(), size_t{2});
  }
  setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", 1);
  {
    Gpu gpu("memory:1GiB");
    void *small = allocate(1000), *large = allocate(5 * kMiB);
    Walk seen;
    walk(seen);
    CHECK_EQ(seen.bytes, 1000 + 5 * kMiB);
    CHECK_EQ(seen.blocks, size_t{2});
    check_block(small, 1000, PYALLOC_POOL_GENERAL, nullptr);
    CHECK_EQ(deallocate(small), PYALLOC_OK);
    CHECK_EQ(deallocate(large), PYALLOC_OK);
    CHECK(!Found(small).there);
  }
  unsetenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
}
