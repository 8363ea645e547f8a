// The functions of unsupported_entry_points.def.
#include <atomic>
#include <cstdio>

#include "abi.h"

namespace {

void say_once(std::atomic<bool>* said, const char* name, const char* purpose) {
  if (said->exchange(true)) return;
  std::fprintf(stderr, "simgpu: %s (%s) is not simulated; it returns CUDA_ERROR_NOT_SUPPORTED\n", name, purpose);
}

}  // namespace

// Called with whatever arguments the real function takes; the caller cleans up, and none is read.
#define UNSUPPORTED(name, symbol, version, purpose) \
  SIMGPU_API simgpu::Result symbol() {              \
    static std::atomic<bool> said{false};           \
    say_once(&said, #name, purpose);                \
    return simgpu::kNotSupported;                   \
  }
#include "unsupported_entry_points.def"
#undef UNSUPPORTED
