/* pyalloc's C ABI: all that Python, the torch bridge and plain registration may call.
 *
 * Rules for every call: no exception leaves the library, it never exits or aborts for a fault of the caller or of the world; a call
 * that fails changes nothing and leaves a text in pyalloc_last_error() (per thread). Callbacks run with no lock held. Every struct
 * that may grow starts with `size` (set by the caller to sizeof) so that a newer library serves an older caller.
 * Bytes unless a name says otherwise; `stream` is a CUstream / cudaStream_t; `device` is the ordinal torch uses.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PYALLOC_ABI_VERSION 1

typedef enum pyalloc_status {
  PYALLOC_OK = 0,
  PYALLOC_OUT_OF_MEMORY = 1,    /* the ladder ended; the message is ready for torch.OutOfMemoryError */
  PYALLOC_INVALID_ARGUMENT = 2, /* a value the caller passed; names it and what was expected */
  PYALLOC_UNKNOWN_POINTER = 3,  /* not the start of a live block of ours: foreign, or already freed */
  PYALLOC_DRIVER_ERROR = 4,     /* a driver call failed; names the call and the driver's error */
  PYALLOC_NO_DRIVER = 5,        /* no libcuda.so.1, a required symbol missing, or a driver too old */
  PYALLOC_NO_VMM = 6,           /* the device has no virtual memory management */
  PYALLOC_BAD_CONFIG = 7,       /* all errors of the configuration, one a line */
  PYALLOC_WRONG_STATE = 8       /* not initialised, already initialised, exiting, or a forked child */
} pyalloc_status;

typedef enum pyalloc_stream_flags {
  PYALLOC_STREAM_OWNED =
      1 /* torch keeps this stream for ever: one lazy event may cover many frees. Others are stamped at free. */
} pyalloc_stream_flags;

uint32_t pyalloc_abi_version(void);
const char* pyalloc_version(void);
const char* pyalloc_last_error(void);

/* --- configuration: "key:value,key:value"; before pyalloc_init --- */
/* Replaces the whole configuration by the defaults plus `text` (null: plus the environment's PYALLOC_CONF). `origin` is shown by
 * pyalloc_config_json ("environment", "argument"). PYALLOC_BAD_CONFIG lists every error and changes nothing.
 * While a device heap is open only an equal configuration is accepted (PYALLOC_WRONG_STATE otherwise). */
pyalloc_status pyalloc_configure(const char* text, const char* origin);
/* [{"key","value","default","origin","type","unit","expected","help"}...]; returns the length it needs (without the final 0). */
size_t pyalloc_config_json(char* buffer, size_t capacity);

/* Bytes of a size written as in an option: "1048576", "512MiB", "1.5GB". */
pyalloc_status pyalloc_parse_size(const char* text, uint64_t* bytes);

/* --- life cycle --- */
/* Opens the driver library and resolves every entry point: no cuInit, no context. */
pyalloc_status pyalloc_probe(void);
/* {"library", "simulated", "driver_version", "missing": [...]}; returns the length it needs. Works whether or not probe succeeded. */
size_t pyalloc_driver_json(char* buffer, size_t capacity);
/* Prepares device_count device heaps. No context is created before a device's first allocation. Repeating it is harmless. */
pyalloc_status pyalloc_init(int device_count);
int pyalloc_device_count(void); /* 0 before pyalloc_init */
/* Closes every device heap and returns all memory; blocks still live become invalid. For tests and embedders; pyalloc_init may follow. */
pyalloc_status pyalloc_shutdown(void);

/* --- blocks --- */
/* A block of at least `bytes`, aligned to 512 B, for use on `stream`. bytes 0 gives a null pointer and PYALLOC_OK. */
pyalloc_status pyalloc_allocate(int device, void* stream, uint32_t stream_flags, size_t bytes, void** pointer);
/* A block at this address: of memory that a block has left, on its stream, and that nothing has taken since. Nothing is moved for it, and
 * nobody asked to make room; PYALLOC_INVALID_ARGUMENT where not all of it is free. */
