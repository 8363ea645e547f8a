#include "api/pool_scope.h"

#include <algorithm>
#include <vector>

#include "api/thread_scope.h"
#include "heap/pool_names.h"

namespace pyalloc {
namespace {

constexpr size_t kDeepest = 1000;  // scopes; more are pushes that nobody pops

struct Outer {
  PoolId pool;
  bool users, chosen;
};
thread_local std::vector<Outer> outer;

void enter(PoolId pool, bool users) {
  ThreadScope& scope = thread_scope();
  outer.push_back({scope.pool, scope.users, scope.chosen});
  scope.pool = pool;
  scope.users = users;
  scope.chosen = true;
}

}  // namespace

bool in_scope_of(PoolId pool) {
  return thread_scope().pool == pool ||
         std::any_of(outer.begin(), outer.end(), [pool](Outer one) { return one.pool == pool; });
}

Status push_pool(int id) {
  if (id < 0 || id >= pool_count())
    return fail(PYALLOC_INVALID_ARGUMENT, "pool %d; expected 0 to %d", id, pool_count() - 1);
  if (outer.size() >= kDeepest)
    return fail(PYALLOC_WRONG_STATE, "%zu pool scopes are open on this thread; leave each one that is entered",
                outer.size());
  enter(static_cast<PoolId>(id), true);
  return kOk;
}

bool suggest_pool(int id) {
  if (id == PYALLOC_POOL_WEIGHTS && thread_scope().pool == PYALLOC_POOL_LORA) return false;
  if (thread_scope().users || id < 0 || id >= pool_count() || outer.size() >= kDeepest) return false;
  enter(static_cast<PoolId>(id), false);
  return true;
}

Status pop_pool(int id) {
  if (outer.empty())
    return fail(PYALLOC_WRONG_STATE,
                "no pool scope is open on this thread; leave a scope on the thread that entered it");
  ThreadScope& scope = thread_scope();
  if (id != scope.pool)
    return fail(PYALLOC_WRONG_STATE,
                "pool '%s' cannot be left: '%s' was entered last on this thread; leave scopes in the opposite order, "
                "on the thread that entered them",
                id >= 0 && id < pool_count() ? pool_name(static_cast<PoolId>(id)) : "?", pool_name(scope.pool));
  scope.pool = outer.back().pool;
  scope.users = outer.back().users;
  scope.chosen = outer.back().chosen;
  outer.pop_back();
  return kOk;
}

}  // namespace pyalloc
