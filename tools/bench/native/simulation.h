// The simulated GPU's controls (allocator_cpp/simgpu/simgpu.h), found among the libraries this process was started with.
//
// On a real GPU they are absent: present() is false, and whoever measures then does without a virtual clock and modelled costs.
#pragma once
#include <dlfcn.h>

#include <cstdint>

#include "simgpu/simgpu.h"

namespace bench {

struct Simulation {
#define BENCH_SIMGPU_CALLS(call)                                                                             \
  call(simgpu_set_stream_mode) call(simgpu_set_work_time) call(simgpu_launch) call(simgpu_calls)             \
      call(simgpu_calls_json) call(simgpu_charged_us) call(simgpu_set_cost_moves_clock) call(simgpu_advance) \
          call(simgpu_used) call(simgpu_violations)
#define BENCH_DECLARE(name) decltype(&::name) name = nullptr;
  BENCH_SIMGPU_CALLS(BENCH_DECLARE)
#undef BENCH_DECLARE

  Simulation() {
#define BENCH_RESOLVE(name) name = reinterpret_cast<decltype(&::name)>(dlsym(RTLD_DEFAULT, #name));
    BENCH_SIMGPU_CALLS(BENCH_RESOLVE)
#undef BENCH_RESOLVE
  }
  // False also when the libraries are of another version and lack one of the calls.
  bool present() const {
#define BENCH_CHECK(name) &&name != nullptr
    return true BENCH_SIMGPU_CALLS(BENCH_CHECK);
#undef BENCH_CHECK
  }
#undef BENCH_SIMGPU_CALLS
};

}  // namespace bench
