// What is known of each stream's progress, and the waits that make memory freed on one stream usable on another.
//
// One counter per device, the position, is raised at every free that may leave its stream. An event recorded on stream
// s when the position is p proves, once complete, that everything freed on s at positions up to p is finished. Events
// are recorded lazily: when somebody first asks whether s has passed a position, or wants to wait for it. `ordered(t,
// s, p)`: work enqueued on t from now on runs after everything s did up to p: because t is s, because the event is
// complete, or because t already waits for it on the GPU.
//
// Streams torch does not own may be destroyed at any time, so nothing is recorded on them later than a free ("stamped
// at free"); what was not stamped can only be proven by all_done() after a context-wide wait. Their pointers may be
// reused: they are known by cuStreamGetId.
//
// Guarded by the heap's lock; callers hold a ContextScope around the calls that reach the driver.
#pragma once
#include <cstdint>
#include <deque>
#include <vector>

#include "base/status.h"
#include "driver/cuda_abi.h"
#include "facts/counters.h"

namespace pyalloc {

using StreamIndex = uint16_t;  // dense, from 1; 0 is nobody

class StreamClocks {
 public:
  explicit StreamClocks(Counters& counters);
  // Destroys every event; the context is current and still there. Nothing may be asked afterwards.
  void close();

  // The index of a stream, new or known; 0 when 65,534 streams are known already.
  StreamIndex index_of(cuda::Stream stream, bool owned);
  cuda::Stream stream(StreamIndex index) const { return clocks_[index].stream; }
  StreamIndex end() const { return static_cast<StreamIndex>(clocks_.size()); }  // indices are 1 .. end() - 1

  // A position for memory freed on `index` now; streams not owned get their event at once.
  uint64_t free_position(StreamIndex index);

  bool passed(StreamIndex index, uint64_t position) const { return clocks_[index].done >= position; }
  bool ordered(StreamIndex waiting, StreamIndex index, uint64_t position) const;
  bool owned(StreamIndex index) const { return clocks_[index].owned; }
  uint64_t done(StreamIndex index) const { return clocks_[index].done; }
  // Last position at which memory was freed on `index`: no use of it there is later.
  uint64_t last_free(StreamIndex index) const { return clocks_[index].freed; }

  // Records where it helps and asks the driver what is complete, for everything freed on `index` so far. True when
  // `done` moved.
  bool poll(StreamIndex index);
  // Makes `waiting` run after `index` up to `position`, on the GPU. False when that is impossible now (capture, an
  // unstamped stream, a driver error): nothing changed.
  bool wait(StreamIndex waiting, StreamIndex index, uint64_t position);
  bool can_wait(StreamIndex waiting, StreamIndex index, uint64_t position) const;
  // Host wait for everything freed on `index` so far. False when it could not be proven.
  bool synchronize(StreamIndex index);
  // A position on a stream that merely used memory (record_stream): its event is recorded at once, or when somebody
  // next asks.
  uint64_t stamp_use(StreamIndex index);
  // After a context-wide wait that began when the position was `position`.
  void all_done(uint64_t position);

  uint64_t position() const { return position_; }
  bool capturing(StreamIndex index) const;
  // Whether any stream known here is: asks the driver for each.
  bool any_capturing() const;
  // An index of no stream, for work that cannot be followed, such as replays of CUDA graphs: only all_done() passes it.
  StreamIndex unfollowed();
  // Drops everything without a driver call (fork, exit).
  void abandon();

 private:
  struct Recorded {
    cuda::Event event;
    uint64_t position;
  };
  struct Clock {
    cuda::Stream stream = nullptr;
    unsigned long long id = 0;  // of streams not owned
    bool owned = true, followed = true;
    uint64_t freed = 0;           // last position of memory freed here
    uint64_t done = 0;            // everything up to here is finished
    uint64_t recorded = 0;        // position of the newest event
    std::deque<Recorded> events;  // not known complete, oldest first
    std::vector<uint64_t> waits;  // by index: positions this stream already waits for on the GPU
  };

  bool record(Clock& clock);
  void collect(Clock& clock);
  cuda::Event take_event();

  Counters& counters_;
  std::vector<Clock> clocks_;
  std::vector<cuda::Event> spare_;
  uint64_t position_ = 0;
  StreamIndex unfollowed_ = 0;
};

}  // namespace pyalloc
