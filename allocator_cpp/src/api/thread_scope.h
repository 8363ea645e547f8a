// What the scopes open on a thread come to: read at every allocation, so in one place, and without a constructor.
#pragma once
#include "facts/tag_accounts.h"
#include "heap/pool.h"

namespace pyalloc {

struct ThreadScope {
  PoolId pool = kGeneralPool;  // pool_scope.cpp
  bool users = false;          // the pool's scope is the user's
  bool chosen = false;         // a scope says which pool; else it is the general one for want of one
  TagId tag = kNoTag;          // tag_scope.cpp
};
extern __thread ThreadScope current_scope;  // __thread: no check for a constructor
inline ThreadScope& thread_scope() { return current_scope; }

}  // namespace pyalloc
