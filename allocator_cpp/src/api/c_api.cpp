// The C ABI (pyalloc.h): checks arguments, finds the heap, calls it. Nothing is decided here.
#include <cstring>
#include <string>

#include "api/registry.h"
#include "api/thread_scope.h"
#include "base/cold.h"
#include "base/json_text.h"
#include "driver/driver.h"
#include "heap/address_map.h"
#include "heap/pool_names.h"
#include "view/snapshot.h"

using namespace pyalloc;

namespace {

cuda::Stream stream_of(void* stream) { return static_cast<cuda::Stream>(stream); }
uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// Calls `use(heap)` for one open device, or for all of them when device is -1. A device without a heap has nothing to
// do.
template <class Use>
Status for_open(int device, Use&& use) {
  Registry& registry = Registry::instance();
  Status status = registry.usable();
  if (status == kOk && device != -1) status = registry.check_device(device);
  if (status != kOk) return status;
  for (DeviceHeap* heap : registry.open_heaps()) {
    if (device != -1 && heap->device() != device) continue;
    status = use(*heap);
    if (status != kOk) return status;
  }
  return kOk;
}

Status unknown_pointer(const void* pointer) {
  for (DeviceHeap* heap : Registry::instance().open_heaps()) {
    count(heap->counters().bad_frees);
    break;
  }
  return fail(PYALLOC_UNKNOWN_POINTER, "%p is not from pyalloc", pointer);
}

// For a thread that may be inside a tag's scope.
PYALLOC_COLD Status allocate_tagged(DeviceHeap& heap, PoolId pool, bool chosen, void* stream, uint32_t flags,
                                    size_t bytes, void** pointer) {
  Status status =
      Registry::allocate(heap, pool, chosen, stream_of(stream), (flags & PYALLOC_STREAM_OWNED) != 0, bytes, pointer);
  if (TagId tag = thread_scope().tag; tag != kNoTag && status == kOk)
    if (Space* space = find_space(address_of(*pointer)); space != nullptr && space->contains(address_of(*pointer)))
      heap.set_tag(*space, address_of(*pointer), tag);
  return status;
}

// Not from any space of ours.
PYALLOC_COLD Status deallocate_direct(void* pointer, pyalloc_freed* freed) {
  Status status = kOk;
  for (DeviceHeap* heap : Registry::instance().open_heaps())
    if (heap->deallocate_direct(address_of(pointer), freed, status)) return status;
  return unknown_pointer(pointer);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

uint32_t pyalloc_abi_version(void) { return PYALLOC_ABI_VERSION; }
const char* pyalloc_version(void) { return PYALLOC_VERSION; }
const char* pyalloc_last_error(void) { return last_error(); }

pyalloc_status pyalloc_configure(const char* text, const char* origin) {
  return Registry::instance().configure(text, origin);
}

size_t pyalloc_config_json(char* buffer, size_t capacity) {
  return copy(Registry::instance().config_json(), buffer, capacity);
}

pyalloc_status pyalloc_parse_size(const char* text, uint64_t* bytes) {
  if (text == nullptr || bytes == nullptr)
    return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_parse_size: an argument is null");
  return size_of(text, *bytes);
}

pyalloc_status pyalloc_probe(void) { return resolve_driver(); }

size_t pyalloc_driver_json(char* buffer, size_t capacity) {
  Status status = resolve_driver();
  const DriverFacts& facts = driver_facts();
  std::string missing;
  for (size_t start = 0; start < facts.missing.size();) {
    size_t end = std::min(facts.missing.find(' ', start), facts.missing.size());
    missing += (missing.empty() ? "" : ", ") + quoted(facts.missing.substr(start, end - start));
    start = end + 1;
  }
  std::string text = "{\"library\": " + quoted(facts.library) +
                     ", \"simulated\": " + (facts.simulated ? "true" : "false") +
                     ", \"driver_version\": " + std::to_string(facts.version) + ", \"missing\": [" + missing +
                     "], \"error\": " + (status == kOk ? "null" : quoted(last_error())) + "}";
  return copy(text, buffer, capacity);
}

pyalloc_status pyalloc_init(int device_count) { return Registry::instance().init(device_count); }
int pyalloc_device_count(void) { return Registry::instance().device_count(); }
pyalloc_status pyalloc_shutdown(void) { return Registry::instance().shutdown(); }

pyalloc_status pyalloc_allocate(int device, void* stream, uint32_t stream_flags, size_t bytes, void** pointer) {
  if (pointer == nullptr)
    return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_allocate: pointer is null; expected where to store the block");
  Status status = kOk;
  DeviceHeap* heap = Registry::heap(device, status);
  if (heap == nullptr) return status;
  if (bytes == 0) {
    *pointer = nullptr;
    return kOk;
  }
  const ThreadScope& scope = thread_scope();
  if (__builtin_expect(scope.tag != kNoTag, 0))
    return allocate_tagged(*heap, scope.pool, scope.chosen, stream, stream_flags, bytes, pointer);
  return Registry::allocate(*heap, scope.pool, scope.chosen, stream_of(stream),
                            (stream_flags & PYALLOC_STREAM_OWNED) != 0, bytes, pointer);
}

pyalloc_status pyalloc_allocate_in(int device, int pool, void* stream, uint32_t stream_flags, size_t bytes,
                                   void** pointer) {
  if (pointer == nullptr)
    return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_allocate_in: pointer is null; expected where to store the block");
  Status status = kOk;
  DeviceHeap* heap = Registry::heap(device, status);
  if (heap == nullptr) return status;
  if (pool < 0 || pool >= kPoolIds || !heap->has_pool(static_cast<PoolId>(pool)))
    return fail(PYALLOC_INVALID_ARGUMENT, "pool %d is no pool of device %d", pool, device);
  if (bytes == 0) {
    *pointer = nullptr;
    return kOk;
  }
  heap->note_capture(static_cast<PoolId>(pool), stream_of(stream));
  return allocate_tagged(*heap, static_cast<PoolId>(pool), true, stream, stream_flags, bytes, pointer);
}

pyalloc_status pyalloc_deallocate(void* pointer, pyalloc_freed* freed) {
  if (pointer == nullptr) {
    if (freed != nullptr) *freed = {};
    return kOk;
  }
  if (Registry::dead()) {  // the memory goes with the process, or was never this child's
    if (freed != nullptr) *freed = {};
    return kOk;
  }
  if (Space* space = find_space(address_of(pointer)); space != nullptr && space->contains(address_of(pointer))) {
    return space->heap().deallocate(*space, address_of(pointer), freed);
  }
  return deallocate_direct(pointer, freed);
}

pyalloc_status pyalloc_record_stream(void* pointer, void* stream, uint32_t stream_flags) {
  if (pointer == nullptr || Registry::instance().dead()) return kOk;
  Space* space = find_space(address_of(pointer));
  // Memory straight from the driver needs no record: cuMemFree waits for the device.
  if (space == nullptr || !space->contains(address_of(pointer))) return kOk;
  return space->heap().record_stream(*space, address_of(pointer), stream_of(stream),
                                     (stream_flags & PYALLOC_STREAM_OWNED) != 0);
}

pyalloc_status pyalloc_find_block(const void* address, pyalloc_block_info* info) {
  if (info == nullptr || info->size < sizeof(pyalloc_block_info))
    return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_find_block: info->size is not set to the struct's size");
  Status status = Registry::instance().usable();
  if (status != kOk) return status;
  Space* space = find_space(address_of(address));
  if (space != nullptr && space->contains(address_of(address)))
    return space->heap().find_block(*space, address_of(address), *info);
  for (DeviceHeap* heap : Registry::instance().open_heaps())
    if (heap->find_direct(address_of(address), *info)) return kOk;
  return fail(PYALLOC_UNKNOWN_POINTER, "%p is not inside a live pyalloc block", address);
}

pyalloc_status pyalloc_enable_peer_access(int device, int peer) {
  Registry& registry = Registry::instance();
  Status status = registry.check_device(device);
  if (status == kOk) status = registry.check_device(peer);
  if (status != kOk) return status;
  DeviceHeap* heap = registry.heap(peer, status);
  return heap != nullptr ? heap->enable_peer(device) : status;
}

pyalloc_status pyalloc_trim(int device, uint64_t* released) {
  uint64_t total = 0;
  Status status = for_open(device, [&](DeviceHeap& heap) {
    total += heap.trim();
    return kOk;
  });
  if (released != nullptr) *released = total;
  return status;
}

pyalloc_status pyalloc_set_memory_fraction(int device, double fraction) {
  return Registry::instance().set_fraction(device, fraction);
}

pyalloc_status pyalloc_get_memory_fraction(int device, double* fraction) {
  if (fraction == nullptr) return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_get_memory_fraction: fraction is null");
  return Registry::instance().get_fraction(device, *fraction);
}

pyalloc_status pyalloc_set_limit(int device, uint64_t bytes) { return Registry::instance().set_limit(device, bytes); }

pyalloc_status pyalloc_maintain(int device) {
  int64_t decay = Registry::instance().decay_ms();
  return for_open(device, [&](DeviceHeap& heap) {
    maintain(heap, decay, true);
    return kOk;
  });
}

pyalloc_status pyalloc_get_stats(int device, pyalloc_device_stats* stats) {
  if (stats == nullptr || stats->size < sizeof(pyalloc_device_stats))
    return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_get_stats: stats->size is not set to the struct's size");
  if (device < 0) return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_get_stats: device %d; expected one device", device);
  *stats = {};
  stats->size = sizeof *stats;
  stats->version = PYALLOC_ABI_VERSION;
  return for_open(device, [&](DeviceHeap& heap) {
    heap.get_stats(*stats);
    return kOk;
  });
}

pyalloc_status pyalloc_reset_peak_stats(int device) {
  return for_open(device, [](DeviceHeap& heap) {
    heap.reset_peak_stats();
    return kOk;
  });
}

pyalloc_status pyalloc_reset_accumulated_stats(int device) {
  return for_open(device, [](DeviceHeap& heap) {
    heap.reset_accumulated_stats();
    return kOk;
  });
}

pyalloc_status pyalloc_largest_free(int device, uint64_t* bytes) {
  if (bytes == nullptr) return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_largest_free: bytes is null");
  *bytes = 0;
  return for_open(device, [&](DeviceHeap& heap) {
    *bytes = std::max(*bytes, heap.largest_free());
    return kOk;
  });
}

size_t pyalloc_stat_fields_json(char* buffer, size_t capacity) {
  std::string text = "[";
  auto add = [&](const char* name, bool group, const char* kind, const char* unit, const char* help) {
    text += text.size() > 1 ? ",\n " : "";
    text += std::string("{\"name\": \"") + name + "\", \"group\": " + (group ? "true" : "false") + ", \"kind\": \"" +
            kind + "\", \"unit\": \"" + unit + "\", \"help\": " + quoted(help) + "}";
  };
#define PYALLOC_STAT_GROUP(name, unit, help) add(#name, true, "history", unit, help);
#define PYALLOC_STAT_VALUE(name, kind, unit, help) add(#name, false, #kind, unit, help);
#include "pyalloc/stat_fields.def"
#undef PYALLOC_STAT_GROUP
#undef PYALLOC_STAT_VALUE
  return copy(text + "]", buffer, capacity);
}

pyalloc_status pyalloc_snapshot(int device, void* context, pyalloc_segment_fn segment, pyalloc_block_fn block) {
  if (segment == nullptr || block == nullptr)
    return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_snapshot: a callback is null");
  return for_open(device, [&](DeviceHeap& heap) {
    for (const SegmentCopy& one : copy_segments(heap)) {
      segment(context, &one.view);
      for (const pyalloc_block_view& part : one.blocks) block(context, &part);
    }
    return kOk;
  });
}

pyalloc_status pyalloc_add_reclaimer(pyalloc_reclaim_fn fn, void* context, int priority) {
  if (fn == nullptr) return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_add_reclaimer: fn is null");
  Registry::instance().ladder().add_reclaimer(fn, context, priority);
  return kOk;
}

pyalloc_status pyalloc_remove_reclaimer(pyalloc_reclaim_fn fn, void* context) {
  return Registry::instance().ladder().remove_reclaimer(fn, context)
             ? kOk
             : fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_remove_reclaimer: it is not registered");
}

pyalloc_status pyalloc_await_reclaimers(int64_t milliseconds) {
  return Registry::instance().ladder().await_reclaimers(milliseconds)
             ? kOk
             : fail(PYALLOC_WRONG_STATE, "a reclaimer has not returned after %lld ms",
                    static_cast<long long>(milliseconds));
}

size_t pyalloc_oom_json(char* buffer, size_t capacity) {
  Ladder::Report report = Registry::instance().ladder().report();
  std::string text = "{\"counts\": {";
  for (int i = 0; i < kReasons; ++i)
    text += std::string(i > 0 ? ", " : "") + quoted(reason_name(i)) + ": " + std::to_string(report.counts[i]);
  text += "}, \"last\": [";
  for (const Refusal& one : report.last) {
    text += text.back() == '[' ? "" : ",\n ";
    text += "{\"unix_ms\": " + std::to_string(one.unix_ms) + ", \"device\": " + std::to_string(one.device) +
            ", \"pool\": " + quoted(pool_name(one.pool)) + ", \"bytes\": " + std::to_string(one.bytes) +
            ", \"reason\": " + quoted(reason_name(one.reason)) + ", \"freed\": {";
    for (int rung = 0; rung < kRungs; ++rung)
      text += std::string(rung > 0 ? ", " : "") + quoted(rung_name(rung)) + ": " + std::to_string(one.freed[rung]);
    text += "}, \"message\": " + quoted(one.message) + "}";
  }
  return copy(text + "]}", buffer, capacity);
}

pyalloc_status pyalloc_add_oom_observer(pyalloc_oom_fn fn, void* context) {
  if (fn == nullptr) return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_add_oom_observer: fn is null");
  Registry::instance().ladder().add_observer(fn, context);
  return kOk;
}

pyalloc_status pyalloc_validate(int device) {
  return for_open(device, [](DeviceHeap& heap) {
    std::string reason;
    return heap.validate(reason) ? kOk : fail(PYALLOC_DRIVER_ERROR, "%s", reason.c_str());
  });
}

const pyalloc_api* pyalloc_get_api(uint32_t version) {
  static const pyalloc_api table = {
      sizeof(pyalloc_api),
      PYALLOC_ABI_VERSION,
      pyalloc_last_error,
      pyalloc_init,
      pyalloc_allocate,
      pyalloc_deallocate,
      pyalloc_record_stream,
      pyalloc_find_block,
      pyalloc_trim,
      pyalloc_set_memory_fraction,
      pyalloc_get_memory_fraction,
      pyalloc_get_stats,
      pyalloc_largest_free,
      pyalloc_reset_peak_stats,
      pyalloc_reset_accumulated_stats,
      pyalloc_snapshot,
      pyalloc_add_reclaimer,
      pyalloc_add_oom_observer,
      pyalloc_enable_peer_access,
      pyalloc_add_mapping_observer,
      pyalloc_remove_mapping_observer,
      pyalloc_allocate_in,
      pyalloc_private_pool_retain,
      pyalloc_private_pool_release,
      pyalloc_private_pool_uses,
      pyalloc_private_pool_lend,
      pyalloc_private_pool_trim,
      pyalloc_private_pools,
      pyalloc_note_stream,
      pyalloc_private_pool_blocks,
      pyalloc_checkpoint_take,
      pyalloc_checkpoint_drop,
      pyalloc_checkpoint_restore,
      pyalloc_allocate_at,
      pyalloc_block_at,
      pyalloc_owner_of,
      pyalloc_pool_name,
      pyalloc_ipc_share,
      pyalloc_ipc_open,
      pyalloc_ipc_close,
  };
  return version == PYALLOC_ABI_VERSION ? &table : nullptr;
}

}  // extern "C"
#pragma GCC visibility pop
