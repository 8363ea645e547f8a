// Every statistic against a serial model of what happened, and the snapshot against the statistics.
#include <algorithm>
#include <string>
#include <vector>

#include "gpu.h"

using namespace test;

namespace {

// torch's Stat, kept one operation at a time.
struct Model {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void up(int64_t by) {
    current += by;
    allocated += by;
    peak = std::max(peak, current);
  }
  void down(int64_t by) {
    current -= by;
    freed += by;
  }
};

struct Models {
  Model blocks[3], bytes[3], requested[3], active[3], active_bytes[3];
};

struct Block {
  void* pointer;
  size_t requested, allocated;
  bool recorded;
};

void same(const char* name, int kind, const pyalloc_stat& real, const Model& model) {
  if (real.current == model.current && real.peak == model.peak && real.allocated == model.allocated &&
      real.freed == model.freed)
    return;
  std::fprintf(stderr, "%s[%d]: current %lld peak %lld allocated %lld freed %lld; the model says %lld %lld %lld %lld\n",
               name, kind, (long long)real.current, (long long)real.peak, (long long)real.allocated,
               (long long)real.freed, (long long)model.current, (long long)model.peak, (long long)model.allocated,
               (long long)model.freed);
  ++failures();
}

void compare(const pyalloc_device_stats& real, const Models& model) {
  for (int kind = 0; kind < 3; ++kind) {
    same("allocation", kind, real.allocation[kind], model.blocks[kind]);
    same("allocated_bytes", kind, real.allocated_bytes[kind], model.bytes[kind]);
    same("requested_bytes", kind, real.requested_bytes[kind], model.requested[kind]);
    same("active", kind, real.active[kind], model.active[kind]);
    same("active_bytes", kind, real.active_bytes[kind], model.active_bytes[kind]);
  }
}

template <class Apply>
void each_kind(size_t requested, Apply&& apply) {
  apply(PYALLOC_KIND_ALL);
  apply((requested + 511) / 512 * 512 > kMiB ? PYALLOC_KIND_LARGE : PYALLOC_KIND_SMALL);
}

struct Walk {
  uint64_t reserved = 0, live_bytes = 0, requested = 0, active = 0, end = 0, segment_end = 0, segment_allocated = 0,
           segment_requested = 0, segment_active = 0;
  int64_t segments = 0, live = 0, pending = 0;
  uint64_t largest_free = 0;
  bool sound = true;

  void close() {
    sound = sound && segment_allocated == 0 && segment_requested == 0 && segment_active == 0 && end == segment_end;
  }
  static void on_segment(void* context, const pyalloc_segment_view* segment) {
    Walk& walk = *static_cast<Walk*>(context);
    if (walk.segments++ > 0) walk.close();
    walk.sound = walk.sound && address(segment->address) >= walk.segment_end && segment->bytes % kGranule == 0 &&
                 segment->device == 0;
    walk.end = address(segment->address);
    walk.segment_end = walk.end + segment->bytes;
    walk.segment_allocated = segment->allocated;
    walk.segment_requested = segment->requested;
    walk.segment_active = segment->active;
    walk.reserved += segment->bytes;
  }
  static void on_block(void* context, const pyalloc_block_view* block) {
    Walk& walk = *static_cast<Walk*>(context);
    walk.sound = walk.sound && address(block->address) == walk.end && block->bytes > 0;
    walk.end += block->bytes;
    if (block->state == PYALLOC_BLOCK_LIVE) {
      ++walk.live;
      walk.live_bytes += block->bytes;
      walk.requested += block->requested;
      walk.segment_allocated -= block->bytes;
      walk.segment_requested -= block->requested;
    }
    if (block->state == PYALLOC_BLOCK_PENDING) ++walk.pending;
    if (block->state != PYALLOC_BLOCK_FREE) {
      walk.active += block->bytes;
      walk.segment_active -= block->bytes;
    } else {
      walk.largest_free = std::max<uint64_t>(walk.largest_free, block->bytes);
    }
  }
};

void snapshot_agrees(const pyalloc_device_stats& now) {
  Walk walk;
  CHECK_EQ(pyalloc_snapshot(0, &walk, Walk::on_segment, Walk::on_block), PYALLOC_OK);
  if (walk.segments > 0) walk.close();
  CHECK(walk.sound);
  CHECK_EQ(static_cast<int64_t>(walk.reserved), now.reserved_bytes[0].current);
  CHECK_EQ(walk.segments, now.segment[0].current);
  CHECK_EQ(walk.live, now.allocation[0].current);
  CHECK_EQ(static_cast<int64_t>(walk.live_bytes), now.allocated_bytes[0].current);
  CHECK_EQ(static_cast<int64_t>(walk.requested), now.requested_bytes[0].current);
  CHECK_EQ(static_cast<int64_t>(walk.active), now.active_bytes[0].current);
  CHECK_EQ(walk.pending, now.pending_frees);
  uint64_t largest = 0;
  CHECK_EQ(pyalloc_largest_free(0, &largest), PYALLOC_OK);
  CHECK(largest <= walk.largest_free);
  // A granule is mapped once, whatever its history: what the device has in use is what is reserved and what lies on the shelf.
  CHECK_EQ(static_cast<int64_t>(simgpu_used(0)), now.reserved_bytes[0].current + now.shelf_bytes);
  CHECK_EQ(now.inactive_split_bytes[0].current, now.reserved_bytes[0].current - now.active_bytes[0].current);
  for (const pyalloc_stat* group :
       {now.segment, now.reserved_bytes, now.inactive_split, now.allocation, now.active_bytes})
    CHECK_EQ(group[0].current, group[1].current + group[2].current);
}

}  // namespace