pyalloc_status pyalloc_allocate_at(int device, void* stream, uint32_t stream_flags, size_t bytes, void* address);
typedef struct pyalloc_freed {
  int device;
  void* stream;
  size_t requested;
  size_t allocated;
} pyalloc_freed;
/* Frees a block; `freed` (may be null) receives what it was. Null pointers are ignored. Safe from any thread. */
pyalloc_status pyalloc_deallocate(void* pointer, pyalloc_freed* freed);
/* The block is also used on `stream`: after its free it is not reused until that stream has passed the free. */
pyalloc_status pyalloc_record_stream(void* pointer, void* stream, uint32_t stream_flags);
typedef struct pyalloc_block_info {
  uint32_t size;
  int device;
  void* block; /* start of the block that contains the address */
  void* stream;
  size_t requested;
  size_t allocated;
  void* segment; /* start and bytes of the mapped run around it; no bytes while its pool sleeps */
  size_t segment_bytes;
} pyalloc_block_info;
pyalloc_status pyalloc_find_block(const void* address, pyalloc_block_info* info);
/* Lets `device` read and write the memory of `peer`: every mapping there, now and later. Repeating it is harmless. */
pyalloc_status pyalloc_enable_peer_access(int device, int peer);

/* --- limits and returning memory --- */
/* Gives idle memory back to the driver; device -1: all. `released` (may be null) receives the bytes. */
pyalloc_status pyalloc_trim(int device, uint64_t* released);
pyalloc_status pyalloc_set_memory_fraction(int device, double fraction); /* of the device's total; 0 to 1 */
pyalloc_status pyalloc_get_memory_fraction(int device, double* fraction);
pyalloc_status pyalloc_set_limit(int device, uint64_t bytes); /* absolute; 0: none */
/* One round of the maintenance thread's work now: undo old mappings that are due, decay idle memory. */
pyalloc_status pyalloc_maintain(int device);

/* --- statistics --- */
/* One number with its history, as torch's Stat: peak since the last peak reset, allocated and freed since the last accumulated reset. */
typedef struct pyalloc_stat {
  int64_t current, peak, allocated, freed;
} pyalloc_stat;
enum {
  PYALLOC_KIND_ALL = 0,
  PYALLOC_KIND_SMALL = 1,
  PYALLOC_KIND_LARGE = 2,
  PYALLOC_KINDS = 3
}; /* large: over 1 MiB */
typedef struct pyalloc_device_stats {
  uint32_t size;
  uint32_t version;
#define PYALLOC_STAT_GROUP(name, unit, help) pyalloc_stat name[PYALLOC_KINDS];
#define PYALLOC_STAT_VALUE(name, kind, unit, help) int64_t name;
#include "pyalloc/stat_fields.def"
#undef PYALLOC_STAT_GROUP
#undef PYALLOC_STAT_VALUE
} pyalloc_device_stats;
/* Exact, and cheap (sums a counter block per stream). Zeros before the device's first allocation. */
pyalloc_status pyalloc_get_stats(int device, pyalloc_device_stats* stats);
pyalloc_status pyalloc_reset_peak_stats(int device);
pyalloc_status pyalloc_reset_accumulated_stats(int device);
/* Bytes of the largest contiguous free mapped range; walks the heap. */
pyalloc_status pyalloc_largest_free(int device, uint64_t* bytes);
/* [{"name","group","kind","unit","help"}...]: the table behind pyalloc_device_stats, in struct order. */
size_t pyalloc_stat_fields_json(char* buffer, size_t capacity);

