// Pools that sleep and wake at random while any driver call may fail, blocks are freed at every moment, and streams run
// behind: what was to be kept is intact, the books agree after each step, and the oracle sees no use that was not over.
#include <array>
#include <cstdlib>

#include "sleep.h"

using namespace test;
namespace cuda = pyalloc::cuda;

namespace {

constexpr pyalloc_pool_key kKey{7, 3};
constexpr size_t kPools = 4;

struct Held {
  void* at;
  size_t bytes;
  uint8_t value;
  void* stream;
  size_t pool;
  bool known;
};

class Fuzz {
 public:
  Fuzz(uint64_t seed, bool faults) : random_(seed), faults_(faults) {
    streams_ = {nullptr, Gpu::stream(), Gpu::stream()};
    pools_ = {kGeneral, kWeights, kKv, 0};
    CHECK_EQ(pyalloc_private_pool_retain(0, kKey, &pools_[3]), PYALLOC_OK);
    names_ = {kGeneral, kWeights, kKv, PYALLOC_PRIVATE_POOLS};
  }

  void step() {
    uint64_t choice = random_.below(100);
    if (choice < 40) {
      add();
    } else if (choice < 70) {
      drop();
    } else if (choice < 78) {
      fall();
    } else if (choice < 88) {
      rise();
    } else if (choice < 94) {
      simgpu_step(static_cast<int64_t>(random_.below(6)));
    } else if (choice < 97) {
      fault();
      trim();
      calm();
    } else {
      fault();
      pyalloc_maintain(0);
      calm();
    }
    CHECK(valid());
  }

  void finish() {
    if (any_asleep()) CHECK_EQ(wake(names_), PYALLOC_OK);
    asleep_ = {};
    for (Held& one : held_) check(one);
    while (!held_.empty()) drop();
    CHECK_EQ(pyalloc_private_pool_release(0, kKey), PYALLOC_OK);
    CHECK(valid());
  }

 private:
  bool any_asleep() const { return asleep_[0] || asleep_[1] || asleep_[2] || asleep_[3]; }

  void fault() {
    static const char* const calls[] =
        {"cuCtxSynchronize",  "cuMemHostAlloc", "cuStreamCreate", "cuStreamSynchronize", "cuMemcpyDtoHAsync",
         "cuMemcpyHtoDAsync", "cuMemUnmap",     "cuMemRelease",   "cuMemCreate",         "cuMemMap",
         "cuMemSetAccess",    "cuEventRecord",  "cuEventQuery",   "cuStreamWaitEvent",   "cuEventCreate"};
    for (int plans = 0; faults_ && plans < 2 && random_.below(3) != 0; ++plans) {
      const char* call = calls[random_.below(sizeof calls / sizeof calls[0])];
      int64_t times = random_.below(3) == 0 ? 0 : 1 + static_cast<int64_t>(random_.below(3));
      int64_t nth = 1 + static_cast<int64_t>(random_.below(random_.below(2) == 0 ? 4 : 20));
      CHECK_EQ(simgpu_fail(call, nth, times, random_.below(3) == 0 ? cuda::kOutOfMemory : cuda::kUnknown), 0);
    }
  }
  void calm() { simgpu_clear_faults(); }

  void* allocate_from(size_t pool, size_t bytes, void* stream) {
    void* at = nullptr;
    pyalloc_status status = pyalloc_allocate_in(0, pools_[pool], stream, PYALLOC_STREAM_OWNED, bytes, &at);
    CHECK(status == PYALLOC_OK || at == nullptr);
    return status == PYALLOC_OK ? at : nullptr;
  }

  void add() {
    size_t pool = random_.below(kPools), bytes = random_.bytes(random_.below(4) == 0 ? 12 * kMiB : 700 * kKiB);
    void* stream = streams_[random_.below(streams_.size())];
    bool calm_call = random_.below(4) != 0;
    if (!calm_call) fault();
    void* at = allocate_from(pool, bytes, stream);
    calm();
    CHECK(at == nullptr || !asleep_[pool]);
    if (at == nullptr) return;
    auto value = static_cast<uint8_t>(1 + random_.below(255));
    CHECK(fill(stream, at, bytes, value));
    held_.push_back({at, bytes, value, stream, pool, true});
  }

  void check(const Held& one) {
    if (asleep_[one.pool] || !one.known) return;
    CHECK_EQ(cuStreamSynchronize(static_cast<cuda::Stream>(one.stream)), cuda::kSuccess);
    CHECK(holds(one.at, one.bytes, one.value));
  }

