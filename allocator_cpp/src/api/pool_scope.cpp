#include "api/pool_scope.h"

#include <algorithm>
#include <vector>

#include "heap/pool_names.h"

namespace pyalloc {
namespace {

constexpr size_t kDeepest = 1000;  // scopes; more are pushes that nobody pops

// The current pool stands apart from the stack, and needs no constructor: it is read at every allocation.
thread_local CurrentPool current{kGeneralPool, false, false};
thread_local std::vector<CurrentPool> outer;

void enter(PoolId pool, bool users) {
  outer.push_back(current);
  current = {pool, users, true};
}

}  // namespace

CurrentPool current_pool() { return current; }

bool in_scope_of(PoolId pool) {
  return current.id == pool ||
         std::any_of(outer.begin(), outer.end(), [pool](CurrentPool one) { return one.id == pool; });
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
  if (id == PYALLOC_POOL_WEIGHTS && current.id == PYALLOC_POOL_LORA) return false;
  if (current.users || id < 0 || id >= pool_count() || outer.size() >= kDeepest) return false;
  enter(static_cast<PoolId>(id), false);
  return true;
}

Status pop_pool(int id) {
  if (outer.empty())
    return fail(PYALLOC_WRONG_STATE,
                "no pool scope is open on this thread; leave a scope on the thread that entered it");
  if (id != current.id)
    return fail(PYALLOC_WRONG_STATE,
                "pool '%s' cannot be left: '%s' was entered last on this thread; leave scopes in the opposite order, "
                "on the thread that entered them",
                id >= 0 && id < pool_count() ? pool_name(static_cast<PoolId>(id)) : "?", pool_name(current.id));
  current = outer.back();
  outer.pop_back();
  return kOk;
}

}  // namespace pyalloc
