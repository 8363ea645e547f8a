// The last things of note that happened to memory, on all devices: written on slow paths by any layer, read by the stats
// page. What happens again within a second of the last time, to the same pool, is one event with a count, so that a loop
// of refusals does not push everything else out. Its lock is the innermost but the log's.
#pragma once
#include <cstdint>
#include <vector>

#include "base/ranked_mutex.h"

namespace pyalloc {

enum class EventKind : uint8_t {
#define EVENT(name, help) name,
#include "facts/events.def"
#undef EVENT
};
const char* event_name(EventKind kind);

constexpr int kNoEventPool = -1;  // it is of the whole device

struct MemoryEvent {
  int64_t unix_ms;
  EventKind kind;
  int device, pool;
  int64_t bytes, times;
};

void note_event(EventKind kind, int device, int pool, int64_t bytes);
// The last of them, oldest first; `noted`: how many there were ever.
std::vector<MemoryEvent> last_events(int64_t& noted);
void clear_events();
RankedMutex& events_mutex();  // for a fork

}  // namespace pyalloc