TEST(statistics_equal_a_serial_model) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    Gpu gpu("memory:256MiB,streams:timed");
    simgpu_set_work_time(1);
    std::vector<void*> streams = {nullptr, gpu.stream(), gpu.stream(), gpu.stream()};
    Random random(seed);
    Models model;
    std::vector<Block> blocks, pending;
    size_t live = 0;
    for (int step = 0; step < 2500 / kSlowdown; ++step) {
      uint64_t choice = random.below(1000);
      if (choice < 520 && live < 120 * kMiB) {
        Block block{nullptr, random.bytes(8 * kMiB), 0, false};
        void* stream = streams[random.below(streams.size())];
        block.pointer = allocate(block.requested, stream);
        CHECK(block.pointer != nullptr);
        pyalloc_block_info info{};
        info.size = sizeof info;
        CHECK_EQ(pyalloc_find_block(block.pointer, &info), PYALLOC_OK);
        block.allocated = info.allocated;
        live += block.allocated;
        each_kind(block.requested, [&](int kind) {
          model.blocks[kind].up(1);
          model.bytes[kind].up(static_cast<int64_t>(block.allocated));
          model.requested[kind].up(static_cast<int64_t>(block.requested));
          model.active[kind].up(1);
          model.active_bytes[kind].up(static_cast<int64_t>(block.allocated));
        });
        if (random.below(6) == 0) {
          void* other = streams[random.below(streams.size())];
          CHECK_EQ(pyalloc_record_stream(block.pointer, other, PYALLOC_STREAM_OWNED), PYALLOC_OK);
          block.recorded = other != stream;
        }
        blocks.push_back(block);
      } else if (choice < 960 && !blocks.empty()) {
        size_t at = random.below(blocks.size());
        Block block = blocks[at];
        blocks[at] = blocks.back();
        blocks.pop_back();
        if (block.recorded) simgpu_launch(streams[random.below(streams.size())], nullptr, 0, nullptr, 0, 0);
        CHECK_EQ(deallocate(block.pointer), PYALLOC_OK);
        live -= block.allocated;
        each_kind(block.requested, [&](int kind) {
          model.blocks[kind].down(1);
          model.bytes[kind].down(static_cast<int64_t>(block.allocated));
          model.requested[kind].down(static_cast<int64_t>(block.requested));
          // Events complete at the next maintenance, which follows at once: the model has no state in between.
          model.active[kind].down(1);
          model.active_bytes[kind].down(static_cast<int64_t>(block.allocated));
        });
        if (block.recorded) {
          CHECK_EQ(stats().pending_frees, int64_t{1});
          CHECK_EQ(stats().active[0].current, model.active[0].current + 1);
          CHECK_EQ(stats().active_bytes[0].freed, model.active_bytes[0].freed - static_cast<int64_t>(block.allocated));
          simgpu_advance(1000);
          CHECK_EQ(pyalloc_maintain(0), PYALLOC_OK);
        }
      } else if (choice < 970) {
        CHECK_EQ(pyalloc_reset_peak_stats(0), PYALLOC_OK);
        for (Model(*group)[3] : {&model.blocks, &model.bytes, &model.requested, &model.active, &model.active_bytes})
          for (Model& one : *group) one.peak = one.current;
      } else if (choice < 980) {
        CHECK_EQ(pyalloc_reset_accumulated_stats(0), PYALLOC_OK);
        for (Model(*group)[3] : {&model.blocks, &model.bytes, &model.requested, &model.active, &model.active_bytes})
          for (Model& one : *group) one.allocated = one.freed = 0;
        CHECK_EQ(stats().num_device_alloc + stats().num_device_free + stats().reserved_bytes[0].allocated +
                     stats().segment[0].freed,
                 int64_t{0});
      } else if (choice < 985) {
        trim();
      }
      if (step % 16 == 0) {
        pyalloc_device_stats now = stats();
        compare(now, model);
        snapshot_agrees(now);
      }
      if (failures() > 10) break;
    }
    for (const Block& block : blocks) deallocate(block.pointer);
  }
}

