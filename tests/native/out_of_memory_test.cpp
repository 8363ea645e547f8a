// When memory runs out: each rung of the ladder, the message, observers and reclaimers, and what a failure leaves behind.
#include <string>
#include <thread>
#include <vector>

#include "reclaimers.h"
#include "sleep.h"

using namespace test;

namespace {

struct Observed {
  int calls = 0, device = -1, by_limit = -1;
  size_t bytes = 0, total = 0, free = 0;
  static void call(void* context, int device, size_t bytes, size_t total, size_t free, int by_limit) {
    auto& seen = *static_cast<Observed*>(context);
    ++seen.calls;
    seen.device = device;
    seen.bytes = bytes;
    seen.total = total;
    seen.free = free;
    seen.by_limit = by_limit;
    void* block = allocate(512);  // no lock is held here
    if (block != nullptr) deallocate(block);
  }
};

std::vector<void*> fill_device(size_t bytes, void* stream = nullptr) {
  std::vector<void*> blocks;
  while (void* block = allocate(bytes, stream)) blocks.push_back(block);
  CHECK_EQ(pyalloc_reset_accumulated_stats(0), PYALLOC_OK);
  return blocks;
}

void free_all(std::vector<void*>& blocks) {
  for (void* block : blocks) CHECK_EQ(deallocate(block), PYALLOC_OK);
  blocks.clear();
}

}  // namespace

// Every try for a block looks at what is complete by itself; preparing for a load does not.
TEST(rung_1_frees_that_are_complete) {
  Gpu gpu("memory:64MiB,streams:timed", "lora_reserve:2MiB");
  simgpu_set_work_time(100);
  void *one = gpu.stream(), *two = gpu.stream();
  void* block = allocate(40 * kMiB, one);
  CHECK_EQ(pyalloc_record_stream(block, two, PYALLOC_STREAM_OWNED), PYALLOC_OK);
  CHECK(read(two, block, 40 * kMiB));
  deallocate(block);
  simgpu_advance(1000);
  CHECK_EQ(pyalloc_lora_prepare(0, 50 * kMiB), PYALLOC_OK);
  CHECK_EQ(stats().rung_pending, int64_t{1});
  CHECK_EQ(stats().num_alloc_retries, int64_t{0});
  CHECK_EQ(stats().event_waits, int64_t{0});
}

TEST(what_is_complete_serves_a_large_block_without_the_ladder) {
  Gpu gpu("memory:32MiB,streams:timed");
  simgpu_set_work_time(100);
  void *one = gpu.stream(), *two = gpu.stream();
  void* block = allocate(24 * kMiB, one);
  CHECK_EQ(pyalloc_record_stream(block, two, PYALLOC_STREAM_OWNED), PYALLOC_OK);
  CHECK(read(two, block, 24 * kMiB));
  deallocate(block);
  simgpu_advance(1000);
  void* next = allocate(24 * kMiB, two);
  CHECK(next != nullptr);
  CHECK_EQ(stats().rung_pending, int64_t{0});
  CHECK_EQ(stats().num_alloc_retries, int64_t{0});
  CHECK_EQ(stats().event_waits, int64_t{0});
  deallocate(next);
}

TEST(rung_2_empty_slabs) {
  Gpu gpu("memory:2MiB");
  std::vector<void*> blocks = fill_device(8 * kKiB);
  free_all(blocks);  // a spare slab stays in its lane
  void* whole = allocate(2 * kMiB - 512, nullptr);
  CHECK(whole != nullptr);
  CHECK_EQ(stats().rung_slabs, int64_t{1});
  CHECK_EQ(stats().num_alloc_retries, int64_t{0});
  deallocate(whole);
}