/* --- pools: purposes whose memory never shares a granule --- */
/* The pools that always exist, by id. */
enum {
  PYALLOC_POOL_GENERAL = 0,
  PYALLOC_POOL_WEIGHTS = 1,
  PYALLOC_POOL_KV = 2,
  PYALLOC_POOL_WORKSPACE = 3,
  PYALLOC_POOL_LORA = 4
};
typedef struct pyalloc_pool_stats {
  uint32_t size;
  uint32_t version;
#define PYALLOC_POOL_FIELD(name, kind, unit, help) int64_t name;
#include "pyalloc/pool_fields.def"
#undef PYALLOC_POOL_FIELD
} pyalloc_pool_stats;
/* The id of a named pool. create: made if there is none (up to 64 pools a process; lower-case names of up to 31 letters, digits and
 * underscores). A pool stays for the process's life. */
pyalloc_status pyalloc_find_pool(const char* name, int create, int* pool);
/* The same, made with the layout of pool `like` (-1: any), and with slabs of `slab_bytes` for its blocks from kv_large_threshold (0: 4 MiB)
 * to that size: 4, 8, 16 or 32 MiB, 0 for none, UINT64_MAX for those of `like`. contiguous: instead, every block in memory of one handle, those of
 * 2 MiB and more in one of their own. Refused for a pool that exists with another layout. */
pyalloc_status pyalloc_create_pool(const char* name, int like, uint64_t slab_bytes, int contiguous, int* pool);
int pyalloc_pool_count(void);
const char* pyalloc_pool_name(int pool); /* null: no such pool */
/* Blocks that this thread allocates from now on go to `pool`, until the matching pop. */
pyalloc_status pyalloc_push_pool(int pool);
/* The same for code that guesses a purpose. 1: pushed, pop it. 0, and nothing happened: inside a scope of pyalloc_push_pool, which
 * knows it; weights inside lora, since an adapter's layers are modules too. */
int pyalloc_suggest_pool(int pool);
/* PYALLOC_WRONG_STATE where another was pushed after it, which leaves it all the same, or none of the pool is open on this thread. */
pyalloc_status pyalloc_pop_pool(int pool);
int pyalloc_current_pool(void);
/* Zeros for a pool not yet used on the device. */
pyalloc_status pyalloc_get_pool_stats(int device, int pool, pyalloc_pool_stats* stats);
pyalloc_status pyalloc_reset_pool_peak(int device, int pool);
/* Refused below what the pool uses already; 0: none. Holds for a device whose heap opens later as well. */
pyalloc_status pyalloc_set_pool_limit(int device, int pool, uint64_t bytes);
/* Maps `bytes` more for the lora pool ahead of a load, through the ladder, all or nothing; it stays until the next outermost scope of
 * the lora pool ends on any thread, or the next call, also one that fails; 0 only ends it. */
pyalloc_status pyalloc_lora_prepare(int device, uint64_t bytes);
/* {"bytes asked for": blocks...}: what outlived the step (outermost scope of the workspace pool on its thread) it was allocated in,
 * since the beginning. After 256 sizes of a stream the others are counted together as "0". */
size_t pyalloc_escapes_json(int device, char* buffer, size_t capacity);
/* The device's whole account, of one moment: `ledger`, the figures of the first `pool_count` pools, by id, in `pools` (null when
 * pool_count is 0), and those of all private pools added up in `private_pools` (or null), each with its size set. The largest free runs
 * of private pools are those of one; their peak is PYALLOC_PAGE_UNKNOWN, as they were not at one time. Zeros, but for pool limits, before
 * the device's first allocation. */
typedef struct pyalloc_ledger {
  uint32_t size;
  uint32_t version;
#define PYALLOC_LEDGER_FIELD(name, unit, help) int64_t name;
#include "pyalloc/ledger_fields.def"
#undef PYALLOC_LEDGER_FIELD
} pyalloc_ledger;
pyalloc_status pyalloc_get_ledger(int device, pyalloc_ledger* ledger, pyalloc_pool_stats* pools, int pool_count,
                                  pyalloc_pool_stats* private_pools);
/* [{"name","unit","help"}...] of pyalloc_ledger, in struct order. */
size_t pyalloc_ledger_fields_json(char* buffer, size_t capacity);
/* [{"name","unit","help"}...] of pyalloc_pool_stats, in struct order. */
size_t pyalloc_pool_fields_json(char* buffer, size_t capacity);

