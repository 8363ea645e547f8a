// Streams: FIFO queues of work, and the scheduler that completes it.
//
// A Position (stream, sequence) names a point in a stream; an operation runs when all before it on its stream and all positions in its
// `after` are complete. immediate: an operation runs in the call that enqueues it. deferred: it runs when something waits for it, in
// part when something asks, or on simgpu_step, in an order drawn from the seed. timed: it runs when the virtual clock has passed its
// end. Host functions run on the thread that completes them, with the simulation's mutex released. Locked by that mutex.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "configuration.h"
#include "work.h"

namespace simgpu {

struct Simulation;
struct Capture;

struct Position {
  uint32_t stream = 0;
  uint64_t sequence = 0;
};

using VectorClock = std::vector<uint64_t>;  // by stream id: how far that stream is known to be done (oracle ticks)

struct Operation {
  Work work;
  uint64_t sequence = 0;
  std::vector<Position> after;
  int foreign_slot = -1;       // an event of another process to wait for ...
  uint64_t foreign_value = 0;  // ... until it has completed this many records
  double duration = 0, ready_at = 0;
  bool ready_known = false;
  bool peer = false;
  bool doomed = false;  // memory it uses was unmapped under it: already recorded as a violation
};

struct StreamObject {
  uint32_t id = 0;
  uint64_t handle = 0;  // 0: a device's legacy or a thread's default stream
  uint64_t serial = 0;  // never repeats
  int device = 0;
  bool legacy = false;
  bool blocking = true;  // ordered with the legacy stream
  int priority = 0;
  unsigned flags = 0;
  bool destroyed = false;
  bool running = false;  // a host function of it is being called
  uint64_t enqueued = 0, completed = 0;
  double free_at = 0;
  std::deque<Operation> queue;

  Capture* capture = nullptr;
  std::vector<uint64_t> capture_nodes;  // handles of the nodes the next captured one depends on

  VectorClock clock;  // the oracle's
  uint64_t tick = 0;
};

class Scheduler {
 public:
  explicit Scheduler(Simulation* simulation);

  StreamObject* create(int device, unsigned flags, int priority);
  void destroy(StreamObject* stream);
  StreamObject* stream(uint32_t id) { return streams_[id].get(); }
  template <typename F>
  void for_each(F visit) {
    for (auto& stream : streams_) {
      if (!stream->destroyed) visit(*stream);
    }
  }

  // Puts work on the stream (not captured: see capture.h). Returns the device's fault, if it has one by then.
  Result enqueue(StreamObject& stream, Work work, std::vector<Position> after = {}, int foreign_slot = -1,
                 uint64_t foreign_value = 0);
  bool complete(Position position) const { return streams_[position.stream]->completed >= position.sequence; }

  void poll();                     // a query: deferred work may go on a little
  Result wait(Position position);  // completes what the position needs
  Result wait_stream(StreamObject& stream);
  Result wait_device(int device);
  Result wait_foreign(int slot, uint64_t value);
  int64_t step(int64_t n);
  int64_t pending() const { return pending_; }
  void advance(double us);

  void set_mode(StreamMode mode, uint64_t seed);
  StreamMode mode() const { return mode_; }
  double work_time = 10;  // virtual us per operation, in timed mode
  double now() const;     // for event timestamps, in us

  // Operations not complete whose work touches the range: marks them, returns the first's stream id or -1.
  int64_t doom_users(uint64_t address, uint64_t bytes);

 private:
  bool ready(const StreamObject& stream) const;
  void run_head(StreamObject& stream);
  void run(StreamObject& stream, Operation& operation);
  void run_all_ready();
  void run_until_clock(double target);
  StreamObject* earliest(double* end);
  void pause();  // lets other threads and processes go on
  void legacy_order(StreamObject& stream, std::vector<Position>* after);

  Simulation* simulation_;
  StreamMode mode_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<StreamObject>> streams_;
  std::vector<uint32_t> recycled_;
  uint64_t next_serial_ = 1;
  int64_t pending_ = 0;
};

}  // namespace simgpu
