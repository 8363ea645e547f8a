// The C ABI of the replayer. tools/bench/benchlib/replay_job.py declares the same structs for ctypes: change both together.
#pragma once
#include <cstddef>
#include <cstdint>

enum bench_op : uint8_t { BENCH_ALLOC = 0, BENCH_FREE = 1, BENCH_RECORD = 2, BENCH_WAIT = 3 };

struct bench_row {
  double time_us;  // trace time, never falling
  uint64_t bytes;  // alloc: as requested
  uint32_t block;  // dense, from 0; wait: the other stream
  uint16_t
      stream;  // dense, 0 is the default stream. record: the stream that also uses the block; wait: the one that waits
  uint8_t op;  // bench_op
  uint8_t pool;  // 0: the default pool
};

struct bench_replay_options {
  const bench_row* rows;
  uint64_t row_count;
  uint32_t blocks, streams, pools;  // one more than the largest index used
  int32_t modelled;  // 1: uses, trace time and costs on the simulated GPU; 0: allocator calls only, for timing
  double work_us;    // each use is finished this much trace time after it was enqueued
  int32_t (*maintain)(int32_t device);  // the allocator's background work, every maintain_us of trace time; may be null
  double maintain_us;
  int32_t (*validate)(int32_t device);  // the allocator's own check, every validate_rows rows; may be null
  uint64_t validate_rows;
  uint64_t split_row;    // the entry points' counts are also taken before this row; row_count or more: never
  uint64_t sample_rows;  // a sample of live and reserved bytes every so many rows; 0: none
  uint64_t* samples;     // room for row_count / sample_rows + 1 pairs: most live since the last sample, reserved
  // Enter and leave a purpose pool of pyalloc's: rows' pools are such then. Null: they are torch's private pools.
  int32_t (*push_pool)(int32_t pool);
  int32_t (*pop_pool)(int32_t pool);
  float* costs_us;  // room for row_count modelled costs; null: not wanted
};

struct bench_replay_result {
  int64_t failed_row;  // -1: completed
  int32_t out_of_memory;
  int32_t pools_honoured;
  uint64_t rows_done, live_peak, reserved_peak, allocator_reserved_peak;
  int64_t retries, out_of_memories;
  double loop_ns;                  // the whole loop; meaningful when not modelled
  double path_us, background_us;   // modelled cost of driver calls inside allocate and free, and inside maintain
  uint64_t path_unmaps;            // cuMemUnmap calls inside allocate and free
  int64_t own_records, own_waits;  // event calls of the replayer itself, for `wait` rows
  int64_t violations;
  uint64_t validations;
  uint64_t sample_count;
  char calls_at_split[4096];  // JSON
  char error[1024];
};

// Replays on device 0 of the current process. 0, or -1 with a message in `error` when the replay itself could not run.
extern "C" int bench_replay(const bench_replay_options* options, bench_replay_result* result);
