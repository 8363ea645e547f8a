// Which pool a thread allocates from: a stack of scopes per thread. The general pool where there is none.
#pragma once
#include "base/status.h"
#include "heap/pool.h"

namespace pyalloc {

PoolId current_pool();
// Whether a scope of this thread says so; else it is the general pool for want of one.
bool pool_chosen();
// Whether any open scope of this thread is the pool's.
bool in_scope_of(PoolId pool);
Status push_pool(int id);
// Only the scope that was pushed last.
Status pop_pool(int id);

}  // namespace pyalloc
