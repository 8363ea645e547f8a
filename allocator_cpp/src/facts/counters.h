// One device's single-number statistics, straight from stat_fields.def. Changed on slow paths only, by any layer, read
// by the view; relaxed atomics, so no lock is needed to read them.
#pragma once
#include <atomic>
#include <cstdint>

namespace pyalloc {

struct Counters {
#define PYALLOC_STAT_GROUP(name, unit, help)
#define PYALLOC_STAT_VALUE(name, kind, unit, help) std::atomic<int64_t> name{0};
#include "pyalloc/stat_fields.def"
#undef PYALLOC_STAT_GROUP
#undef PYALLOC_STAT_VALUE
};

inline void count(std::atomic<int64_t>& counter, int64_t by = 1) { counter.fetch_add(by, std::memory_order_relaxed); }

}  // namespace pyalloc
