// For tests of the core on the simulated GPU: a Gpu is one session of simgpu and pyalloc, begun and ended by a test, which at its end
// checks that no driver rule was broken and that every byte went back. Also short forms of the C ABI's calls.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "driver/cuda_abi.h"
#include "pyalloc/pyalloc.h"
#include "simgpu.h"
#include "test_case.h"

// The driver calls a test makes itself, as a program would.
extern "C" {
pyalloc::cuda::Result cuInit(unsigned flags);
pyalloc::cuda::Result cuDevicePrimaryCtxRetain(pyalloc::cuda::Context* context, pyalloc::cuda::Device device);
pyalloc::cuda::Result cuCtxSetCurrent(pyalloc::cuda::Context context);
pyalloc::cuda::Result cuCtxSynchronize();
pyalloc::cuda::Result cuStreamCreate(pyalloc::cuda::Stream* stream, unsigned flags);
pyalloc::cuda::Result cuStreamSynchronize(pyalloc::cuda::Stream stream);
pyalloc::cuda::Result cuStreamDestroy_v2(pyalloc::cuda::Stream stream);
}

namespace test {

#if defined(__SANITIZE_THREAD__)
constexpr int kSlowdown = 10;
#elif defined(__SANITIZE_ADDRESS__)
constexpr int kSlowdown = 4;
#else
constexpr int kSlowdown = 1;
#endif

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;
constexpr size_t kGranule = 2 * kMiB;

inline std::vector<std::string> violations() {
  std::vector<std::string> all;
  for (int64_t i = 0; i < simgpu_violations(); ++i) {
    char text[1024] = "";
    if (simgpu_violation(i, text, sizeof text) == 0) break;
    all.emplace_back(text);
  }
  return all;
}

class Gpu {
 public:
  // `simulation` in simgpu's grammar (the oracle is on unless it says otherwise); `configuration` as PYALLOC_CONF, without the maintenance
  // thread unless it is asked for, so that tests decide when maintenance happens.
  explicit Gpu(const std::string& simulation, const std::string& configuration = "", int devices = 1)
      : devices_(devices) {
    CHECK_EQ(pyalloc_shutdown(), PYALLOC_OK);
    CHECK_EQ(simgpu_reset((simulation + (simulation.find("oracle:") == std::string::npos ? ",oracle:on" : "") +
                           ",devices:" + std::to_string(devices))
                              .c_str()),
             0);
    std::string text = configuration;
    if (text.find("lora_reserve:") == std::string::npos) text += text.empty() ? "lora_reserve:0" : ",lora_reserve:0";
    if (text.find("maintenance:") == std::string::npos) text += text.empty() ? "maintenance:off" : ",maintenance:off";
    CHECK_EQ(pyalloc_configure(text.c_str(), "test"), PYALLOC_OK);
    CHECK_EQ(pyalloc_init(devices), PYALLOC_OK);
    use(0);
  }
  ~Gpu() { end(); }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  void end() {
    if (ended_) return;
    ended_ = true;
    CHECK_EQ(pyalloc_shutdown(), PYALLOC_OK);
    for (int device = 0; device < devices_; ++device) CHECK_EQ(simgpu_used(device), uint64_t{0});
    check_no_violations();
  }

  void check_no_violations() {
    std::vector<std::string> all = violations();
    for (size_t i = 0; i < all.size() && i < 5; ++i) std::fprintf(stderr, "violation: %s\n", all[i].c_str());
    CHECK_EQ(all.size(), size_t{0});
    simgpu_clear_violations();
  }

  // Makes a device current for this thread, as a program that runs kernels has it.
  static void use(int device) {
    pyalloc::cuda::Context context = nullptr;
    CHECK_EQ(cuInit(0), pyalloc::cuda::kSuccess);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&context, device), pyalloc::cuda::kSuccess);
    CHECK_EQ(cuCtxSetCurrent(context), pyalloc::cuda::kSuccess);
  }

  // A stream of the program's own.
  static void* stream(int device = 0) {
    pyalloc::cuda::Stream made = nullptr;
    use(device);
    CHECK_EQ(cuStreamCreate(&made, pyalloc::cuda::kStreamNonBlocking), pyalloc::cuda::kSuccess);
    if (device != 0) use(0);
    return made;
  }

 private:
  const int devices_;
  bool ended_ = false;
};

// A block for an owned stream, as the bridge asks for it; null when refused.
inline void* allocate(size_t bytes, void* stream = nullptr, int device = 0) {
  void* pointer = nullptr;
  return pyalloc_allocate(device, stream, PYALLOC_STREAM_OWNED, bytes, &pointer) == PYALLOC_OK ? pointer : nullptr;
}

inline pyalloc_status deallocate(void* pointer) { return pyalloc_deallocate(pointer, nullptr); }

inline uint64_t address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

inline pyalloc_device_stats stats(int device = 0) {
  pyalloc_device_stats now{};
  now.size = sizeof now;
  CHECK_EQ(pyalloc_get_stats(device, &now), PYALLOC_OK);
  return now;
}

inline bool valid(int device = 0) {
  if (pyalloc_validate(device) == PYALLOC_OK) return true;
  std::fprintf(stderr, "validate: %s\n", pyalloc_last_error());
  return false;
}

inline uint64_t trim(int device = -1) {
  uint64_t released = 0;
  CHECK_EQ(pyalloc_trim(device, &released), PYALLOC_OK);
  return released;
}

// What a kernel touches of a block: all of a small one, of a larger one its ends and places between, so that gigabytes cost little.
inline std::vector<simgpu_span> places_in(const void* pointer, size_t bytes) {
  constexpr size_t kPlaces = 9, kPlace = 2 * kKiB;
  if (bytes <= 64 * kKiB) return {{address(pointer), bytes}};
  std::vector<simgpu_span> spans;
  for (size_t i = 0; i < kPlaces; ++i)
    spans.push_back({address(pointer) + (bytes - kPlace) / (kPlaces - 1) * i, kPlace});
  spans.back().address = address(pointer) + bytes - kPlace;
  return spans;
}

// A kernel on `stream` that fills the block; false when the device refused it.
inline bool fill(void* stream, const void* pointer, size_t bytes, uint8_t value) {
  std::vector<simgpu_span> spans = places_in(pointer, bytes);
  return simgpu_launch(stream, nullptr, 0, spans.data(), spans.size(), value) == 0;
}
inline bool read(void* stream, const void* pointer, size_t bytes) {
  std::vector<simgpu_span> spans = places_in(pointer, bytes);
  return simgpu_launch(stream, spans.data(), spans.size(), nullptr, 0, 0) == 0;
}

// Every byte that fill() wrote holds `value`.
inline bool holds(const void* pointer, size_t bytes, uint8_t value) {
  std::vector<uint8_t> seen;
  for (const simgpu_span& span : places_in(pointer, bytes)) {
    seen.resize(span.bytes);
    if (simgpu_read(span.address, seen.data(), span.bytes) != 0) return false;
    for (uint8_t byte : seen)
      if (byte != value) return false;
  }
  return true;
}

// A small generator, so that sequences are the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  uint64_t below(uint64_t end) { return next() % end; }
  // Sizes as programs ask for them: mostly small, some of every magnitude up to `most`.
  size_t bytes(size_t most) {
    size_t top = size_t{1} << (9 + below(20));
    if (top > most) top = most;
    return 1 + below(top);
  }

 private:
  uint64_t state_;
};

}  // namespace test
