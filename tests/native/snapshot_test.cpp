// The snapshot as rows: the same as the walk with callbacks, with tags, also with too little room and while others allocate.
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "pools.h"

using namespace pyalloc;
using namespace test;

namespace {

struct Rows {
  std::vector<pyalloc_segment_row> segments;
  std::vector<pyalloc_block_row> blocks;
};

Rows rows(size_t room = 0, int device = 0) {
  Rows all;
  for (size_t segments = room, blocks = room;;) {
    all.segments.resize(segments);
    all.blocks.resize(blocks);
    size_t room_segments = segments, room_blocks = blocks;
    CHECK_EQ(pyalloc_snapshot_rows(device, all.segments.data(), &segments, all.blocks.data(), &blocks), PYALLOC_OK);
    if (segments > room_segments || blocks > room_blocks) continue;
    all.segments.resize(segments);
    all.blocks.resize(blocks);
    return all;
  }
}

std::string tag_name(int64_t tag) {
  char text[256] = "";
  pyalloc_tag_name(static_cast<uint32_t>(tag), text, sizeof text);
  return text;
}

// What the rows must be, from the walk.
struct Walk {
  Rows rows;
  static void on_segment(void* context, const pyalloc_segment_view* view) {
    int pool = -1;  // private pools are made in no order that this knows
    if (std::strcmp(view->pool, "private") != 0) CHECK_EQ(pyalloc_find_pool(view->pool, 0, &pool), PYALLOC_OK);
    auto bytes = [](size_t size) { return static_cast<int64_t>(size); };
    static_cast<Walk*>(context)->rows.segments.push_back(
        {static_cast<int64_t>(address(view->address)), bytes(view->bytes), pool, bytes(view->key.first),
         bytes(view->key.second), view->large, static_cast<int64_t>(address(view->stream)), bytes(view->allocated),
         bytes(view->active), bytes(view->requested), 0});
  }
  static void on_block(void* context, const pyalloc_block_view* view) {
    Walk& walk = *static_cast<Walk*>(context);
    ++walk.rows.segments.back().blocks;
    walk.rows.blocks.push_back({static_cast<int64_t>(address(view->address)), static_cast<int64_t>(view->bytes),
                                static_cast<int64_t>(view->requested), view->state,
                                static_cast<int64_t>(address(view->stream)), view->tag});
  }
};

template <class Row>
void check_equal(const std::vector<Row>& found, const std::vector<Row>& expected) {
  CHECK_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) CHECK(std::memcmp(&found[i], &expected[i], sizeof(Row)) == 0);
}

}  // namespace

TEST(rows_are_what_the_walk_says) {
  Gpu gpu("memory:8GiB,streams:deferred");
  void* other = Gpu::stream();
  std::vector<void*> blocks;
  for (int pool = 0; pool < 5; ++pool)
    for (size_t bytes : {size_t{700}, 40 * kKiB, 900 * kKiB, 3 * kMiB, 40 * kMiB})
      for (void* stream : {static_cast<void*>(nullptr), other}) blocks.push_back(in_pool(pool, bytes, stream));
  CHECK_EQ(pyalloc_record_stream(blocks[4], other, PYALLOC_STREAM_OWNED), PYALLOC_OK);
  for (size_t i = 0; i < blocks.size(); i += 4) deallocate(blocks[i]);  // one of them waits for `other`
  Walk walk;
  CHECK_EQ(pyalloc_snapshot(0, &walk, Walk::on_segment, Walk::on_block), PYALLOC_OK);
  for (size_t room : {0, 1, 7, 1000}) {
    Rows found = rows(room);
    check_equal(found.segments, walk.rows.segments);
    check_equal(found.blocks, walk.rows.blocks);
  }
  for (size_t i = 0; i < blocks.size(); ++i)
    if (i % 4 != 0) deallocate(blocks[i]);
}

