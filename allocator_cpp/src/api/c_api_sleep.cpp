// The C ABI's calls about sleep: checks arguments, asks the registry's cycle.
#include <vector>

#include "api/registry.h"
#include "heap/pool_names.h"

using namespace pyalloc;

namespace {

Status pools_of(const char* call, const int* pools, int count, std::vector<PoolId>& ids) {
  Status status = Registry::instance().usable();
  if (status != kOk) return status;
  if (count < 0 || (pools == nullptr && count > 0))
    return fail(PYALLOC_INVALID_ARGUMENT, "%s: %d pools; expected an array of 0 or more", call, count);
  for (int i = 0; i < count; ++i) {
    if (pools[i] == PYALLOC_PRIVATE_POOLS) {
      ids.push_back(kPrivatePools);
      continue;
    }
    if (pools[i] < 0 || pools[i] >= pool_count())
      return fail(PYALLOC_INVALID_ARGUMENT, "%s: pool %d; expected 0 to %d", call, pools[i], pool_count() - 1);
    ids.push_back(static_cast<PoolId>(pools[i]));
  }
  return kOk;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

pyalloc_status pyalloc_sleep(const int* pools, const int* offload, int count, pyalloc_progress_fn progress,
                             void* context, uint64_t* released) {
  std::vector<PoolId> ids, offloaded;
  Status status = pools_of("pyalloc_sleep", pools, count, ids);
  if (status != kOk) return status;
  for (int i = 0; i < count; ++i)
    if (offload != nullptr && offload[i] != 0) offloaded.push_back(ids[static_cast<size_t>(i)]);
  Registry& registry = Registry::instance();
  uint64_t bytes = 0;
  status = registry.sleep_cycle().sleep(registry.open_heaps(), ids, offloaded, {progress, context}, bytes);
  if (released != nullptr) *released = bytes;
  return status;
}

pyalloc_status pyalloc_wake(const int* pools, int count, pyalloc_progress_fn progress, void* context) {
  std::vector<PoolId> ids;
  Status status = pools_of("pyalloc_wake", pools, count, ids);
  if (status != kOk) return status;
  Registry& registry = Registry::instance();
  return registry.sleep_cycle().wake(registry.ladder(), registry.open_heaps(), ids, {progress, context});
}

}  // extern "C"
#pragma GCC visibility pop
