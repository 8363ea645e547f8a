// The C ABI's calls about pools: checks arguments, finds the heap, calls it.
#include <algorithm>
#include <map>
#include <string>

#include "api/json_text.h"
#include "api/pool_scope.h"
#include "api/registry.h"
#include "heap/pool_names.h"

using namespace pyalloc;

namespace {

Status check_pool(int device, int pool) {
  Status status = Registry::instance().usable();
  if (status == kOk) status = Registry::instance().check_device(device);
  if (status == kOk && (pool < 0 || pool >= pool_count()))
    status = fail(PYALLOC_INVALID_ARGUMENT, "pool %d; expected 0 to %d", pool, pool_count() - 1);
  return status;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

pyalloc_status pyalloc_find_pool(const char* name, int create, int* pool) {
  if (name == nullptr || pool == nullptr)
    return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_find_pool: an argument is null");
  PoolId id = 0;
  Status status = find_pool(name, create != 0, id);
  if (status == kOk) *pool = id;
  return status;
}

pyalloc_status pyalloc_create_pool(const char* name, int like, uint64_t slab_bytes, int* pool) {
  if (name == nullptr || pool == nullptr)
    return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_create_pool: an argument is null");
  PoolId id = 0;
  Status status = create_pool(name, like < 0 || like >= kNoPool ? kNoPool : static_cast<PoolId>(like), slab_bytes, id);
  if (status == kOk) *pool = id;
  return status;
}

int pyalloc_pool_count(void) { return pool_count(); }
const char* pyalloc_pool_name(int pool) {
  return pool < 0 || pool >= pool_count() ? nullptr : pool_name(static_cast<PoolId>(pool));
}

pyalloc_status pyalloc_push_pool(int pool) { return push_pool(pool); }
int pyalloc_suggest_pool(int pool) { return suggest_pool(pool) ? 1 : 0; }
pyalloc_status pyalloc_pop_pool(int pool) {
  Status status = pop_pool(pool);
  if (status != kOk) return status;
  bool arena = pool_policy(static_cast<PoolId>(pool)).arena;
  if ((pool != PYALLOC_POOL_LORA && !arena) || in_scope_of(static_cast<PoolId>(pool)) || Registry::instance().dead())
    return status;
  for (DeviceHeap* heap : Registry::instance().open_heaps())
    arena ? heap->end_step(static_cast<PoolId>(pool)) : heap->end_lora_prepare();
  return kOk;
}

size_t pyalloc_escapes_json(int device, char* buffer, size_t capacity) {
  std::map<uint64_t, int64_t> sizes;
  if (DeviceHeap* heap = Registry::instance().open_heap(device); heap != nullptr) heap->add_escapes(sizes);
  std::string text = "{";
  for (const auto& [bytes, blocks] : sizes)
    text += (text.size() > 1 ? ", \"" : "\"") + std::to_string(bytes) + "\": " + std::to_string(blocks);
  return copy(text + "}", buffer, capacity);
}

pyalloc_status pyalloc_lora_prepare(int device, uint64_t bytes) {
  Registry& registry = Registry::instance();
  Status status = kOk;
  DeviceHeap* heap = registry.heap(device, status);
  return heap == nullptr ? status : registry.ladder().prepare_lora(*heap, bytes);
}

int pyalloc_current_pool(void) { return current_pool(); }

pyalloc_status pyalloc_get_pool_stats(int device, int pool, pyalloc_pool_stats* stats) {
  if (stats == nullptr || stats->size < sizeof(pyalloc_pool_stats))
    return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_get_pool_stats: stats->size is not set to the struct's size");
  Status status = check_pool(device, pool);
  if (status != kOk) return status;
  *stats = {};
  stats->size = sizeof *stats;
  stats->version = PYALLOC_ABI_VERSION;
  stats->limit = static_cast<int64_t>(Registry::instance().pool_limit(device, static_cast<PoolId>(pool)));
  if (DeviceHeap* heap = Registry::instance().open_heap(device); heap != nullptr)
    heap->get_pool_stats(static_cast<PoolId>(pool), *stats);
  return kOk;
}

pyalloc_status pyalloc_reset_pool_peak(int device, int pool) {
  Status status = check_pool(device, pool);
  if (status != kOk) return status;
  if (DeviceHeap* heap = Registry::instance().open_heap(device); heap != nullptr)
    heap->reset_pool_peak(static_cast<PoolId>(pool));
  return kOk;
}

pyalloc_status pyalloc_set_pool_limit(int device, int pool, uint64_t bytes) {
  Status status = check_pool(device, pool);
  bytes = std::min(bytes, UINT64_MAX - 1);
  return status == kOk ? Registry::instance().set_pool_limit(device, static_cast<PoolId>(pool), bytes) : status;
}

size_t pyalloc_pool_fields_json(char* buffer, size_t capacity) {
  std::string text = "[";
#define PYALLOC_POOL_FIELD(name, unit, help)                                                                   \
  text += std::string(text.size() > 1 ? ",\n " : "") + "{\"name\": \"" #name "\", \"unit\": " + quoted(unit) + \
          ", \"help\": " + quoted(help) + "}";
#include "pyalloc/pool_fields.def"
#undef PYALLOC_POOL_FIELD
  return copy(text + "]", buffer, capacity);
}

}  // extern "C"
#pragma GCC visibility pop