TEST(rung_3_torch_s_callbacks_come_before_functions_of_any_priority) {
  Gpu gpu("memory:32MiB");
  std::vector<void*> blocks = fill_device(4 * kMiB);
  std::string order;
  Hook torch_s, user;
  torch_s.run = [&](int, size_t) {
    order += "torch ";
    deallocate(blocks.back());
    blocks.pop_back();
    return uint64_t{1};
  };
  user.run = [&](int, size_t) {
    order += "user ";
    deallocate(blocks.back());
    blocks.pop_back();
    return PYALLOC_FREED_UNKNOWN;
  };
  CHECK_EQ(pyalloc_add_reclaimer(Hook::call, &user, 1000), PYALLOC_OK);
  CHECK_EQ(pyalloc_add_reclaimer(Hook::call, &torch_s, PYALLOC_TORCH_CALLBACKS), PYALLOC_OK);
  void* block = allocate(4 * kMiB);
  CHECK(block != nullptr && order == "torch ");
  CHECK(stats().rung_callbacks == 1 && stats().rung_reclaimers == 0);
  void* larger = allocate(8 * kMiB);
  CHECK(larger != nullptr && order == "torch torch user ");
  CHECK(stats().rung_callbacks == 1 && stats().rung_reclaimers == 1);
  CHECK_EQ(stats().num_alloc_retries, int64_t{0});
  for (void* one : {block, larger}) deallocate(one);
  free_all(blocks);
}

TEST(rung_4_functions_by_priority_with_no_lock_held) {
  Gpu gpu("memory:32MiB");
  std::vector<void*> blocks = fill_device(4 * kMiB);
  CHECK_EQ(blocks.size(), size_t{8});
  std::string order;
  Hook low, high;
  high.run = [&](int device, size_t bytes) {
    order += "high";
    CHECK_EQ(device, 0);
    CHECK_EQ(bytes, size_t{8 * kMiB});
    return uint64_t{0};
  };
  low.run = [&](int, size_t) {
    order += " low";
    // Everything may be called from here, from this thread and others.
    CHECK(valid());
    std::thread([&] {
      for (int i = 0; i < 2; ++i) {
        deallocate(blocks.back());
        blocks.pop_back();
      }
      void* small = allocate(100);
      if (small != nullptr) deallocate(small);
    }).join();
    trim();
    return uint64_t{8 * kMiB};
  };
  CHECK_EQ(pyalloc_add_reclaimer(Hook::call, &low, 1), PYALLOC_OK);
  CHECK_EQ(pyalloc_add_reclaimer(Hook::call, &high, 5), PYALLOC_OK);
  CHECK_EQ(pyalloc_add_reclaimer(nullptr, nullptr, 0), PYALLOC_INVALID_ARGUMENT);
  void* block = allocate(8 * kMiB);
  CHECK(block != nullptr);
  CHECK(order == "high low");
  CHECK_EQ(stats().num_ooms, int64_t{0});
  deallocate(block);
  free_all(blocks);
  CHECK(valid());
}

TEST(a_reclaimer_that_runs_out_of_memory_itself_ends) {
  Gpu gpu("memory:32MiB");
  std::vector<void*> blocks = fill_device(4 * kMiB);
  Hook hook;
  hook.run = [&](int, size_t) {
    if (hook.calls < 1000) CHECK(allocate(16 * kMiB) == nullptr);
    return uint64_t{0};
  };
  CHECK_EQ(pyalloc_add_reclaimer(Hook::call, &hook, 0), PYALLOC_OK);
  CHECK(allocate(16 * kMiB) == nullptr);
  CHECK_EQ(hook.calls, 1);
  CHECK_EQ(stats().num_ooms, int64_t{2});
  free_all(blocks);
}

TEST(rung_5_waits_for_events_and_counts_it) {
  Gpu gpu("memory:32MiB,streams:timed");
  simgpu_set_work_time(1e9);
  void *one = gpu.stream(), *two = gpu.stream();
  void* block = allocate(24 * kMiB, one);
  CHECK_EQ(pyalloc_record_stream(block, two, PYALLOC_STREAM_OWNED), PYALLOC_OK);
  CHECK(read(two, block, 24 * kMiB));
  deallocate(block);
  void* next = allocate(24 * kMiB, one);
  CHECK(next != nullptr);
  CHECK(stats().event_waits > 0);
  CHECK_EQ(stats().rung_events, int64_t{1});
  CHECK_EQ(stats().num_alloc_retries, int64_t{1});
  CHECK_EQ(stats().num_sync_all_streams, int64_t{0});
  CHECK_EQ(stats().num_ooms, int64_t{0});
  deallocate(next);
}

