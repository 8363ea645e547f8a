// Which pool a thread allocates from: a stack of scopes per thread. The general pool where there is none. A scope is the
// user's, or suggested by code that only guesses the purpose: a suggestion does nothing inside a scope of the user's.
#pragma once
#include "base/status.h"
#include "heap/pool.h"

namespace pyalloc {

// Whether any open scope of this thread is the pool's.
bool in_scope_of(PoolId pool);
Status push_pool(int id);
// Whether it was pushed: then it is popped as any scope. Weights are not, while an adapter is loaded: its layers are modules,
// moved as any.
bool suggest_pool(int id);
// The scope of the pool that was pushed last. An error where others were pushed after it: it is left all the same, so that
// none outlives its end.
Status pop_pool(int id);

}  // namespace pyalloc
