// What only a walk over a heap's books finds out (survey.cpp): for the stats page, now and then. Bytes unless a name says
// otherwise.
#pragma once
#include <cstdint>
#include <vector>

#include "heap/pool_names.h"

namespace pyalloc {

struct SurveyedSlot {
  uint32_t live;  // what blocks take of the granule there
  bool idle;
};

struct PoolSurvey {
  int64_t largest_free = 0, largest_remapped = 0;  // pool_fields.def
  int64_t segments = 0, idle = 0;                  // idle in granules
  std::vector<SurveyedSlot> slots;                 // mapped ones, space by space, in the order of addresses in each
};

struct DeviceSurvey {
  size_t granule_bytes = 0;
  int64_t largest_free = 0, largest_remapped = 0;  // ledger_fields.def
  PoolSurvey pools[kMostPools];
  PoolSurvey private_pools;  // all together
};

}  // namespace pyalloc
