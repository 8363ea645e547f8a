// Where each table of a stats page lies, and the description of it all that every page carries (pyalloc/stats_page.h).
#pragma once
#include <cstddef>
#include <string>

#include "heap/pool_names.h"
#include "pyalloc/stats_page.h"

namespace pyalloc {

// Pools of a device on a page: the named ones by their ids, and all private ones as one.
constexpr size_t kPrivatePoolsOnPage = kMostPools, kPagePools = kMostPools + 1;

// A table's place, from the beginning of the first, and how many records it has room for.
struct PageTable {
  size_t offset = 0, stride = 0, capacity = 0;
};

// The pools' table is the last, so that what is not in use of it need not be written.
struct PageLayout {
  explicit PageLayout(size_t devices);

  PageTable process, device, tag, event, pool;
  size_t bytes = 0;  // of all tables
  std::string description() const;
};

}  // namespace pyalloc
