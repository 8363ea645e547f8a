// PYALLOC_ASSERT: a bug of ours, debug builds only. Faults of the caller or the world are statuses, never asserts.
#pragma once

// A function that hot ones call only now and then: kept out of them, so that they stay short and save few registers.
#define PYALLOC_COLD __attribute__((noinline, cold))
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
