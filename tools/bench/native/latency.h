// The C ABI of the latency benchmarks: time per operation through c10's allocator interface, on device 0 of the current process.
// tools/bench/benchlib/latency_job.py declares the same functions for ctypes. Each returns 0, or -1 with a message in bench_error().
#pragma once
#include <cstdint>

extern "C" {
const char* bench_error(void);  // of the calling thread

// `pairs` times: allocate `bytes`, free it again. ns: processor time per pair.
int bench_pair(uint64_t bytes, uint64_t pairs, double* ns);

// Allocates `live` blocks of log-normal sizes; they stay until bench_clear, or to the end of the process.
int bench_fill(uint64_t live, uint64_t seed);
// `replacements` times a random one of them is freed and another allocated. ns: processor time per replacement.
int bench_replace(uint64_t replacements, double* ns);
int bench_clear(void);

// The operations of RMM's random_allocations benchmark: `count` allocations of 1 byte to max_mib MiB, each freed.
// ns: processor time per operation.
int bench_rmm(uint64_t count, uint64_t max_mib, double* ns);

// Such replacements in `threads` threads at once, each on a stream of its own, `heats` times from a common start. By heat:
// wall, the wall time divided by the replacements of all threads; waited, how long threads were ready and had no core, all
// together, as a share of the wall time.
int bench_threads(uint32_t threads, uint64_t live, uint64_t replacements, uint32_t heats, double* wall, double* waited);

// Every thread allocates, all hold, then all churn below that. exact: 1 when the allocator's peaks are those of the moment all held.
int bench_peaks(uint32_t threads, uint64_t live, uint64_t replacements, int32_t* exact);
}