TEST(every_live_block_carries_its_tag) {
  Gpu gpu("memory:8GiB");
  std::vector<std::pair<void*, std::string>> blocks;
  for (const char* name : {"a", "", "b"}) {
    uint32_t tag = 0;
    if (*name != 0) CHECK_EQ(pyalloc_push_tag(name, &tag), PYALLOC_OK);
    for (int pool = 0; pool < 5; ++pool)
      for (size_t bytes : {size_t{700}, 900 * kKiB, 5 * kMiB}) blocks.push_back({in_pool(pool, bytes), name});
    if (*name != 0) CHECK_EQ(pyalloc_pop_tag(tag), PYALLOC_OK);
  }
  for (int round = 0; round < 2; ++round) {
    size_t found = 0;
    for (const pyalloc_block_row& row : rows().blocks) {
      if (row.state != PYALLOC_BLOCK_LIVE) {
        CHECK_EQ(row.tag, int64_t{0});
        continue;
      }
      for (const auto& [block, name] : blocks)
        if (static_cast<int64_t>(address(block)) == row.address) {
          ++found;
          CHECK(tag_name(row.tag) == name);
        }
    }
    CHECK_EQ(found, blocks.size());
    // Blocks without a tag come where tagged ones were.
    for (auto& [block, name] : blocks) deallocate(block);
    size_t at = 0;
    for (int again = 0; again < 3; ++again)
      for (int pool = 0; pool < 5; ++pool)
        for (size_t bytes : {size_t{700}, 900 * kKiB, 5 * kMiB}) blocks[at++] = {in_pool(pool, bytes), ""};
  }
  for (auto& [block, name] : blocks) deallocate(block);
  CHECK(tag_name(0).empty());
  CHECK(tag_name(UINT32_MAX).empty());
}

TEST(rows_of_a_device_that_is_not_in_use_and_of_none) {
  Gpu gpu("memory:64MiB", "", 2);
  size_t segments = 0, blocks = 0;
  CHECK_EQ(pyalloc_snapshot_rows(1, nullptr, &segments, nullptr, &blocks), PYALLOC_OK);
  CHECK_EQ(segments + blocks, size_t{0});
  CHECK_EQ(pyalloc_snapshot_rows(2, nullptr, &segments, nullptr, &blocks), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(pyalloc_snapshot_rows(0, nullptr, nullptr, nullptr, &blocks), PYALLOC_INVALID_ARGUMENT);
  segments = 1;
  CHECK_EQ(pyalloc_snapshot_rows(0, nullptr, &segments, nullptr, &blocks), PYALLOC_INVALID_ARGUMENT);
}

TEST(each_snapshot_is_of_one_moment_while_others_allocate) {
  Gpu gpu("memory:1GiB");
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      Gpu::use(0);
      void* stream = i == 0 ? nullptr : Gpu::stream();
      for (size_t round = 0; !stop.load(); ++round) {
        uint32_t tag = 0;
        CHECK_EQ(pyalloc_push_tag(("request-" + std::to_string(round % 50)).c_str(), &tag), PYALLOC_OK);
        void* small = allocate(700 + round % 9000, stream);
        void* large = allocate((1 + round % 7) * kMiB, stream);
        CHECK_EQ(pyalloc_pop_tag(tag), PYALLOC_OK);
        deallocate(small);
        deallocate(large);
      }
    });
  for (int round = 0; round < 200 / kSlowdown; ++round) {
    Rows now = rows();
    auto block = now.blocks.begin();
    for (const pyalloc_segment_row& segment : now.segments) {
      int64_t at = segment.address, allocated = 0, requested = 0;
      for (int64_t i = 0; i < segment.blocks; ++i, ++block) {
        CHECK_EQ(block->address, at);
        at += block->bytes;
        if (block->state == PYALLOC_BLOCK_LIVE) {
          allocated += block->bytes;
          requested += block->requested;
        }
      }
      CHECK_EQ(at, segment.address + segment.bytes);
      CHECK_EQ(allocated, segment.allocated);
      CHECK_EQ(requested, segment.requested);
    }
    CHECK(block == now.blocks.end());
  }
  stop = true;
  for (std::thread& one : threads) one.join();
}
