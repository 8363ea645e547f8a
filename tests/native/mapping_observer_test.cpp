// Who is told that addresses get memory or lose it: every mapping, in its order, with no lock held, and before it matters.
#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "pools.h"

using namespace test;
namespace cuda = pyalloc::cuda;

namespace {

// Holds what is said against what the device says, and keeps which granules are mapped as far as was told.
struct Witness {
  static constexpr uint32_t kBoth = PYALLOC_MAPPED | PYALLOC_UNMAPPING;
  std::mutex mutex;
  std::map<uint64_t, bool> mapped;  // by granule
  int64_t maps = 0, unmaps = 0;
  std::vector<pyalloc_mapping_event> events;

  explicit Witness(uint32_t kinds = kBoth) { CHECK_EQ(pyalloc_add_mapping_observer(&hear, this, kinds), PYALLOC_OK); }
  ~Witness() { pyalloc_remove_mapping_observer(&hear, this); }
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;

  static void hear(void* context, const pyalloc_mapping_event* event) {
    auto& self = *static_cast<Witness*>(context);
    std::lock_guard<std::mutex> lock(self.mutex);
    self.events.push_back(*event);
    CHECK_EQ(event->size, sizeof *event);
    CHECK(event->bytes > 0 && event->bytes % kGranule == 0 && address(event->address) % kGranule == 0);
    bool maps = event->kind == PYALLOC_MAPPED;
    (maps ? self.maps : self.unmaps) += static_cast<int64_t>(event->bytes / kGranule);
    for (uint64_t at = address(event->address); at < address(event->address) + event->bytes; at += kGranule) {
      CHECK_EQ(self.mapped[at], !maps);  // they take turns
      self.mapped[at] = maps;
      uint8_t byte = 0;
      CHECK_EQ(simgpu_read(at, &byte, 1), 0);  // mapped when told of, either way
    }
  }
  bool knows(const void* pointer, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex);
    for (uint64_t at = address(pointer) / kGranule * kGranule; at < address(pointer) + bytes; at += kGranule)
      if (!mapped[at]) return false;
    return true;
  }
  int64_t still_mapped() {
    std::lock_guard<std::mutex> lock(mutex);
    int64_t count = 0;
    for (const auto& [at, is] : mapped) count += is;
    return count;
  }
};

}  // namespace

TEST(every_mapping_is_told_in_turn) {
  Witness witness;
  {
    Gpu gpu("memory:1GiB", "kv_large_threshold:4MiB");
    pyalloc_add_mapping_observer(&Witness::hear, &witness, Witness::kBoth);  // shutdown, in Gpu, dropped it
    void *small = allocate(1000), *large = allocate(33 * kMiB), *kv = in_pool(PYALLOC_POOL_KV, 5 * kMiB);
    CHECK(witness.knows(small, 1000) && witness.knows(large, 33 * kMiB) && witness.knows(kv, 5 * kMiB));
    CHECK_EQ(witness.maps, int64_t{1 + 17 + 8});  // the kv block's slab is of 16 MiB
    CHECK_EQ(witness.events.back().pool, int{PYALLOC_POOL_KV});
    CHECK_EQ(witness.events.back().device, 0);
    CHECK_EQ(witness.unmaps, int64_t{0});
    deallocate(large);
    CHECK_EQ(witness.unmaps, int64_t{0});  // idle, and still mapped
    CHECK_EQ(trim(), uint64_t{34 * kMiB});
    CHECK_EQ(witness.unmaps, int64_t{17});
    CHECK(valid());
    large = allocate(33 * kMiB);
    CHECK(witness.knows(large, 33 * kMiB));
    CHECK_EQ(witness.maps, int64_t{26 + 17});
    for (void* block : {small, large, kv}) deallocate(block);
  }
  CHECK_EQ(witness.still_mapped(), int64_t{0});  // closing told of the rest
}

