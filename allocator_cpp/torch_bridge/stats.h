// The core's statistics as torch's DeviceStats, by the one table of both: pyalloc/stat_fields.def uses torch's own
// names.
#pragma once
#include "core.h"

namespace pyalloc_bridge {

inline pyalloc_device_stats read_stats(c10::DeviceIndex device) {
  pyalloc_device_stats stats{};
  stats.size = sizeof stats;
  check(core->get_stats(device, &stats));
  return stats;
}

inline void copy_group(const pyalloc_stat (&from)[PYALLOC_KINDS], c10::CachingDeviceAllocator::StatArray& to) {
  static_assert(static_cast<int>(c10::CachingDeviceAllocator::StatType::AGGREGATE) == PYALLOC_KIND_ALL);
  static_assert(static_cast<int>(c10::CachingDeviceAllocator::StatType::SMALL_POOL) == PYALLOC_KIND_SMALL);
  static_assert(static_cast<int>(c10::CachingDeviceAllocator::StatType::LARGE_POOL) == PYALLOC_KIND_LARGE);
  for (size_t kind = 0; kind < to.size(); ++kind) {
    to[kind].current = from[kind].current;
    to[kind].peak = from[kind].peak;
    to[kind].allocated = from[kind].allocated;
    to[kind].freed = from[kind].freed;
  }
}

// A template so that a field only one side has is skipped: the core counts more than torch, and torch gains fields by
// release.
template <class TorchStats>
TorchStats torch_stats(const pyalloc_device_stats& from) {
  TorchStats to;
#define PYALLOC_STAT_GROUP(name, unit, help) \
  if constexpr (requires { to.name; }) copy_group(from.name, to.name);
#define PYALLOC_STAT_VALUE(name, kind, unit, help) \
  if constexpr (requires { to.name; }) to.name = from.name;
#include "pyalloc/stat_fields.def"
#undef PYALLOC_STAT_GROUP
#undef PYALLOC_STAT_VALUE
  to.max_split_size = -1;  // torch's "unlimited": blocks of any size share segments
  return to;
}

}  // namespace pyalloc_bridge
