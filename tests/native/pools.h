// For tests of pools: allocating in one, its figures, and what the last error says.
#pragma once
#include <string>

#include "gpu.h"

namespace test {

struct In {  // a scope
  explicit In(int which) : pool(which) { CHECK_EQ(pyalloc_push_pool(pool), PYALLOC_OK); }
  ~In() { CHECK_EQ(pyalloc_pop_pool(pool), PYALLOC_OK); }
  int pool;
};

inline void* in_pool(int pool, size_t bytes, void* stream = nullptr) {
  In scope(pool);
  return allocate(bytes, stream);
}

inline pyalloc_pool_stats figures(int pool) {
  pyalloc_pool_stats now{};
  now.size = sizeof now;
  CHECK_EQ(pyalloc_get_pool_stats(0, pool, &now), PYALLOC_OK);
  return now;
}

inline bool says(const char* part) { return std::string(pyalloc_last_error()).find(part) != std::string::npos; }

}  // namespace test
