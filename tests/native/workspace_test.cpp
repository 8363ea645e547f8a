// Arenas of the workspace pool: the same step gets the same addresses, what outlives a step, and how much memory is used.
#include <string>
#include <thread>
#include <vector>

#include "pools.h"

using namespace pyalloc;
using namespace test;

namespace {

constexpr int kWorkspace = PYALLOC_POOL_WORKSPACE;

struct Piece {
  void* block;
  size_t bytes;
};

// A step as a forward pass makes it: sizes of every kind, most freed soon, in an order that the seed gives.
std::vector<void*> step(uint64_t seed, void* stream = nullptr, size_t most_live = 40) {
  In scope(kWorkspace);
  Random random(seed);
  std::vector<void*> addresses;
  std::vector<Piece> live;
  for (int i = 0; i < 400; ++i) {
    size_t bytes = 1 + random.below(size_t{1} << (8 + random.below(17)));
    void* block = allocate(bytes, stream);
    CHECK(block != nullptr);
    addresses.push_back(block);
    live.push_back({block, bytes});
    if (live.size() < most_live && random.below(2) == 0) continue;
    size_t gone = random.below(live.size());
    CHECK_EQ(deallocate(live[gone].block), PYALLOC_OK);
    live.erase(live.begin() + static_cast<ptrdiff_t>(gone));
  }
  for (const Piece& one : live) CHECK_EQ(deallocate(one.block), PYALLOC_OK);
  return addresses;
}

std::string escapes() {
  char text[4096] = "";
  CHECK(pyalloc_escapes_json(0, text, sizeof text) < sizeof text);
  return text;
}

}  // namespace

TEST(the_same_step_gets_the_same_addresses) {
  Gpu gpu("memory:4GiB");
  std::vector<void*> first = step(7);
  for (int i = 0; i < 5; ++i) {
    CHECK(step(7) == first);
    CHECK(valid());
  }
  CHECK(step(8) != first);
  CHECK(step(7) == first);
  CHECK(escapes() == "{}");
}

TEST(a_repeated_step_makes_no_driver_call) {
  Gpu gpu("memory:4GiB");
  void* weights = in_pool(PYALLOC_POOL_WEIGHTS, 3000 * kMiB);
  step(7);
  step(7);
  int64_t calls = stats().num_device_alloc;
  for (int i = 0; i < 10; ++i) step(7);
  CHECK_EQ(stats().num_device_alloc, calls);
  deallocate(weights);
}

TEST(a_step_gets_its_addresses_back_after_its_memory_served_others) {
  Gpu gpu("memory:1GiB");
  std::vector<void*> first = step(7);
  void* other = in_pool(PYALLOC_POOL_KV, 1000 * kMiB);
  CHECK(other != nullptr);
  deallocate(other);
  CHECK(step(7) == first);
  trim();
  CHECK(step(7) == first);
  CHECK(valid());
}

TEST(streams_have_arenas_of_their_own) {
  Gpu gpu("memory:4GiB");
  void* stream = gpu.stream();
  std::vector<void*> first = step(7), other = step(7, stream);
  CHECK(first != other);
  for (int i = 0; i < 3; ++i) CHECK(step(7) == first && step(7, stream) == other);
}

TEST(what_outlives_its_step_is_counted_once_and_stays_valid) {
  Gpu gpu("memory:1GiB");
  void *small = nullptr, *large = nullptr;
  for (int i = 0; i < 3; ++i) {
    In scope(kWorkspace);
    if (i == 0) small = allocate(700), large = allocate(5 * kMiB);
    {
      In inner(kWorkspace);
      void* block = allocate(3 * kMiB);
      pyalloc_pop_pool(kWorkspace);  // an inner scope is no step
      pyalloc_push_pool(kWorkspace);
      deallocate(block);
    }
  }
  CHECK(escapes() == "{\"700\": 1, \"5242880\": 1}");
  CHECK(fill(nullptr, large, 5 * kMiB, 3));
  std::vector<void*> first = step(7);
  CHECK(step(7) == first);  // beside what escaped, still the same
  CHECK(holds(large, 5 * kMiB, 3));
  deallocate(small);
  deallocate(large);
  {
    In scope(kWorkspace);
    small = allocate(700);
  }
  CHECK(escapes() == "{\"700\": 2, \"5242880\": 1}");
  deallocate(small);
  CHECK(valid());
}

TEST(a_step_of_one_thread_does_not_end_anothers) {
  Gpu gpu("memory:1GiB");
  void* stream = gpu.stream();
  In scope(kWorkspace);
  void* mine = allocate(2 * kMiB, stream);
  std::thread([] {
    Gpu::use(0);
    step(7);
  }).join();
  CHECK(escapes() == "{}");
  deallocate(mine);
}

TEST(recorded_blocks_of_an_arena_wait_for_their_stream) {
  Gpu gpu("memory:1GiB,streams:deferred,seed:5");
  void* stream = gpu.stream();
  simgpu_set_stream_mode("timed", 1);
  simgpu_set_work_time(1000);
  In scope(kWorkspace);
  for (size_t bytes : {size_t{900}, 100 * kKiB, 9 * kMiB}) {
    void* block = allocate(bytes);
    CHECK(read(stream, block, bytes));
    CHECK_EQ(pyalloc_record_stream(block, stream, PYALLOC_STREAM_OWNED), PYALLOC_OK);
    CHECK_EQ(pyalloc_record_stream(block, nullptr, PYALLOC_STREAM_OWNED), PYALLOC_OK);  // its own: no matter
    CHECK_EQ(deallocate(block), PYALLOC_OK);
    CHECK_EQ(deallocate(block), PYALLOC_UNKNOWN_POINTER);
    void* next = allocate(bytes);
    CHECK(next != block);
    CHECK_EQ(stats().pending_frees, int64_t{1});
    simgpu_advance(5000);
    CHECK_EQ(deallocate(next), PYALLOC_OK);
    CHECK_EQ(pyalloc_maintain(0), PYALLOC_OK);
    CHECK_EQ(stats().pending_frees, int64_t{0});
    CHECK(valid());
  }
}

TEST(an_arena_uses_little_more_than_its_live_blocks) {
  Gpu gpu("memory:8GiB");
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CHECK_EQ(pyalloc_reset_pool_peak(0, kWorkspace), PYALLOC_OK);
    CHECK_EQ(pyalloc_reset_peak_stats(0), PYALLOC_OK);
    step(seed, nullptr, 100);
    int64_t live = stats().requested_bytes[0].peak;
    int64_t chunk = 32 * 1024 * 1024;
    CHECK(figures(kWorkspace).peak <= live + live / 10 + chunk);
  }
}

TEST(an_arena_refuses_what_no_device_has) {
  Gpu gpu("memory:256MiB");
  In scope(kWorkspace);
  for (size_t bytes : {size_t{300} * kMiB, size_t{100} * kGiB, size_t{3} << 40, size_t{1} << 49}) {
    CHECK(allocate(bytes) == nullptr);
    CHECK(says("it is more than the device has"));
    CHECK(valid());
  }
  void* block = allocate(200 * kMiB);
  CHECK(block != nullptr);
  deallocate(block);
}
