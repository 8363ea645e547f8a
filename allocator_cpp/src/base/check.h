// PYALLOC_ASSERT: a bug of ours, debug builds only. Faults of the caller or the world are statuses, never asserts.
#pragma once
#include <cstdio>
#include <cstdlib>

#ifdef NDEBUG
#define PYALLOC_ASSERT(condition) ((void)0)
#else
#define PYALLOC_ASSERT(condition)                                                                       \
  do {                                                                                                  \
    if (!(condition)) {                                                                                 \
      std::fprintf(stderr, "pyalloc: assertion failed at %s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                                     \
    }                                                                                                   \
  } while (0)
#endif
