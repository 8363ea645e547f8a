#include "stream/stream_clocks.h"

#include "base/check.h"
#include "driver/driver.h"

namespace pyalloc {
namespace {

constexpr size_t kOutstandingEvents =
    16;  // a stream that is polled often and never finishes keeps no more events than this

// The legacy and per-thread default streams (null, 1, 2) cannot be destroyed.
bool is_default(cuda::Stream stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

unsigned long long unique_id(cuda::Stream stream) {
  unsigned long long id = 0;
  if (driver().stream_id == nullptr || driver().stream_id(stream, &id) != cuda::kSuccess) return 0;
  return id;
}

}  // namespace

StreamClocks::StreamClocks(Counters& counters) : counters_(counters) { clocks_.resize(1); }

void StreamClocks::close() {
  for (Clock& clock : clocks_)
    for (const Recorded& one : clock.events) driver().event_destroy(one.event);
  for (cuda::Event event : spare_) driver().event_destroy(event);
  abandon();
}

void StreamClocks::abandon() {
  for (Clock& clock : clocks_) clock.events.clear();
  spare_.clear();
}

StreamIndex StreamClocks::index_of(cuda::Stream stream, bool owned) {
  owned = owned || is_default(stream);
  unsigned long long id = owned ? 0 : unique_id(stream);
  for (size_t index = 1; index < clocks_.size(); ++index) {
    const Clock& clock = clocks_[index];
    // A stream once seen as owned stays so: torch's own streams also come in through calls that cannot tell.
    if (clock.followed && clock.stream == stream && (clock.owned || clock.id == id))
      return static_cast<StreamIndex>(index);
  }
  if (clocks_.size() >= UINT16_MAX) return 0;  // end() must fit too
  Clock clock;
  clock.stream = stream;
  clock.owned = owned;
  clock.id = id;
  clocks_.push_back(clock);
  return static_cast<StreamIndex>(clocks_.size() - 1);
}

bool StreamClocks::capturing(StreamIndex index) const {
  cuda::CaptureStatus status = cuda::kCaptureNone;
  return driver().stream_is_capturing(clocks_[index].stream, &status) != cuda::kSuccess || status != cuda::kCaptureNone;
}

bool StreamClocks::any_capturing() const {
  for (const Clock& clock : clocks_) {
    if (&clock == &clocks_.front() || !clock.followed) continue;
    if (!clock.owned && unique_id(clock.stream) != clock.id) continue;  // destroyed
    cuda::CaptureStatus status = cuda::kCaptureNone;
    cuda::Result result = driver().stream_is_capturing(clock.stream, &status);
    // The legacy stream may not be asked while one that it would wait for is captured.
    if (status != cuda::kCaptureNone || (result != cuda::kSuccess && clock.owned)) return true;
  }
  return false;
}

StreamIndex StreamClocks::unfollowed() {
  if (unfollowed_ == 0 && clocks_.size() < UINT16_MAX) {
    Clock clock;
    clock.owned = clock.followed = false;
    clocks_.push_back(clock);
    unfollowed_ = static_cast<StreamIndex>(clocks_.size() - 1);
  }
  return unfollowed_;
}

cuda::Event StreamClocks::take_event() {
  if (!spare_.empty()) {
    cuda::Event event = spare_.back();
    spare_.pop_back();
    return event;
  }
  cuda::Event event = nullptr;
  return driver().event_create(&event, cuda::kEventDisableTiming) == cuda::kSuccess ? event : nullptr;
}

bool StreamClocks::record(Clock& clock) {
  if (!clock.followed) return false;
  // Destroyed since: the driver may have given its handle to another stream, whose progress proves nothing here.
  if (!clock.owned && unique_id(clock.stream) != clock.id) return false;
  if (capturing(static_cast<StreamIndex>(&clock - clocks_.data()))) return false;
  cuda::Event event = take_event();
  if (event == nullptr) return false;
  if (driver().event_record(event, clock.stream) != cuda::kSuccess) {
    spare_.push_back(event);
    return false;
  }
  count(counters_.events_recorded);
  clock.events.push_back({event, position_});
  clock.recorded = position_;
  return true;
}

// Takes complete events off the front. Only success proves anything: not ready, and errors left by other work, prove
// nothing.
void StreamClocks::collect(Clock& clock) {
  while (!clock.events.empty()) {
    const Recorded& oldest = clock.events.front();
    if (driver().event_query(oldest.event) != cuda::kSuccess) return;
    clock.done = oldest.position;
    spare_.push_back(oldest.event);
    clock.events.pop_front();
  }
}

uint64_t StreamClocks::free_position(StreamIndex index) {
  Clock& clock = clocks_[index];
  clock.freed = ++position_;
  if (!clock.owned) {
    collect(clock);
    record(clock);
  }
  return clock.freed;
}

bool StreamClocks::ordered(StreamIndex waiting, StreamIndex index, uint64_t position) const {
  if (index == 0 || waiting == index || clocks_[index].done >= position) return true;
  const std::vector<uint64_t>& waits = clocks_[waiting].waits;
  return index < waits.size() && waits[index] >= position;
}

bool StreamClocks::poll(StreamIndex index) {
  Clock& clock = clocks_[index];
  uint64_t before = clock.done;
  if (clock.owned && clock.recorded < clock.freed && clock.events.size() < kOutstandingEvents) record(clock);
  collect(clock);
  return clock.done > before;
}

bool StreamClocks::can_wait(StreamIndex waiting, StreamIndex index, uint64_t position) const {
  const Clock& clock = clocks_[index];
  if (ordered(waiting, index, position)) return true;
  return (clock.owned || clock.recorded >= position) && !capturing(waiting) &&
         (clock.recorded >= position || !capturing(index));
}

bool StreamClocks::wait(StreamIndex waiting, StreamIndex index, uint64_t position) {
  if (ordered(waiting, index, position)) return true;
  if (capturing(waiting)) return false;
  Clock& clock = clocks_[index];
  if (clock.recorded < position && (!clock.owned || !record(clock))) return false;
  for (const Recorded& one : clock.events) {
    if (one.position < position) continue;
    if (driver().stream_wait_event(clocks_[waiting].stream, one.event, 0) != cuda::kSuccess) return false;
    count(counters_.stream_waits);
    std::vector<uint64_t>& waits = clocks_[waiting].waits;
    if (waits.size() <= index) waits.resize(index + size_t{1});
    waits[index] = one.position;
    return true;
  }
  return false;
}

bool StreamClocks::synchronize(StreamIndex index) {
  Clock& clock = clocks_[index];
  if (clock.done >= clock.freed && clock.events.empty()) return true;
  if (clock.owned && clock.recorded < clock.freed) record(clock);
  if (!clock.events.empty()) {
    count(counters_.event_waits);
    driver().event_synchronize(clock.events.back().event);
    collect(clock);
  }
  return clock.done >= clock.freed;
}

uint64_t StreamClocks::stamp_use(StreamIndex index) {
  Clock& clock = clocks_[index];
  clock.freed = ++position_;
  collect(clock);
  record(clock);
  return clock.freed;
}

void StreamClocks::all_done(uint64_t position) {
  for (Clock& clock : clocks_) {
    while (!clock.events.empty() && clock.events.front().position <= position) {
      spare_.push_back(clock.events.front().event);
      clock.events.pop_front();
    }
    if (clock.done < position) clock.done = position;
    if (clock.recorded < position) clock.recorded = position;
  }
}

}  // namespace pyalloc