/* --- private pools: torch's MemPool and CUDA graphs; torch names one by a pair of numbers --- */
typedef struct pyalloc_pool_key {
  uint64_t first, second;
} pyalloc_pool_key;
/* Makes the pool on the device with one use, or counts one more; `pool` (may be null) receives its number there, for
 * pyalloc_allocate_in. While it is in use, its memory serves no other pool; what a CUDA graph was captured in stays where it is mapped. */
pyalloc_status pyalloc_private_pool_retain(int device, pyalloc_pool_key key, int* pool);
/* One use less. After the last, its blocks stay valid, its number may become another pool's, and its free memory is as any. */
pyalloc_status pyalloc_private_pool_release(int device, pyalloc_pool_key key);
pyalloc_status pyalloc_private_pool_uses(int device, pyalloc_pool_key key, int* uses); /* 0: there is none */
/* lends: before other pools' requests are refused, the pool's free memory serves them. Not once a graph was captured in it. */
pyalloc_status pyalloc_private_pool_lend(int device, pyalloc_pool_key key, int lends);
/* Gives back what no block of the pool needs, after a wait; nothing while a captured graph may need it. `released` may be null. */
pyalloc_status pyalloc_private_pool_trim(int device, pyalloc_pool_key key, uint64_t* released);
/* As pyalloc_allocate, in a pool by its number (a named one's id, or what _retain gave), whatever scopes are open. */
pyalloc_status pyalloc_allocate_in(int device, int pool, void* stream, uint32_t stream_flags, size_t bytes,
                                   void** pointer);
/* A stream that may be captured: from now on it is known, and nothing is unmapped while it is. */
pyalloc_status pyalloc_note_stream(int device, void* stream, uint32_t stream_flags);
typedef struct pyalloc_private_pool {
  pyalloc_pool_key key;
  int uses;     /* 0: gone, but for its blocks and figures */
  int captured; /* a CUDA graph was captured in it */
  pyalloc_stat reserved_bytes[PYALLOC_KINDS];
} pyalloc_private_pool;
typedef void (*pyalloc_private_pool_fn)(void* context, const pyalloc_private_pool* pool);
/* Each pool of the device, also those gone since the last reset of peaks or sums, as torch keeps them. No lock is held. */
pyalloc_status pyalloc_private_pools(int device, void* context, pyalloc_private_pool_fn fn);

/* --- tags: who pays for what --- */
typedef struct pyalloc_bill {
  uint32_t size;
  uint32_t version;
#define PYALLOC_TAG_FIELD(name, unit, help) int64_t name;
#include "pyalloc/tag_fields.def"
#undef PYALLOC_TAG_FIELD
} pyalloc_bill;
/* What this thread allocates from now on is charged to the tag, until the matching pop; the innermost tag alone pays. A name is 1 to
 * 255 bytes. A scope that its thread never leaves ends with the thread. */
pyalloc_status pyalloc_push_tag(const char* name, uint32_t* tag);
pyalloc_status pyalloc_pop_tag(uint32_t tag); /* as pyalloc_pop_pool */
/* Of all devices together. A finished tag (no scope, no block) is known until thousands of others have finished after it. */
pyalloc_status pyalloc_get_bill(const char* name, pyalloc_bill* bill);
size_t pyalloc_bills_json(char* buffer, size_t capacity); /* [{"tag": name, figure: value...}...], oldest first */
/* The name of a tag that a block view carries; empty for one that is no longer known. Returns the length it needs. */
size_t pyalloc_tag_name(uint32_t tag, char* buffer, size_t capacity);
/* [{"name","unit","help"}...] of pyalloc_bill, in struct order. */
size_t pyalloc_tag_fields_json(char* buffer, size_t capacity);