TEST(peaks_of_reserved_memory) {
  Gpu gpu("memory:256MiB");
  void* block = allocate(20 * kMiB);
  deallocate(block);
  trim();
  pyalloc_device_stats now = stats();
  CHECK_EQ(now.reserved_bytes[0].current, int64_t{0});
  CHECK_EQ(now.reserved_bytes[0].peak, static_cast<int64_t>(20 * kMiB));
  CHECK_EQ(now.reserved_bytes[0].allocated, static_cast<int64_t>(20 * kMiB));
  CHECK_EQ(now.reserved_bytes[0].freed, static_cast<int64_t>(20 * kMiB));
  CHECK_EQ(now.segment[0].peak, int64_t{1});
  CHECK_EQ(now.created_granules, int64_t{10});
  CHECK(now.metadata_bytes > 0);
  CHECK_EQ(pyalloc_reset_peak_stats(0), PYALLOC_OK);
  CHECK_EQ(stats().reserved_bytes[0].peak, int64_t{0});
}

TEST(driver_calls_are_counted_as_the_driver_counts_them) {
  Gpu gpu("memory:64MiB");
  simgpu_reset_calls();
  std::vector<void*> blocks;
  for (int i = 0; i < 14; ++i) blocks.push_back(allocate(4 * kMiB));
  for (size_t i = 0; i < blocks.size(); i += 2) deallocate(blocks[i]);
  void* moved = allocate(20 * kMiB);
  deallocate(moved);
  pyalloc_maintain(0);
  trim();
  pyalloc_device_stats now = stats();
  CHECK_EQ(now.num_device_alloc,
           simgpu_calls("cuMemCreate") + simgpu_calls("cuMemMap") + simgpu_calls("cuMemSetAccess"));
  CHECK_EQ(now.num_device_free, simgpu_calls("cuMemRelease") + simgpu_calls("cuMemUnmap"));
  CHECK_EQ(now.map_runs, simgpu_calls("cuMemSetAccess"));
  CHECK_EQ(now.created_granules, 32);         // fourteen blocks of two granules each, and four more
  CHECK_EQ(simgpu_calls("cuMemCreate"), 32);  // each a handle of its own on a device so small
  CHECK_EQ(now.events_recorded, simgpu_calls("cuEventRecord"));
  CHECK(now.stolen_granules > 0);
  for (size_t i = 1; i < blocks.size(); i += 2) deallocate(blocks[i]);
}

TEST(statistics_before_the_first_allocation_are_zero) {
  Gpu gpu("memory:64MiB");
  pyalloc_device_stats now = stats();
  CHECK_EQ(now.size, static_cast<uint32_t>(sizeof now));
  CHECK_EQ(now.reserved_bytes[0].peak + now.allocation[0].allocated + now.metadata_bytes, int64_t{0});
  now.size = 8;
  CHECK_EQ(pyalloc_get_stats(0, &now), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(pyalloc_get_stats(0, nullptr), PYALLOC_INVALID_ARGUMENT);
  Walk walk;
  CHECK_EQ(pyalloc_snapshot(0, &walk, Walk::on_segment, nullptr), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(pyalloc_snapshot(0, &walk, Walk::on_segment, Walk::on_block), PYALLOC_OK);
  CHECK_EQ(walk.segments, int64_t{0});
}
