#include "facts/event_log.h"

#include <algorithm>

#include "base/clock.h"
#include "pyalloc/stats_page.h"

namespace pyalloc {
namespace {

constexpr size_t kKept = PYALLOC_PAGE_EVENTS;
constexpr int64_t kApart_ms = 1000;

struct Log {
  RankedMutex mutex{Rank::kEvents};
  std::vector<MemoryEvent> events;  // oldest first
  int64_t noted = 0;
};

Log& log() {
  static Log* one = new Log;  // memory may be freed while the process goes down
  return *one;
}

}  // namespace

const char* event_name(EventKind kind) {
  static const char* const names[] = {
#define EVENT(name, help) #name,
#include "facts/events.def"
#undef EVENT
  };
  return names[static_cast<int>(kind)];
}

void note_event(EventKind kind, int device, int pool, int64_t bytes) {
  int64_t now = unix_ms();
  Log& all = log();
  Lock lock(all.mutex);
  auto same = std::find_if(all.events.rbegin(), all.events.rend(), [&](const MemoryEvent& one) {
    return one.kind == kind && one.device == device && one.pool == pool;
  });
  if (same != all.events.rend() && now - same->unix_ms < kApart_ms) {
    int64_t sum = 0;
    if (__builtin_add_overflow(same->bytes, bytes, &sum)) sum = INT64_MAX;  // of sizes that no device has
    MemoryEvent again = {now, kind, device, pool, sum, same->times + 1};
    all.events.erase(std::next(same).base());
    all.events.push_back(again);
    return;
  }
  ++all.noted;
  if (all.events.size() == kKept) all.events.erase(all.events.begin());
  all.events.push_back({now, kind, device, pool, bytes, 1});
}

std::vector<MemoryEvent> last_events(int64_t& noted) {
  Log& all = log();
  Lock lock(all.mutex);
  noted = all.noted;
  return all.events;
}

void clear_events() {
  Log& all = log();
  Lock lock(all.mutex);
  all.events.clear();
  all.noted = 0;
}

RankedMutex& events_mutex() { return log().mutex; }

}  // namespace pyalloc