/* --- snapshot: segments in address order, each followed by its blocks without gaps --- */
typedef enum pyalloc_block_state {
  PYALLOC_BLOCK_LIVE = 0,
  PYALLOC_BLOCK_PENDING = 1,
  PYALLOC_BLOCK_FREE = 2
} pyalloc_block_state;
typedef struct pyalloc_segment_view {
  int device;
  int large; /* holds blocks over 1 MiB */
  const char* pool;
  void* address;
  size_t bytes;
  size_t allocated, active, requested;
  void* stream;         /* whose blocks they are; null where blocks of all streams lie. A segment keeps it for life. */
  pyalloc_pool_key key; /* of a private pool; zeros */
} pyalloc_segment_view;
typedef struct pyalloc_block_view {
  void* address;
  size_t bytes;
  size_t requested;
  pyalloc_block_state state;
  void* stream;
  uint32_t tag; /* who pays for it (pyalloc_tag_name), or 0 */
} pyalloc_block_view;
typedef void (*pyalloc_segment_fn)(void* context, const pyalloc_segment_view* segment);
typedef void (*pyalloc_block_fn)(void* context, const pyalloc_block_view* block);
/* Walks the heap (copies it under the lock, calls back with none held). */
pyalloc_status pyalloc_snapshot(int device, void* context, pyalloc_segment_fn segment, pyalloc_block_fn block);
/* The same as rows, for callers to whom a call for each block is slow: every segment, and the blocks of all of them one after
 * the other. */
typedef struct pyalloc_segment_row {
#define PYALLOC_SEGMENT_FIELD(name, unit, help) int64_t name;
#define PYALLOC_BLOCK_FIELD(name, unit, help)
#include "pyalloc/snapshot_fields.def"
#undef PYALLOC_SEGMENT_FIELD
#undef PYALLOC_BLOCK_FIELD
} pyalloc_segment_row;
typedef struct pyalloc_block_row {
#define PYALLOC_SEGMENT_FIELD(name, unit, help)
#define PYALLOC_BLOCK_FIELD(name, unit, help) int64_t name;
#include "pyalloc/snapshot_fields.def"
#undef PYALLOC_SEGMENT_FIELD
#undef PYALLOC_BLOCK_FIELD
} pyalloc_block_row;
/* *segment_count and *block_count hold how many rows there is room for (0: the array may be null), and receive how many there are;
 * where that is more, no row of either is written, and the caller tries again with more room. */
pyalloc_status pyalloc_snapshot_rows(int device, pyalloc_segment_row* segments, size_t* segment_count,
                                     pyalloc_block_row* blocks, size_t* block_count);
/* {"segment": [{"name","unit","help"}...], "block": [...]}: the columns of the rows, in struct order. */
size_t pyalloc_snapshot_fields_json(char* buffer, size_t capacity);

/* --- checkpoints of private pools, for torch's graph trees --- */
/* The pool's live blocks, in address order, with no lock held. */
pyalloc_status pyalloc_private_pool_blocks(int device, pyalloc_pool_key key, void* context, pyalloc_block_fn block);
typedef struct pyalloc_checkpoint pyalloc_checkpoint;
/* Which blocks are live in the pool, to be dropped with _drop. Refused while freed blocks of the pool wait for a stream that is captured.
 * From then on the pool's memory stays where it is mapped. */
pyalloc_status pyalloc_checkpoint_take(int device, pyalloc_pool_key key, pyalloc_checkpoint** made);
void pyalloc_checkpoint_drop(pyalloc_checkpoint* checkpoint);
/* Frees every live block of the pool and allocates those of the checkpoint, at the same addresses and sizes; `freed` and `allocated`
 * (may be null) are told each block, some of both. Nobody else may use the pool meanwhile. Refused once the pool was given up. */
pyalloc_status pyalloc_checkpoint_restore(const pyalloc_checkpoint* checkpoint, void* context, pyalloc_block_fn freed,
                                          pyalloc_block_fn allocated);