// A stream that is gone has no event to wait for.
TEST(rung_6_waits_for_the_context_and_counts_it) {
  Gpu gpu("memory:32MiB,streams:timed,oracle:off");
  simgpu_set_work_time(1e9);
  void *one = gpu.stream(), *other = gpu.stream(), *block = nullptr;
  CHECK_EQ(pyalloc_allocate(0, one, 0, 24 * kMiB, &block), PYALLOC_OK);
  CHECK(fill(one, block, 24 * kMiB, 1));
  CHECK_EQ(cuStreamDestroy_v2(static_cast<pyalloc::cuda::Stream>(one)), pyalloc::cuda::kSuccess);
  deallocate(block);
  void* next = allocate(24 * kMiB, other);
  CHECK(next != nullptr);
  CHECK_EQ(stats().rung_context, int64_t{1});
  CHECK_EQ(stats().num_sync_all_streams, int64_t{1});
  CHECK_EQ(stats().num_alloc_retries, int64_t{1});
  CHECK_EQ(stats().num_ooms, int64_t{0});
  deallocate(next);
}

TEST(the_error_says_what_a_user_needs) {
  Gpu gpu("memory:64MiB");
  void* held = allocate(40 * kMiB);
  Observed seen;
  CHECK_EQ(pyalloc_add_oom_observer(Observed::call, &seen), PYALLOC_OK);
  void* pointer = nullptr;
  CHECK_EQ(pyalloc_allocate(0, nullptr, PYALLOC_STREAM_OWNED, 30 * kMiB, &pointer), PYALLOC_OUT_OF_MEMORY);
  std::string text = pyalloc_last_error();
  for (const char* part :
       {"CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a total capacity of 64.00 MiB "
        "of which 24.00 MiB is free.\n",
        "\npyalloc has 40.00 MiB allocated and 40.00 MiB reserved, 0 bytes are outside it; the largest free "
        "piece of what is reserved is 0 bytes.\n",
        "\nReason: capacity, the device's memory is used up.\n",
        "\nPools:\n  general   40.00 MiB allocated,   40.00 MiB reserved\nTried, and got: nothing from frees that were",
        "\nNext step: the program needs more than the device has: use smaller batches or shorter caches."}) {
    if (text.find(part) == std::string::npos) std::fprintf(stderr, "'%s' lacks '%s'\n", text.c_str(), part);
    CHECK(text.find(part) != std::string::npos);
  }
  CHECK_EQ(seen.calls, 1);
  CHECK_EQ(seen.device, 0);
  CHECK_EQ(seen.bytes, size_t{30 * kMiB});
  CHECK_EQ(seen.total, size_t{64 * kMiB});
  CHECK_EQ(seen.free, size_t{24 * kMiB});
  CHECK_EQ(seen.by_limit, 0);
  CHECK_EQ(stats().num_ooms, int64_t{1});
  CHECK_EQ(stats().num_oom_rejections, int64_t{0});

  CHECK_EQ(pyalloc_set_limit(0, 44 * kMiB), PYALLOC_OK);
  CHECK_EQ(pyalloc_allocate(0, nullptr, PYALLOC_STREAM_OWNED, 10 * kMiB, &pointer), PYALLOC_OUT_OF_MEMORY);
  CHECK(std::strstr(pyalloc_last_error(), "44.00 MiB it is limited to") != nullptr);
  CHECK_EQ(seen.by_limit, 1);
  CHECK_EQ(stats().num_oom_rejections, int64_t{1});
  CHECK_EQ(pyalloc_set_limit(0, 0), PYALLOC_OK);
  CHECK_EQ(pyalloc_allocate(0, nullptr, PYALLOC_STREAM_OWNED, size_t{1} << 60, &pointer), PYALLOC_OUT_OF_MEMORY);
  CHECK_EQ(seen.by_limit, 0);  // not the limit of an earlier failure
  CHECK_EQ(stats().num_oom_rejections, int64_t{1});
  CHECK(pointer == nullptr);
  deallocate(held);
}