TEST(moved_memory_is_told_at_both_addresses) {
  Gpu gpu("memory:128MiB,streams:deferred,seed:3");
  Witness witness;
  void* stream = gpu.stream();
  void* wall = nullptr;
  void* first = allocate(60 * kMiB, stream);
  wall = allocate(2 * kMiB, stream);
  CHECK(fill(stream, first, 60 * kMiB, 1));
  deallocate(first);
  void* larger = allocate(100 * kMiB, stream);  // steals
  CHECK(larger != nullptr && witness.knows(larger, 100 * kMiB));
  CHECK(stats().stolen_granules > 0);
  simgpu_step(-1);
  CHECK_EQ(pyalloc_maintain(0), PYALLOC_OK);
  CHECK_EQ(stats().stale_mappings, int64_t{0});
  CHECK_EQ(witness.unmaps, stats().stolen_granules);
  CHECK_EQ(witness.still_mapped(), stats().reserved_bytes[0].current / static_cast<int64_t>(kGranule));
  for (void* block : {wall, larger}) deallocate(block);
  CHECK(valid());
}

// On the allocation path the driver gets large idle handles back to make small ones of them.
TEST(memory_that_has_to_be_unmapped_first_serves_the_request_all_the_same) {
  Gpu gpu("memory:1GiB");
  Witness witness;
  deallocate(allocate(kGiB));  // in handles of two granules
  std::vector<void*> blocks;
  for (int i = 0; i < 512; ++i) {
    blocks.push_back(allocate(2 * kMiB));
    CHECK(blocks.back() != nullptr && witness.knows(blocks.back(), 2 * kMiB));
  }
  CHECK(valid());
  CHECK_EQ(stats().num_ooms, int64_t{0});
  CHECK(witness.unmaps > 0);
  for (void* block : blocks) deallocate(block);
  void* whole = allocate(kGiB);
  CHECK(whole != nullptr && witness.knows(whole, kGiB));
  deallocate(whole);
  CHECK(valid());
}

TEST(a_lane_s_blocks_are_told_of_too_when_memory_is_short) {
  Gpu gpu("memory:64MiB");
  Witness witness;
  deallocate(allocate(64 * kMiB));
  std::vector<void*> blocks;
  for (int i = 0; i < 64; ++i) {
    blocks.push_back(allocate(kMiB));
    CHECK(blocks.back() != nullptr && witness.knows(blocks.back(), kMiB));
  }
  for (void* block : blocks) deallocate(block);
  CHECK(valid());
}

TEST(prepared_memory_and_the_reserve_are_told_of) {
  Gpu gpu("memory:1GiB", "lora_reserve:64MiB");
  Witness witness;
  deallocate(allocate(1000));  // opens the device
  CHECK_EQ(witness.maps, int64_t{32 + 1});
  CHECK_EQ(pyalloc_lora_prepare(0, 20 * kMiB), PYALLOC_OK);
  CHECK_EQ(witness.maps, int64_t{32 + 1 + 10});
  CHECK_EQ(pyalloc_lora_prepare(0, 0), PYALLOC_OK);
  trim();
  CHECK_EQ(witness.unmaps, int64_t{1 + 10});
  CHECK(valid());
}

TEST(a_guarded_block_is_told_of_before_it_goes) {
  Gpu gpu("memory:64MiB", "guard:on");
  Witness witness;
  void* block = allocate(3 * kMiB);
  CHECK_EQ(witness.maps, int64_t{2});
  deallocate(block);
  CHECK_EQ(witness.unmaps, int64_t{2});
  uint8_t byte = 0;
  CHECK(simgpu_read(address(block), &byte, 1) != 0);
  CHECK_EQ(simgpu_used(0), uint64_t{0});
}

namespace {

struct Meddler {
  void* kept = nullptr;
  int calls = 0;
  static void meddle(void* context, const pyalloc_mapping_event*) {
    auto& self = *static_cast<Meddler*>(context);
    if (self.calls++ > 20) return;
    void* block = allocate(3 * kMiB);
    CHECK(block != nullptr);
    deallocate(self.kept);
    self.kept = block;
    pyalloc_trim(0, nullptr);
    CHECK(valid());
  }
};

}  // namespace