/* --- one address: what allocation history asks of each block --- */
typedef struct pyalloc_owner {
  int device;
  int pool;
  pyalloc_pool_key key; /* of a private pool; zeros */
  void* stream;         /* whose blocks alone lie in that address space; null: blocks of all streams */
} pyalloc_owner;
/* Whose address space an address lies in, mapped or not. PYALLOC_UNKNOWN_POINTER for nobody's, and where caching is off. */
pyalloc_status pyalloc_owner_of(const void* address, pyalloc_owner* owner);
/* The block that starts at `address`, live or freed and waiting for an event; `owner` may be null. Constant time, where
 * pyalloc_find_block walks the segment. */
pyalloc_status pyalloc_block_at(const void* address, pyalloc_block_view* block, pyalloc_owner* owner);

/* --- when memory runs out --- */
/* Called on the ladder with no lock held, highest priority first, until one suffices; returns bytes freed: 0 for nothing,
 * PYALLOC_FREED_UNKNOWN for an unknown amount. torch's registered callbacks go in with the priority PYALLOC_TORCH_CALLBACKS, above all
 * others, and are a rung of their own. */
#define PYALLOC_TORCH_CALLBACKS INT32_MAX
#define PYALLOC_FREED_UNKNOWN UINT64_MAX
typedef uint64_t (*pyalloc_reclaim_fn)(void* context, int device, size_t bytes);
pyalloc_status pyalloc_add_reclaimer(pyalloc_reclaim_fn fn, void* context, int priority);
/* No call of it begins from then on; another thread may still be in one. */
pyalloc_status pyalloc_remove_reclaimer(pyalloc_reclaim_fn fn, void* context);
/* Waits until no other thread is in a reclaimer; PYALLOC_WRONG_STATE where one still is after so long. For languages whose runtime ends before
 * the process does. */
pyalloc_status pyalloc_await_reclaimers(int64_t milliseconds);
/* {"counts": {"capacity", "limit", "fragmentation", "pinned"}, "last": [{"unix_ms", "device", "pool", "bytes", "reason", "freed", "message"}...]}:
 * the last refusals, oldest first, and how many there were of each kind; "freed" has the bytes that each rung gave. Returns the length it
 * needs. */
size_t pyalloc_oom_json(char* buffer, size_t capacity);
/* Told of every out-of-memory before it is returned: bytes asked, device total and free, and whether a limit of ours refused it. */
typedef void (*pyalloc_oom_fn)(void* context, int device, size_t bytes, size_t device_total, size_t device_free,
                               int rejected_by_limit);
pyalloc_status pyalloc_add_oom_observer(pyalloc_oom_fn fn, void* context);

/* --- mappings: who is told that addresses get memory or lose it --- */
typedef enum pyalloc_mapping_kind {
  PYALLOC_MAPPED = 1,   /* before any block there is handed out */
  PYALLOC_UNMAPPING = 2 /* before the run is unmapped; nothing lies there until it is */
} pyalloc_mapping_kind;
typedef struct pyalloc_mapping_event {
  uint32_t size;
  pyalloc_mapping_kind kind;
  int device;
  int pool;
  void* address; /* of a run of whole granules */
  size_t bytes;
} pyalloc_mapping_event;
typedef void (*pyalloc_mapping_fn)(void* context, const pyalloc_mapping_event* event);
/* Calls fn for the kinds asked for (one, or both added). For every address they take turns; what was mapped before fn came is told only
 * when it goes. Memory that moves is told of at its new address at once, at its old one when that mapping is undone, which is later. fn
 * runs on any thread, the maintenance thread among them, with no lock held, and may allocate and free. Threads wait until the memory they
 * are given was told of, so fn of PYALLOC_MAPPED must not wait for another thread, nor for Python's lock. */
pyalloc_status pyalloc_add_mapping_observer(pyalloc_mapping_fn fn, void* context, uint32_t kinds);
/* Returns when no other thread is in it any more. */
pyalloc_status pyalloc_remove_mapping_observer(pyalloc_mapping_fn fn, void* context);

