/* Control of the simulated GPU: everything a test or a benchmark sets or reads that a real driver has no call for.
 *
 * libcuda.so.1 (built from this folder) answers NVIDIA's driver API and exports these beside it. Plain C, so that Python reaches
 * them through ctypes (pyalloc/simgpu.py). Strings returned are static or copied into the caller's buffer; all calls are thread-safe.
 *
 * The simulation is configured once, at load, from the environment variable PYALLOC_SIMGPU:
 *   "memory:80GiB,devices:1,streams:immediate,seed:1,oracle:off,vmm:on,session:NAME"
 * memory   capacity of each device                 devices  1 to 8
 * streams  immediate: work completes as it is enqueued; deferred: it completes on query (seeded, in part), synchronise or step;
 *          timed: it completes after the virtual time set with simgpu_set_work_time
 * oracle   on: blocks noted by an allocator are checked for stream order at unmap, release and reuse
 * vmm      off: the devices say that they have no virtual memory management, as old ones do
 * session  names the shared state, so that child processes share the devices' capacity; made by the first process
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 0 when this libcuda.so.1 is simgpu and usable; else a message in simgpu_last_error(). */
int simgpu_present(void);
const char* simgpu_last_error(void);

/* Drops every device, stream, handle and record of this process and starts again with this configuration (same grammar as the
 * environment variable; null: as at load). For tests; nothing of the old state may be in use. 0 or -1. */
int simgpu_reset(const char* configuration);

/* --- streams --- */
int simgpu_set_stream_mode(const char* mode, uint64_t seed); /* "immediate", "deferred" or "timed" */
void simgpu_set_work_time(double us_per_operation); /* timed: virtual microseconds one operation takes on its stream */
/* Completes up to n queued operations (-1: all), chosen by the seed among streams that can go on. Returns how many completed. */
int64_t simgpu_step(int64_t n);
int64_t simgpu_pending(void); /* operations enqueued and not yet complete, all devices */

/* The context current on this thread, or 0: read without the driver's lock, not counted, never failing. */
unsigned long long simgpu_thread_context(void);

/* --- a kernel that says what it touches: checked for access and order, fills its writes with `value` --- */
typedef struct simgpu_span {
  uint64_t address;
  uint64_t bytes;
} simgpu_span;
int simgpu_launch(void* stream, const simgpu_span* reads, size_t n_reads, const simgpu_span* writes, size_t n_writes,
                  uint8_t value);

/* --- calls and costs --- */
int64_t simgpu_calls(
    const char* entry_point); /* since load or the last simgpu_reset_calls; -1: unknown name; null: all cuMem* calls */
void simgpu_reset_calls(void);
/* Writes {"cuMemMap": 12, ...} (entry points called at least once) and returns the length it needs. */
size_t simgpu_calls_json(char* buffer, size_t capacity);
/* Virtual microseconds charged per call, per mapping and per MiB. Returns -1 for an unknown entry point. */
int simgpu_set_cost(const char* entry_point, double per_call, double per_mapping, double per_mib);
double simgpu_clock_us(void); /* the virtual clock: costs charged plus simgpu_advance */
double simgpu_charged_us(
    void); /* costs charged since load; unlike the clock it does not move with waits and simgpu_advance */
/* 0: costs are charged but leave the clock alone, which then moves with simgpu_advance and waits only. 1, the default: they move it. */
void simgpu_set_cost_moves_clock(int on);
void simgpu_advance(double us);

/* --- faults --- */
/* The nth call (1 is the next) of entry_point, and the times-1 calls after it, return `error` and do nothing. times 0: for ever. */
int simgpu_fail(const char* entry_point, int64_t nth, int64_t times, int error);
void simgpu_clear_faults(void);

/* --- rules broken --- */
int64_t simgpu_violations(void);
/* Text of violation i (oldest first) into buffer; returns the length it needs, 0 when there is none. */
size_t simgpu_violation(int64_t i, char* buffer, size_t capacity);
void simgpu_clear_violations(void);

/* --- memory --- */
int simgpu_set_capacity(int device, uint64_t bytes);
/* A container's limit for all processes of the session, 0 for none: allocations beyond it are refused. told: cuMemGetInfo shows it;
 * else it shows the whole device, as cuDeviceTotalMem and NVML always do. */
int simgpu_set_limit(int device, uint64_t bytes, int told);
/* Whether devices can reach each other's memory (1, the default); with 0 only peer copies between them work. Before they do. */
void simgpu_set_peers(int on);
uint64_t simgpu_used(int device); /* physical bytes in use, all processes of the session */
/* What a monitoring library (NVML) reads; none of these needs cuInit, and CUDA_VISIBLE_DEVICES does not hide devices from them. */
int simgpu_device_count(void);
uint64_t simgpu_capacity(int device);
/* The processes that hold memory of a device: writes up to `capacity` pids and bytes, returns how many there are. */
size_t simgpu_processes(int device, int* pids, uint64_t* bytes, size_t capacity);
/* Bytes behind a device address, as the device sees them (for tests). 0, or -1 when not fully mapped. */
int simgpu_read(uint64_t address, void* buffer, size_t bytes);
int simgpu_write(uint64_t address, const void* buffer, size_t bytes);
/* Sparse memory: host bytes really held for device memory. */
uint64_t simgpu_resident(void);

/* --- the ordering oracle --- (called by an allocator through its driver table; null on a real driver) */
int simgpu_oracle_enabled(void);
void simgpu_oracle_alloc(uint64_t address, size_t bytes, void* stream); /* block handed out for use on stream */
void simgpu_oracle_free(uint64_t address, size_t bytes,
                        void* stream); /* last use on stream is enqueued before this call */
void simgpu_oracle_record(uint64_t address, size_t bytes, void* stream); /* also used on stream up to the free */
void simgpu_oracle_sleep(uint64_t address, size_t bytes,
                         int asleep); /* unmapped there on purpose, live blocks and all; 0: no longer */

#ifdef __cplusplus
}
#endif
