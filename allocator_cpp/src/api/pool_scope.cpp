#include "api/pool_scope.h"

#include <algorithm>
#include <vector>

#include "api/thread_scope.h"
#include "heap/pool_names.h"

namespace pyalloc {
namespace {

constexpr size_t kDeepest = 1000;  // scopes; more are pushes that nobody pops

struct Open {
  PoolId pool;
  bool users;
};
thread_local std::vector<Open> open;

// What an allocation reads is that of the scope entered last.
void settle() {
  ThreadScope& scope = thread_scope();
  scope.chosen = !open.empty();
  scope.pool = open.empty() ? kGeneralPool : open.back().pool;
  scope.users = !open.empty() && open.back().users;
}

void enter(PoolId pool, bool users) {
  open.push_back({pool, users});
  settle();
}

}  // namespace

bool in_scope_of(PoolId pool) {
  return std::any_of(open.begin(), open.end(), [pool](Open one) { return one.pool == pool; });
}

Status push_pool(int id) {
  if (id < 0 || id >= pool_count())
    return fail(PYALLOC_INVALID_ARGUMENT, "pool %d; expected 0 to %d", id, pool_count() - 1);
  if (open.size() >= kDeepest)
    return fail(PYALLOC_WRONG_STATE, "%zu pool scopes are open on this thread; leave each one that is entered",
                open.size());
  enter(static_cast<PoolId>(id), true);
  return kOk;
}

bool suggest_pool(int id) {
  if (id == PYALLOC_POOL_WEIGHTS && thread_scope().pool == PYALLOC_POOL_LORA) return false;
  if (thread_scope().users || id < 0 || id >= pool_count() || open.size() >= kDeepest) return false;
  enter(static_cast<PoolId>(id), false);
  return true;
}

Status pop_pool(int id) {
  auto found = std::find_if(open.rbegin(), open.rend(), [id](Open one) { return one.pool == id; });
  if (found == open.rend())
    return fail(PYALLOC_WRONG_STATE,
                "no scope of that pool is open on this thread; leave a scope on the thread that entered it");
  bool last = found == open.rbegin();
  const char* current = pool_name(thread_scope().pool);
  open.erase(std::next(found).base());
  settle();
  if (last) return kOk;
  return fail(PYALLOC_WRONG_STATE,
              "pool '%s' was left before '%s', which was entered after it on this thread: leave scopes in the opposite "
              "order, and hold none across an await",
              pool_name(static_cast<PoolId>(id)), current);
}

}  // namespace pyalloc