// What each rung gave, though it was not enough.
TEST(the_error_says_what_each_rung_gave) {
  Gpu gpu("memory:64MiB,streams:timed");
  simgpu_set_work_time(100);
  void *one = gpu.stream(), *two = gpu.stream(), *gone = gpu.stream(), *on_gone = nullptr;
  auto recorded = [&](size_t bytes) {
    void* block = allocate(bytes, one);
    CHECK_EQ(pyalloc_record_stream(block, two, PYALLOC_STREAM_OWNED), PYALLOC_OK);
    CHECK(read(two, block, bytes));
    return block;
  };
  void *complete = recorded(900 * kKiB), *held = allocate(8 * kMiB, one), *small = allocate(5000, one);
  deallocate(complete);
  simgpu_advance(1000);
  simgpu_set_work_time(1e9);
  void* waits = recorded(10 * kMiB);
  CHECK_EQ(pyalloc_allocate(0, gone, 0, 20 * kMiB, &on_gone), PYALLOC_OK);
  deallocate(waits);
  deallocate(small);  // its slab stays in the lane
  Hook torch_s, known, unknown;
  std::vector<void*> cache = {allocate(2 * kMiB, one), allocate(4 * kMiB, one)};
  torch_s.run = [](int, size_t) { return uint64_t{4096}; };
  known.run = [](int, size_t) { return uint64_t{6} << 20; };  // of somebody else, say
  unknown.run = [&](int, size_t) {
    free_all(cache);
    return PYALLOC_FREED_UNKNOWN;
  };
  CHECK_EQ(pyalloc_add_reclaimer(Hook::call, &torch_s, PYALLOC_TORCH_CALLBACKS), PYALLOC_OK);
  CHECK_EQ(pyalloc_add_reclaimer(Hook::call, &known, 0), PYALLOC_OK);
  CHECK_EQ(pyalloc_add_reclaimer(Hook::call, &unknown, 0), PYALLOC_OK);
  CHECK(allocate(900 * kMiB, one) == nullptr);
  std::string text = pyalloc_last_error();
  const char* gave =
      "\nTried, and got: empty slabs 2.00 MiB, torch's callbacks 4096 bytes, on_oom functions 12.00 MiB, waiting for "
      "events 10.00 MiB; nothing from frees that were complete, waiting for the device, private pools with "
      "use_on_oom.\n";
  if (text.find(gave) == std::string::npos) std::fprintf(stderr, "'%s' lacks '%s'\n", text.c_str(), gave);
  CHECK(text.find(gave) != std::string::npos);
  char report[1 << 14];
  CHECK(pyalloc_oom_json(report, sizeof report) < sizeof report);
  CHECK(std::strstr(report,
                    "\"freed\": {\"pending\": 0, \"slabs\": 2097152, \"callbacks\": 4096, "
                    "\"reclaimers\": 12582912, \"events\": 10485760, \"context\": 0, \"lenders\": 0}") != nullptr);
  for (void* block : {held, on_gone}) deallocate(block);
}

// Those that hold most, so that the end of the text, which says what to do, is there.
TEST(the_error_has_room_for_its_end_however_many_pools_there_are) {
  Gpu gpu("memory:1GiB");
  std::vector<void*> blocks;
  int largest = -1;
  for (int i = 0; i < 20; ++i) {
    std::string name = "a_pool_whose_name_is_long_" + std::to_string(i);
    CHECK_EQ(pyalloc_find_pool(name.c_str(), 1, &largest), PYALLOC_OK);
    blocks.push_back(in_pool(largest, static_cast<size_t>(2 * (i + 1)) * kMiB));
  }
  CHECK(allocate(2000 * kMiB) == nullptr);
  CHECK(says("\n  a_pool_whose_name_is_long_19   40.00 MiB allocated,   40.00 MiB reserved\n"));
  CHECK(says("_long_4 ") && !says("_long_3 "));
  CHECK(says("\n  and 4 more with less\n") && says("\nNext step: "));
  CHECK_EQ(sleep({largest}), PYALLOC_OK);  // what it has asleep counts as well
  CHECK(allocate(2000 * kMiB) == nullptr);
  CHECK(says("_long_19     0 bytes allocated,     0 bytes reserved, 40.00 MiB asleep\n"));
  CHECK_EQ(wake({largest}), PYALLOC_OK);
  free_all(blocks);
}