/* --- sleep: pools give their memory to the driver and keep their addresses and blocks --- */
/* Among the pools of these two calls: all private pools, on every device. */
#define PYALLOC_PRIVATE_POOLS (-2)
/* Hears of copies, with no lock held: bytes copied so far on the device, and of all there. */
typedef void (*pyalloc_progress_fn)(void* context, int device, uint64_t done, uint64_t total);
/* On every open device, all or nothing: waits for the device, copies the contents of the pools whose offload[i] is not 0 to pinned host
 * memory (offload null: of none), tells observers, unmaps. Of the others the contents are lost. Until they wake, blocks of the pools may
 * be freed but not used, and none is handed out (PYALLOC_WRONG_STATE). Pools that sleep already stay as they are. `released` (may be null)
 * receives the bytes the driver got. PYALLOC_OUT_OF_MEMORY: too little host memory. */
pyalloc_status pyalloc_sleep(const int* pools, const int* offload, int count, pyalloc_progress_fn progress,
                             void* context, uint64_t* released);
/* Memory at the old addresses again, through the ladder, with what was copied; all or nothing, and then to be tried again. Pools that are
 * awake stay as they are. */
pyalloc_status pyalloc_wake(const int* pools, int count, pyalloc_progress_fn progress, void* context);

/* --- the stats page (pyalloc/stats_page.h): what others of the same user may read, without this process's help --- */
/* Empty when there is none: before the first allocation, with stats_page:off, or where it cannot be made. Returns the length it needs. */
size_t pyalloc_stats_page_path(char* buffer, size_t capacity);
/* Writes it now, what takes a walk included. The maintenance thread does so by itself. */
pyalloc_status pyalloc_publish_stats_page(void);
/* The description that a page carries, as JSON, whether there is one or not: every table, each field with its kind, unit and help. */
size_t pyalloc_page_fields_json(char* buffer, size_t capacity);

/* --- memory shared with other processes that use pyalloc --- */
/* What another process opens. The same bytes for every block over the same physical memory, as long as that stays. */
#define PYALLOC_IPC_HANDLE_BYTES 88
typedef struct pyalloc_ipc_handle {
  uint32_t size;
  uint64_t offset; /* of the shared address from the base that pyalloc_ipc_open gives */
  unsigned char bytes[PYALLOC_IPC_HANDLE_BYTES];
} pyalloc_ipc_handle;
/* Shares the live block that holds `address`. Keep it alive until every receiver has closed it: until then nothing of it moves. The
 * first call starts a thread that answers receivers. */
pyalloc_status pyalloc_ipc_share(const void* address, pyalloc_ipc_handle* handle);
/* Maps a block of another process for use on `device` and its peers. Opening it again gives the same base; each open asks for one
 * close. PYALLOC_INVALID_ARGUMENT: not a handle of pyalloc. PYALLOC_DRIVER_ERROR: why the other process's memory cannot be had. */
pyalloc_status pyalloc_ipc_open(int device, const void* handle, size_t bytes, void** base);
pyalloc_status pyalloc_ipc_close(void* base); /* waits for the devices that may use it before it unmaps */

/* --- checks --- */
/* The whole-structure truth: PYALLOC_OK, or PYALLOC_DRIVER_ERROR with the first broken invariant in pyalloc_last_error(). */
pyalloc_status pyalloc_validate(int device);

/* --- plain registration: torch.cuda.memory.CUDAPluggableAllocator(path, "pyalloc_malloc", "pyalloc_free") and its hook setters --- */
void* pyalloc_malloc(ptrdiff_t bytes, int device, void* stream);
void pyalloc_free(void* pointer, ptrdiff_t bytes, int device, void* stream);
void pyalloc_plain_init(int device_count);
void pyalloc_plain_reset(void);
void pyalloc_plain_set_memory_fraction(double fraction, int device);
void* pyalloc_plain_base_alloc(void* pointer, size_t* bytes);
void pyalloc_plain_record_stream(void* pointer, void* stream);