TEST(observers_may_allocate_free_and_trim) {
  Gpu gpu("memory:256MiB");
  Meddler meddler;
  CHECK_EQ(pyalloc_add_mapping_observer(&Meddler::meddle, &meddler, Witness::kBoth), PYALLOC_OK);
  Witness witness;
  void* block = allocate(40 * kMiB);
  CHECK(block != nullptr && witness.knows(block, 40 * kMiB));
  deallocate(block);
  trim();
  CHECK(meddler.calls > 2);
  CHECK_EQ(pyalloc_remove_mapping_observer(&Meddler::meddle, &meddler), PYALLOC_OK);
  deallocate(meddler.kept);
  CHECK(valid());
  trim();
  CHECK_EQ(witness.still_mapped(), int64_t{0});
}

TEST(what_was_removed_hears_nothing_more) {
  Gpu gpu("memory:64MiB");
  void* before = allocate(4 * kMiB);
  Witness witness(PYALLOC_UNMAPPING);
  {
    std::lock_guard<std::mutex> lock(witness.mutex);
    for (int i = 0; i < 2; ++i) witness.mapped[address(before) + static_cast<uint64_t>(i) * kGranule] = true;
  }
  deallocate(before);
  trim();
  CHECK_EQ(witness.unmaps, int64_t{2});
  CHECK_EQ(witness.maps, int64_t{0});
  CHECK_EQ(pyalloc_remove_mapping_observer(&Witness::hear, &witness), PYALLOC_OK);
  CHECK_EQ(pyalloc_remove_mapping_observer(&Witness::hear, &witness), PYALLOC_INVALID_ARGUMENT);
  CHECK(says("not registered"));
  deallocate(allocate(4 * kMiB));
  trim();
  CHECK_EQ(witness.unmaps, int64_t{2});
  CHECK_EQ(pyalloc_add_mapping_observer(nullptr, nullptr, 1), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(pyalloc_add_mapping_observer(&Witness::hear, nullptr, 0), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(pyalloc_add_mapping_observer(&Witness::hear, nullptr, 4), PYALLOC_INVALID_ARGUMENT);
  CHECK(says("expected 1 to 3"));
}

// Departures of an observer that is gone are undone without it.
TEST(an_observer_may_go_from_inside_itself) {
  Gpu gpu("memory:64MiB");
  static int heard;
  heard = 0;
  pyalloc_mapping_fn once = [](void* context, const pyalloc_mapping_event*) {
    ++heard;
    CHECK_EQ(pyalloc_remove_mapping_observer(reinterpret_cast<pyalloc_mapping_fn>(context), context), PYALLOC_OK);
  };
  auto* itself = reinterpret_cast<void*>(once);
  CHECK_EQ(pyalloc_add_mapping_observer(once, itself, PYALLOC_UNMAPPING), PYALLOC_OK);
  void *one = allocate(4 * kMiB), *wall = allocate(4 * kMiB), *other = allocate(4 * kMiB);
  deallocate(one);
  deallocate(other);
  CHECK_EQ(trim(), uint64_t{8 * kMiB});
  CHECK_EQ(heard, 1);
  deallocate(wall);
  CHECK(valid());
}

// The driver refuses at each call in turn: what was told stays true, and nobody hears the same twice.
TEST(faults_break_no_promise) {
  for (const char* call : {"cuMemUnmap", "cuMemRelease", "cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    for (int64_t nth = 1; nth < 12; ++nth) {
      Gpu gpu("memory:48MiB,streams:deferred,seed:5");
      Witness witness;
      void *one = gpu.stream(), *two = gpu.stream();
      CHECK_EQ(simgpu_fail(call, nth, 1, cuda::kUnknown), 0);
      std::vector<void*> blocks;
      for (size_t mib : {12, 3, 9, 1, 20}) {
        void* block = allocate(mib * kMiB, mib % 2 == 0 ? one : two);
        if (block != nullptr) CHECK(witness.knows(block, mib * kMiB));
        blocks.push_back(block);
        CHECK(valid());
      }
      for (size_t i : {0u, 2u, 4u})
        if (blocks[i] != nullptr) deallocate(blocks[i]);
      for (size_t mib : {30, 2, 2, 2}) {
        void* block = allocate(mib * kMiB, two);
        if (block != nullptr) {
          CHECK(witness.knows(block, mib * kMiB));
          deallocate(block);
        }
        CHECK(valid());
      }
      for (size_t i : {1u, 3u})
        if (blocks[i] != nullptr) deallocate(blocks[i]);
      simgpu_clear_faults();
      simgpu_step(-1);
      trim();
      pyalloc_maintain(0);
      trim();
      CHECK(valid());
      CHECK_EQ(simgpu_used(0), uint64_t{0});
      CHECK_EQ(witness.still_mapped(), int64_t{0});
    }
  }
}

// Blocks of several threads in the same slabs, while idle memory goes and comes: nobody gets memory that was not told of.
TEST(threads_never_get_memory_that_was_not_told_of) {
  Gpu gpu("memory:256MiB", "maintenance:on,decay:1");
  Witness witness;
  std::vector<std::thread> threads;
  std::atomic<int> refused{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Gpu::use(0);
      Random random(static_cast<uint64_t>(t) + 1);
      std::vector<std::pair<void*, size_t>> mine;
      for (int step = 0; step < 3000 / kSlowdown; ++step) {
        if (mine.size() > 12 || (!mine.empty() && random.below(3) == 0)) {
          size_t at = random.below(mine.size());
          deallocate(mine[at].first);
          mine[at] = mine.back();
          mine.pop_back();
          continue;
        }
        size_t bytes = random.bytes(8 * kMiB);
        void* block = allocate(bytes);
        if (block == nullptr) {
          ++refused;
        } else {
          CHECK(witness.knows(block, bytes));
          mine.emplace_back(block, bytes);
        }
        if (random.below(64) == 0) pyalloc_trim(0, nullptr);
      }
      for (auto& [block, bytes] : mine) deallocate(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(refused.load(), 0);
  CHECK(valid());
  CHECK(witness.unmaps > 0);
}

namespace {

// Frees a block and gives idle memory back as soon as it hears of the first mapping.
struct Dropper {
  void* block = nullptr;
  static void drop(void* context, const pyalloc_mapping_event* event) {
    auto& self = *static_cast<Dropper*>(context);
    if (event->kind != PYALLOC_MAPPED || self.block == nullptr) return;
    CHECK_EQ(deallocate(self.block), PYALLOC_OK);
    self.block = nullptr;
    pyalloc_trim(0, nullptr);
  }
};

}  // namespace

// What wakes is told of run by run: memory of the second, and of the first itself, is given back while the first is told of.
TEST(what_goes_while_it_is_told_of_is_still_told_in_turn) {
  for (int dropped : {0, 2}) {
    Gpu gpu("memory:256MiB");
    const int pools[] = {PYALLOC_POOL_WEIGHTS};
    Dropper dropper;
    CHECK_EQ(pyalloc_add_mapping_observer(&Dropper::drop, &dropper, PYALLOC_MAPPED), PYALLOC_OK);
    Witness witness;
    void* blocks[3];
    for (void*& block : blocks) block = in_pool(PYALLOC_POOL_WEIGHTS, 20 * kMiB);
    CHECK_EQ(pyalloc_sleep(pools, nullptr, 1, nullptr, nullptr, nullptr), PYALLOC_OK);
    deallocate(blocks[1]);
    dropper.block = blocks[dropped];
    CHECK_EQ(pyalloc_wake(pools, 1, nullptr, nullptr), PYALLOC_OK);
    CHECK(dropper.block == nullptr && valid());
    CHECK(witness.knows(blocks[2 - dropped], 20 * kMiB));
    deallocate(blocks[2 - dropped]);
    trim();
    CHECK_EQ(witness.still_mapped(), int64_t{0});
    CHECK_EQ(simgpu_used(0), uint64_t{0});
    CHECK_EQ(pyalloc_remove_mapping_observer(&Dropper::drop, &dropper), PYALLOC_OK);
  }
}