// There is enough, but long-lived blocks lie in every piece of it.
TEST(a_refusal_for_fragmentation_says_so) {
  Gpu gpu("memory:64MiB");
  std::vector<void*> blocks = fill_device(1000 * kKiB), kept;
  for (size_t i = 0; i < blocks.size(); i += 2) kept.push_back(blocks[i]);
  for (size_t i = 1; i < blocks.size(); i += 2) deallocate(blocks[i]);
  CHECK(allocate(20 * kMiB) == nullptr);
  std::string text = pyalloc_last_error();
  for (const char* part : {"\nReason: fragmentation, ", "\nFragmentation: external 0.9",
                           "\nNext step: memory that lives long keeps pieces of it in use"}) {
    if (text.find(part) == std::string::npos) std::fprintf(stderr, "'%s' lacks '%s'\n", text.c_str(), part);
    CHECK(text.find(part) != std::string::npos);
  }
  free_all(kept);
}

TEST(an_observer_that_runs_out_of_memory_itself_ends) {
  Gpu gpu("memory:2MiB");
  void* held = allocate(2 * kMiB);
  Observed seen;
  CHECK_EQ(pyalloc_add_oom_observer(Observed::call, &seen), PYALLOC_OK);
  CHECK(allocate(kMiB) == nullptr);
  CHECK_EQ(seen.calls, 1);
  deallocate(held);
}

TEST(ten_thousand_failures_change_nothing) {
  Gpu gpu("memory:64MiB");
  void* held = allocate(40 * kMiB);
  void* small = allocate(100);
  CHECK(allocate(30 * kMiB) == nullptr);
  pyalloc_device_stats before = stats();
  simgpu_reset_calls();
  CHECK(allocate(30 * kMiB) == nullptr);
  int64_t calls_of_one = simgpu_calls(nullptr);
  simgpu_reset_calls();
  int times = 10000 / kSlowdown;
  for (int i = 0; i < times; ++i) CHECK(allocate(i % 2 == 0 ? 30 * kMiB : size_t{1} << (26 + i % 30)) == nullptr);
  CHECK(simgpu_calls(nullptr) <= times * (calls_of_one > 0 ? calls_of_one : 1));
  pyalloc_device_stats after = stats();
  CHECK_EQ(after.num_ooms, before.num_ooms + times + 1);
  CHECK_EQ(after.allocation[0].allocated, before.allocation[0].allocated);
  CHECK_EQ(after.allocated_bytes[0].peak, before.allocated_bytes[0].peak);
  CHECK_EQ(after.reserved_bytes[0].current, before.reserved_bytes[0].current);
  CHECK_EQ(after.reserved_bytes[0].peak, before.reserved_bytes[0].peak);
  CHECK_EQ(after.created_granules, before.created_granules);
  CHECK_EQ(after.metadata_bytes, before.metadata_bytes);
  CHECK_EQ(after.shelf_bytes, int64_t{0});
  CHECK_EQ(after.inactive_split[0].current, before.inactive_split[0].current);
  CHECK_EQ(simgpu_used(0), uint64_t{42 * kMiB});
  CHECK(valid());
  void* fits = allocate(22 * kMiB);
  CHECK(fits != nullptr);
  deallocate(fits);
  deallocate(small);
  deallocate(held);
}

// Other processes may hold the device: what the driver refuses half way goes back at once.
TEST(a_driver_out_of_memory_half_way_keeps_nothing) {
  Gpu gpu("memory:64MiB");
  void* held = allocate(8 * kMiB);
  CHECK_EQ(simgpu_set_capacity(0, 24 * kMiB), 0);
  CHECK(allocate(30 * kMiB) == nullptr);
  CHECK_EQ(simgpu_used(0), uint64_t{8 * kMiB});
  CHECK_EQ(stats().shelf_bytes, int64_t{0});
  void* fits = allocate(16 * kMiB);
  CHECK(fits != nullptr);
  CHECK(valid());
  deallocate(fits);
  deallocate(held);
}
