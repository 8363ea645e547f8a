#include "heap/pool_names.h"

#include <atomic>
#include <cstring>
#include <string>

#include "base/ranked_mutex.h"

namespace pyalloc {
namespace {

constexpr size_t kLongestName = 31;

struct Names {
  RankedMutex mutex{Rank::kRegistry};
  char text[kMostPools][kLongestName + 1] = {"general", "weights", "kv", "workspace", "lora"};
  std::atomic<PoolId> count{5};
};

Names& names() {
  static Names* all = new Names;  // frees and snapshots may come while the process goes down
  return *all;
}

bool well_formed(const char* name) {
  size_t length = std::strlen(name);
  if (length == 0 || length > kLongestName) return false;
  return std::strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == length;
}

std::string known() {
  std::string text;
  for (PoolId id = 0; id < pool_count(); ++id) text += (id == 0 ? "" : ", ") + std::string(pool_name(id));
  return text;
}

}  // namespace

PoolId pool_count() { return names().count.load(std::memory_order_acquire); }

const char* pool_name(PoolId id) { return id < pool_count() ? names().text[id] : nullptr; }

Status find_pool(const char* name, bool create, PoolId& id) {
  Names& all = names();
  auto known_already = [&] {
    for (id = 0; id < pool_count(); ++id)
      if (std::strcmp(all.text[id], name) == 0) return true;
    return false;
  };
  if (known_already()) return kOk;
  if (!create)
    return fail(PYALLOC_INVALID_ARGUMENT, "no pool is named '%s'; there are: %s. create_pool() makes one", name,
                known().c_str());
  if (!well_formed(name))
    return fail(PYALLOC_INVALID_ARGUMENT,
                "a pool cannot be named '%s'; expected 1 to 31 lower-case letters, digits and underscores", name);
  Lock lock(all.mutex);
  if (known_already()) return kOk;  // by another thread
  if (id == kMostPools)
    return fail(PYALLOC_INVALID_ARGUMENT, "a process has at most %d pools; use one of: %s", int{kMostPools},
                known().c_str());
  std::strcpy(all.text[id], name);
  all.count.store(static_cast<PoolId>(id + 1), std::memory_order_release);
  return kOk;
}

}  // namespace pyalloc
