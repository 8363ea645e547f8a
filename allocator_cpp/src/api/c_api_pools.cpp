// The C ABI's calls about pools: checks arguments, finds the heap, calls it.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "api/pool_scope.h"
#include "api/registry.h"
#include "api/thread_scope.h"
#include "base/json_text.h"
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

pyalloc_status pyalloc_create_pool(const char* name, int like, uint64_t slab_bytes, int contiguous, int* pool) {
  if (name == nullptr || pool == nullptr)
    return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_create_pool: an argument is null");
  PoolId id = 0;
  Status status = create_pool(name, like < 0 || like >= kNoPool ? kNoPool : static_cast<PoolId>(like), slab_bytes,
                              contiguous != 0, id);
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
  if (pool < 0 || pool >= pool_count()) return pop_pool(pool);
  bool arena = pool_policy(static_cast<PoolId>(pool)).arena, open = in_scope_of(static_cast<PoolId>(pool));
  Status status = pop_pool(pool);
  if (!open || (pool != PYALLOC_POOL_LORA && !arena) || in_scope_of(static_cast<PoolId>(pool)) ||
      Registry::instance().dead())
    return status;
  for (DeviceHeap* heap : Registry::instance().open_heaps())
    arena ? heap->end_step(static_cast<PoolId>(pool)) : heap->end_lora_load();
  return status;
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

int pyalloc_current_pool(void) { return thread_scope().pool; }

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

pyalloc_status pyalloc_get_ledger(int device, pyalloc_ledger* ledger, pyalloc_pool_stats* pools, int count,
                                  pyalloc_pool_stats* private_pools) {
  if (ledger == nullptr || ledger->size < sizeof(pyalloc_ledger))
    return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_get_ledger: ledger->size is not set to the struct's size");
  if (count < 0 || count > pool_count() || (pools == nullptr && count > 0))
    return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_get_ledger: %d pools; expected room for 0 to %d", count,
                pool_count());
  for (int id = 0; id < count; ++id)
    if (pools[id].size < sizeof(pyalloc_pool_stats))
      return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_get_ledger: pools[%d].size is not set to the struct's size", id);
  if (private_pools != nullptr && private_pools->size < sizeof(pyalloc_pool_stats))
    return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_get_ledger: private_pools->size is not set to the struct's size");
  Registry& registry = Registry::instance();
  Status status = registry.usable();
  if (status == kOk) status = registry.check_device(device);
  if (status != kOk) return status;
  pyalloc_ledger found{};
  found.size = sizeof found;
  found.version = PYALLOC_ABI_VERSION;
  std::vector<pyalloc_pool_stats> of_pools(static_cast<size_t>(count));
  for (int id = 0; id < count; ++id) {
    of_pools[static_cast<size_t>(id)].size = sizeof(pyalloc_pool_stats);
    of_pools[static_cast<size_t>(id)].version = PYALLOC_ABI_VERSION;
    of_pools[static_cast<size_t>(id)].limit =
        static_cast<int64_t>(registry.pool_limit(device, static_cast<PoolId>(id)));
  }
  pyalloc_pool_stats of_private{};
  of_private.size = sizeof of_private;
  of_private.version = PYALLOC_ABI_VERSION;
  if (DeviceHeap* heap = registry.open_heap(device); heap != nullptr)
    status = heap->get_ledger(found, of_pools.data(), count, of_private);
  if (status != kOk) return status;
  *ledger = found;
  std::copy(of_pools.begin(), of_pools.end(), pools);
  if (private_pools != nullptr) *private_pools = of_private;
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
  std::string text;
#define PYALLOC_POOL_FIELD(name, kind, unit, help) add_field(text, #name, unit, help);
#include "pyalloc/pool_fields.def"
#undef PYALLOC_POOL_FIELD
  return copy("[" + text + "]", buffer, capacity);
}

size_t pyalloc_ledger_fields_json(char* buffer, size_t capacity) {
  std::string text;
#define PYALLOC_LEDGER_FIELD(name, unit, help) add_field(text, #name, unit, help);
#include "pyalloc/ledger_fields.def"
#undef PYALLOC_LEDGER_FIELD
  return copy("[" + text + "]", buffer, capacity);
}

}  // extern "C"
#pragma GCC visibility pop
