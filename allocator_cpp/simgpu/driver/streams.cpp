#include "streams.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "execute.h"
#include "simulation.h"

namespace simgpu {

Scheduler::Scheduler(Simulation* simulation)
    : simulation_(simulation), mode_(simulation->configuration.streams), random_(simulation->configuration.seed) {}

void Scheduler::set_mode(StreamMode mode, uint64_t seed) {
  if (mode != mode_ && mode == StreamMode::kImmediate) step(-1);
  mode_ = mode;
  random_.seed(seed);
}

double Scheduler::now() const {
  if (mode_ == StreamMode::kTimed) return simulation_->calls.clock_us;
  using std::chrono::duration;
  return duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

StreamObject* Scheduler::create(int device, unsigned flags, int priority) {
  uint32_t id = static_cast<uint32_t>(streams_.size());
  auto stream = std::make_unique<StreamObject>();
  if (!recycled_.empty()) {
    // Sequence numbers go on, so that a position of the old stream stays complete.
    id = recycled_.back();
    recycled_.pop_back();
    stream->enqueued = stream->completed = streams_[id]->completed;
  }
  stream->id = id;
  stream->serial = next_serial_++;
  stream->device = device;
  stream->flags = flags;
  stream->priority = priority;
  stream->blocking = (flags & kStreamNonBlocking) == 0;
  StreamObject* raw = stream.get();
  if (id == streams_.size()) {
    streams_.push_back(std::move(stream));
  } else {
    streams_[id] = std::move(stream);
  }
  return raw;
}

void Scheduler::destroy(StreamObject* stream) {
  stream->destroyed = true;
  if (stream->queue.empty() && !stream->running && !simulation_->oracle.enabled()) recycled_.push_back(stream->id);
}

void Scheduler::legacy_order(StreamObject& stream, std::vector<Position>* after) {
  if (!stream.blocking) return;
  for (auto& other : streams_) {
    if (other.get() == &stream || other->device != stream.device || !other->blocking) continue;
    if (!stream.legacy && !other->legacy) continue;
    if (other->completed < other->enqueued) after->push_back({other->id, other->enqueued});
  }
}

Result Scheduler::enqueue(StreamObject& stream, Work work, std::vector<Position> after, int foreign_slot,
                          uint64_t foreign_value) {
  const Result& fault =
      simulation_->devices[static_cast<size_t>(stream.device)].fault;  // the stream may be gone at the end
  Operation operation;
  operation.sequence = ++stream.enqueued;
  operation.work = std::move(work);
  bool alone = pending_++ == 0;
  if (alone && mode_ == StreamMode::kImmediate && foreign_slot < 0) {  // nothing to wait for, no queue needed
    run(stream, operation);
    run_all_ready();
    return fault;
  }
  legacy_order(stream, &after);
  after.erase(std::remove_if(after.begin(), after.end(), [this](Position p) { return complete(p); }), after.end());
  operation.after = std::move(after);
  operation.foreign_slot = foreign_slot;
  operation.foreign_value = foreign_value;
  bool instant =
      std::holds_alternative<RecordWork>(operation.work) || std::holds_alternative<EmptyWork>(operation.work);
  operation.duration = instant ? 0 : work_time;
  operation.ready_at = simulation_->calls.clock_us;
  stream.queue.push_back(std::move(operation));
  if (mode_ == StreamMode::kImmediate) run_all_ready();
  if (mode_ == StreamMode::kTimed) run_until_clock(simulation_->calls.clock_us);
  return fault;
}

bool Scheduler::ready(const StreamObject& stream) const {
  if (stream.queue.empty() || stream.running) return false;
  const Operation& head = stream.queue.front();
  for (Position position : head.after) {
    if (!complete(position)) return false;
  }
  return head.foreign_slot < 0 || *simulation_->session.event_completed(head.foreign_slot) >= head.foreign_value;
}

void Scheduler::run_head(StreamObject& stream) {
  Operation operation = std::move(stream.queue.front());
  stream.queue.pop_front();
  run(stream, operation);
}

void Scheduler::run(StreamObject& stream, Operation& operation) {
  stream.running = true;
  execute(*simulation_, stream, operation);
  stream.running = false;
  stream.completed = operation.sequence;
  --pending_;
  if (std::holds_alternative<HostWork>(operation.work)) simulation_changed().notify_all();
  if (stream.destroyed && stream.queue.empty() && !simulation_->oracle.enabled()) recycled_.push_back(stream.id);
}

void Scheduler::run_all_ready() {
  for (bool ran = true; ran && pending_ > 0;) {
    ran = false;
    for (size_t i = 0; i < streams_.size(); ++i) {
      StreamObject* stream = streams_[i].get();
      while (ready(*stream)) {
        run_head(*stream);
        ran = true;
        if (streams_[i].get() != stream) break;
      }
    }
  }
}

StreamObject* Scheduler::earliest(double* end) {
  StreamObject* best = nullptr;
  *end = std::numeric_limits<double>::infinity();
  for (auto& stream : streams_) {
    if (!ready(*stream)) continue;
    Operation& head = stream->queue.front();
    double finish = std::max(head.ready_at, stream->free_at) + head.duration;
    if (finish < *end) *end = finish, best = stream.get();
  }
  return best;
}

void Scheduler::run_until_clock(double target) {
  double end = 0, clock = simulation_->calls.clock_us;
  for (StreamObject* stream = earliest(&end); stream != nullptr && end <= target; stream = earliest(&end)) {
    stream->free_at = end;
    simulation_->calls.clock_us = end;  // what runs sees the time it ends at
    run_head(*stream);
    // What waited for it can start no earlier than now.
    for (auto& other : streams_) {
      if (!other->queue.empty() && !other->queue.front().after.empty() && ready(*other)) {
        Operation& head = other->queue.front();
        if (!head.ready_known) head.ready_at = std::max(head.ready_at, end);
        head.ready_known = true;
      }
    }
  }
  simulation_->calls.clock_us = std::max(clock, std::max(target, simulation_->calls.clock_us));
}

void Scheduler::advance(double us) {
  double target = simulation_->calls.clock_us + us;
  if (mode_ == StreamMode::kTimed) {
    run_until_clock(target);
  } else {
    simulation_->calls.clock_us = target;
  }
}

void Scheduler::poll() {
  if (mode_ == StreamMode::kTimed) run_until_clock(simulation_->calls.clock_us);
  if (mode_ == StreamMode::kDeferred) step(static_cast<int64_t>(random_() % 3));
  if (mode_ == StreamMode::kImmediate) run_all_ready();
}

int64_t Scheduler::step(int64_t n) {
  int64_t done = 0;
  std::vector<StreamObject*> candidates;
  while (n < 0 || done < n) {
    StreamObject* chosen = nullptr;
    if (mode_ == StreamMode::kTimed) {
      double end = 0;
      chosen = earliest(&end);
      if (chosen == nullptr) break;
      uint64_t before = chosen->completed;
      run_until_clock(end);
      done += static_cast<int64_t>(chosen->completed - before);
      continue;
    }
    candidates.clear();
    for (auto& stream : streams_) {
      if (ready(*stream)) candidates.push_back(stream.get());
    }
    if (candidates.empty()) break;
    chosen = candidates[random_() % candidates.size()];
    run_head(*chosen);
    ++done;
  }
  return done;
}

void Scheduler::pause() {
  std::unique_lock<std::mutex> lock(simulation_mutex(), std::adopt_lock);
  simulation_changed().wait_for(lock, std::chrono::milliseconds(1));
  lock.release();
}

Result Scheduler::wait(Position wanted) {
  std::vector<Position> needed = {wanted};
  int idle = 0;
  while (!needed.empty()) {
    Position position = needed.back();
    if (complete(position)) {
      needed.pop_back();
      continue;
    }
    if (mode_ == StreamMode::kTimed) {
      double end = 0;
      if (earliest(&end) != nullptr) {
        run_until_clock(std::max(end, simulation_->calls.clock_us));
        continue;
      }
    }
    StreamObject& stream = *streams_[position.stream];
    if (mode_ != StreamMode::kTimed && ready(stream)) {
      run_head(stream);
      idle = 0;
      continue;
    }
    bool deeper = false;
    if (!stream.running && !stream.queue.empty()) {
      for (Position before : stream.queue.front().after) {
        if (complete(before)) continue;
        needed.push_back(before);
        deeper = true;
        break;
      }
    }
    if (deeper && needed.size() < (1u << 20)) continue;
    // A host function runs on another thread, or another process has yet to complete an event.
    if (++idle > 60000) {
      simulation_->violations.add("waited a minute for stream %u: an event of another process never completed",
                                  position.stream);
      return kLaunchFailed;
    }
    if (deeper) needed.resize(1);
    pause();
  }
  return simulation_->devices[streams_[wanted.stream]->device].fault;
}

Result Scheduler::wait_stream(StreamObject& stream) {
  std::vector<Position> after = {{stream.id, stream.enqueued}};
  if (stream.legacy) legacy_order(stream, &after);  // its synchronisation waits for what it would be ordered after
  Result result = kSuccess;
  for (Position position : after) result = wait(position);
  return result;
}

Result Scheduler::wait_device(int device) {
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i]->device == device) {
      if (wait({streams_[i]->id, streams_[i]->enqueued}) == kLaunchFailed) return kLaunchFailed;
    }
  }
  return simulation_->devices[device].fault;
}

Result Scheduler::wait_foreign(int slot, uint64_t value) {
  for (int idle = 0; *simulation_->session.event_completed(slot) < value; ++idle) {
    if (idle > 60000) {
      simulation_->violations.add("waited a minute for an event of another process that never completed");
      return kLaunchFailed;
    }
    pause();
  }
  return kSuccess;
}

int64_t Scheduler::doom_users(uint64_t address, uint64_t bytes) {
  int64_t found = -1;
  std::vector<Span> spans;
  for (auto& stream : streams_) {
    for (Operation& operation : stream->queue) {
      spans.clear();
      touched_spans(operation.work, &spans);
      for (const Span& span : spans) {
        if (span.address >= address + bytes || address >= span.address + span.bytes) continue;
        operation.doomed = true;
        if (found < 0) found = stream->id;
      }
    }
  }
  return found;
}

}  // namespace simgpu
