// The C ABI of the packing model; rows as the replayer's. tools/bench/benchlib/packing_job.py declares it for ctypes.
#pragma once
#include "replay.h"

struct bench_packing_result {
  uint64_t live_peak, reserved_peak;
  uint64_t created, stolen;  // granules
  uint64_t runs;             // contiguous map operations
};

// What sharing granules between blocks, and moving idle ones, can reach on a trace with `slack` over the high-water of live bytes.
extern "C" int bench_packing_model(const bench_row* rows, uint64_t row_count, uint32_t blocks, uint32_t streams,
                                   double slack, bench_packing_result* result);