/* --- segments: what the allocator of a torch.cuda.MemPool takes its memory from and gives it back to --- */
typedef void* (*pyalloc_malloc_fn)(ptrdiff_t bytes, int device, void* stream);
/* The function that allocates for `pool`, whatever scopes its thread is in; no tag pays. Null: there is no such pool. Torch holds its
 * lock meanwhile, so neither reclaimers nor observers are called. A segment that cannot be had is null. */
pyalloc_malloc_fn pyalloc_segment_malloc(int pool);
/* Waits for the device first, as cudaFree does: torch gives back segments that work on any stream may still use. */
void pyalloc_segment_free(void* pointer, ptrdiff_t bytes, int device, void* stream);

/* --- the table handed to the bridge, so that it links nothing --- */
typedef struct pyalloc_api {
  uint32_t size;
  uint32_t version;
  const char* (*last_error)(void);
  pyalloc_status (*init)(int);
  pyalloc_status (*allocate)(int, void*, uint32_t, size_t, void**);
  pyalloc_status (*deallocate)(void*, pyalloc_freed*);
  pyalloc_status (*record_stream)(void*, void*, uint32_t);
  pyalloc_status (*find_block)(const void*, pyalloc_block_info*);
  pyalloc_status (*trim)(int, uint64_t*);
  pyalloc_status (*set_memory_fraction)(int, double);
  pyalloc_status (*get_memory_fraction)(int, double*);
  pyalloc_status (*get_stats)(int, pyalloc_device_stats*);
  pyalloc_status (*largest_free)(int, uint64_t*);
  pyalloc_status (*reset_peak_stats)(int);
  pyalloc_status (*reset_accumulated_stats)(int);
  pyalloc_status (*snapshot)(int, void*, pyalloc_segment_fn, pyalloc_block_fn);
  pyalloc_status (*add_reclaimer)(pyalloc_reclaim_fn, void*, int);
  pyalloc_status (*add_oom_observer)(pyalloc_oom_fn, void*);
  pyalloc_status (*enable_peer_access)(int, int);
  pyalloc_status (*add_mapping_observer)(pyalloc_mapping_fn, void*, uint32_t);
  pyalloc_status (*remove_mapping_observer)(pyalloc_mapping_fn, void*);
  pyalloc_status (*allocate_in)(int, int, void*, uint32_t, size_t, void**);
  pyalloc_status (*private_pool_retain)(int, pyalloc_pool_key, int*);
  pyalloc_status (*private_pool_release)(int, pyalloc_pool_key);
  pyalloc_status (*private_pool_uses)(int, pyalloc_pool_key, int*);
  pyalloc_status (*private_pool_lend)(int, pyalloc_pool_key, int);
  pyalloc_status (*private_pool_trim)(int, pyalloc_pool_key, uint64_t*);
  pyalloc_status (*private_pools)(int, void*, pyalloc_private_pool_fn);
  pyalloc_status (*note_stream)(int, void*, uint32_t);
  pyalloc_status (*private_pool_blocks)(int, pyalloc_pool_key, void*, pyalloc_block_fn);
  pyalloc_status (*checkpoint_take)(int, pyalloc_pool_key, pyalloc_checkpoint**);
  void (*checkpoint_drop)(pyalloc_checkpoint*);
  pyalloc_status (*checkpoint_restore)(const pyalloc_checkpoint*, void*, pyalloc_block_fn, pyalloc_block_fn);
  pyalloc_status (*allocate_at)(int, void*, uint32_t, size_t, void*);
  pyalloc_status (*block_at)(const void*, pyalloc_block_view*, pyalloc_owner*);
  pyalloc_status (*owner_of)(const void*, pyalloc_owner*);
  const char* (*pool_name)(int);
  pyalloc_status (*ipc_share)(const void*, pyalloc_ipc_handle*);
  pyalloc_status (*ipc_open)(int, const void*, size_t, void**);
  pyalloc_status (*ipc_close)(void*);
} pyalloc_api;
/* Null when the library does not speak `version`. */
const pyalloc_api* pyalloc_get_api(uint32_t version);

#ifdef __cplusplus
}
#endif