  void drop() {
    if (held_.empty()) return;
    size_t index = random_.below(held_.size());
    Held one = held_[index];
    held_[index] = held_.back();
    held_.pop_back();
    if (random_.below(3) == 0) check(one);
    if (random_.below(3) == 0) {
      void* other = streams_[random_.below(streams_.size())];
      CHECK_EQ(cuStreamSynchronize(static_cast<cuda::Stream>(one.stream)), cuda::kSuccess);
      CHECK_EQ(pyalloc_record_stream(one.at, other, PYALLOC_STREAM_OWNED), PYALLOC_OK);
      if (!asleep_[one.pool]) CHECK(read(other, one.at, one.bytes));
    }
    if (random_.below(4) == 0) fault();
    CHECK_EQ(deallocate(one.at), PYALLOC_OK);
    calm();
  }

  // Functions of the user run while contents are copied: they free.
  static void hear(void* self, int, uint64_t, uint64_t) {
    auto& fuzz = *static_cast<Fuzz*>(self);
    if (fuzz.held_.empty() || fuzz.random_.below(3) != 0) return;
    Held one = fuzz.held_.back();
    fuzz.held_.pop_back();
    CHECK_EQ(deallocate(one.at), PYALLOC_OK);
  }

  std::vector<size_t> some() {
    std::vector<size_t> chosen;
    for (size_t pool = 0; pool < kPools; ++pool)
      if (random_.below(2) == 0) chosen.push_back(pool);
    return chosen;
  }

  void fall() {
    std::vector<size_t> chosen = some();
    std::vector<int> names, offload;
    std::array<bool, kPools> kept{};
    for (size_t pool : chosen) {
      names.push_back(names_[pool]);
      kept[pool] = random_.below(4) != 0;
      offload.push_back(kept[pool] ? 1 : 0);
    }
    fault();
    pyalloc_status status =
        pyalloc_sleep(names.data(), offload.data(), static_cast<int>(names.size()), hear, this, nullptr);
    calm();
    for (size_t pool : chosen) {
      if (asleep_[pool]) continue;
      bool now = status == PYALLOC_OK || sleeps(pool);
      for (Held& one : held_)
        if (one.pool == pool && now && !kept[pool]) one.known = false;
      asleep_[pool] = now;
    }
  }

  // Of a pool that a failed call may have left in either state.
  bool sleeps(size_t pool) {
    void* at = allocate_from(pool, 512, nullptr);
    if (at != nullptr) CHECK_EQ(deallocate(at), PYALLOC_OK);
    return at == nullptr && says("sleeps on device");
  }

  void rise() {
    std::vector<size_t> chosen = some();
    std::vector<int> names;
    for (size_t pool : chosen) names.push_back(names_[pool]);
    fault();
    pyalloc_status status = pyalloc_wake(names.data(), static_cast<int>(names.size()), hear, this);
    calm();
    for (size_t pool : chosen) {
      if (status == PYALLOC_OK) asleep_[pool] = false;
      CHECK_EQ(sleeps(pool), bool{asleep_[pool]});
    }
    if (status != PYALLOC_OK) return;
    for (const Held& one : held_)
      if (random_.below(4) == 0) check(one);
  }

  Random random_;
  const bool faults_;
  std::vector<void*> streams_;
  std::vector<int> pools_, names_;
  std::array<bool, kPools> asleep_{};
  std::vector<Held> held_;
};

void observe(void*, const pyalloc_mapping_event*) {}

void run(uint64_t seed, int steps, bool faults) {
  int failures = test::failures();
  bool observed = seed % 4 == 3;
  Gpu gpu("memory:192MiB,streams:deferred,seed:" + std::to_string(seed), seed % 3 == 0 ? "slack:0" : "");
  if (observed)
    CHECK_EQ(pyalloc_add_mapping_observer(observe, nullptr, PYALLOC_MAPPED | PYALLOC_UNMAPPING), PYALLOC_OK);
  {
    Fuzz fuzz(seed, faults);
    for (int step = 0; step < steps && test::failures() == failures; ++step) {
      fuzz.step();
      gpu.check_no_violations();
      if (test::failures() != failures) std::fprintf(stderr, "  ... step %d\n", step);
    }
    fuzz.finish();
  }
  if (observed) CHECK_EQ(pyalloc_remove_mapping_observer(observe, nullptr), PYALLOC_OK);
  gpu.end();
  if (test::failures() != failures) std::fprintf(stderr, "  ... seed %llu\n", static_cast<unsigned long long>(seed));
}

uint64_t number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

TEST(sleep_and_wake_at_random_while_the_driver_fails) {
  uint64_t first = number("SLEEP_FUZZ_SEED", 1), seeds = number("SLEEP_FUZZ_SEEDS", 60 / kSlowdown);
  for (uint64_t seed = first; seed < first + seeds && test::failures() < 20; ++seed) run(seed, 400, seed % 5 != 0);
}
