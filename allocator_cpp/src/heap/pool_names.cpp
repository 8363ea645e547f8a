#include "heap/pool_names.h"

#include <atomic>
#include <cstring>
#include <string>

#include "base/bits.h"
#include "base/ranked_mutex.h"

namespace pyalloc {
namespace {

constexpr size_t kLongestName = 31;

struct Names {
  RankedMutex mutex{Rank::kNames};
  char text[kMostPools][kLongestName + 1] = {"general", "weights", "kv", "workspace", "lora"};
  PoolPolicy policy[kMostPools] = {{},
                                   {true, false, false, 0},
                                   {false, false, false, 16 * kMiB},
                                   {false, true, false, 0},
                                   {true, false, false, 0}};
  std::atomic<PoolId> count{5};
};

Names& names() {
  static Names* all = new Names;  // frees and snapshots may come while the process goes down
  return *all;
}

bool well_formed(const char* name) {
  size_t length = std::strlen(name);
  if (length == 0 || length > kLongestName || std::strcmp(name, "private") == 0) return false;
  return std::strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == length;
}

std::string known() {
  std::string text;
  for (PoolId id = 0; id < pool_count(); ++id) text += (id == 0 ? "" : ", ") + std::string(pool_name(id));
  return text;
}

}  // namespace

RankedMutex& names_mutex() { return names().mutex; }

PoolId pool_count() { return names().count.load(std::memory_order_acquire); }

const PoolPolicy& pool_policy(PoolId id) {
  static const PoolPolicy as_general;
  return is_private(id) ? as_general : names().policy[id];
}

const char* pool_name(PoolId id) { return id < pool_count() ? names().text[id] : is_private(id) ? "private" : nullptr; }

namespace {

Status find_or_make(const char* name, bool create, const PoolPolicy& policy, PoolId& id) {
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
                "a pool cannot be named '%s'; expected 1 to 31 lower-case letters, digits and underscores, and not "
                "'private', which stands for torch's own",
                name);
  Lock lock(all.mutex);
  if (known_already()) return kOk;  // by another thread
  if (id == kMostPools)
    return fail(PYALLOC_INVALID_ARGUMENT, "a process has at most %d pools; use one of: %s", int{kMostPools},
                known().c_str());
  std::strcpy(all.text[id], name);
  all.policy[id] = policy;
  all.count.store(static_cast<PoolId>(id + 1), std::memory_order_release);
  return kOk;
}

}  // namespace

Status find_pool(const char* name, bool create, PoolId& id) { return find_or_make(name, create, {}, id); }

Status create_pool(const char* name, PoolId like, uint64_t slab_bytes, bool contiguous, PoolId& id) {
  if (like != kNoPool && like >= pool_count())
    return fail(PYALLOC_INVALID_ARGUMENT, "a pool cannot be like pool %d: there is none; there are %d", int{like},
                int{pool_count()});
  if (like == PYALLOC_POOL_LORA)
    return fail(PYALLOC_INVALID_ARGUMENT,
                "the pool '%s' cannot be like 'lora', whose reserve is its own; expected a pool such as general, "
                "weights, kv or workspace",
                name);
  PoolPolicy policy = like != kNoPool ? pool_policy(like) : PoolPolicy{};
  if (slab_bytes != kAsLike) {
    bool fits = slab_bytes == 0 || (slab_bytes >= 4 * kMiB && slab_bytes <= 32 * kMiB && is_power_of_two(slab_bytes));
    if (!fits || policy.packed || policy.arena)
      return fail(PYALLOC_INVALID_ARGUMENT,
                  "slabs of %llu bytes for pool '%s'; expected 4, 8, 16 or 32 MiB, or 0 for none, and a pool like kv",
                  static_cast<unsigned long long>(slab_bytes), name);
    policy.slab_bytes = slab_bytes;
    policy.own_slabs = slab_bytes > 0;
  }
  if (contiguous) {
    if (policy.arena || slab_bytes != kAsLike)
      return fail(PYALLOC_INVALID_ARGUMENT,
                  "the contiguous pool '%s' with slabs, or with the arenas of workspace; expected neither: each of its "
                  "blocks has memory of one handle",
                  name);
    policy.contiguous = true;
  }
  Status status = find_or_make(name, true, policy, id);
  if (status != kOk || (like == kNoPool && slab_bytes == kAsLike && !contiguous)) return status;
  const PoolPolicy& has = pool_policy(id);
  if (has.packed != policy.packed || has.arena != policy.arena || has.contiguous != policy.contiguous ||
      has.slab_bytes != policy.slab_bytes || has.own_slabs != policy.own_slabs)
    return fail(PYALLOC_INVALID_ARGUMENT,
                "the pool '%s' exists with another layout, which cannot be changed; choose another name", name);
  return kOk;
}

}  // namespace pyalloc
