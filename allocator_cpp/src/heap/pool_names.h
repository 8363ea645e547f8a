// The process's pools by name. Five exist from the start; others are added and never removed, so a name stays valid.
// Guarded by a lock of its own; finding and reading a name takes none.
#pragma once
#include "base/status.h"
#include "heap/pool.h"

namespace pyalloc {

// Finds the pool named `name`; makes it where `create` says so. Refuses names that could not stand in a configuration.
Status find_pool(const char* name, bool create, PoolId& id);
PoolId pool_count();
const char* pool_name(PoolId id);  // null: there is none

}  // namespace pyalloc
