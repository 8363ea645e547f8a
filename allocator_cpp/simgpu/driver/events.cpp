#include "events.h"

#include "simulation.h"

namespace simgpu {

Result record_event(Simulation& sim, uint64_t handle, EventObject& event, StreamObject& stream) {
  event.capture = 0;
  event.nodes.clear();
  event.recorded = true;
  if (event.shared_slot >= 0) {
    event.record = ++*sim.session.event_recorded(event.shared_slot);
  } else {
    ++event.record;
  }
  event.clock = sim.oracle.on_record(stream);
  event.position = {stream.id, stream.enqueued + 1};
  return sim.scheduler.enqueue(stream, RecordWork{handle, event.record});
}

Result wait_event(Simulation& sim, StreamObject& stream, EventObject& event) {
  if (event.imported) {
    uint64_t value = *sim.session.event_recorded(event.shared_slot);
    if (value == 0) return kSuccess;
    return sim.scheduler.enqueue(stream, EmptyWork{}, {}, event.shared_slot, value);
  }
  if (!event.recorded) return kSuccess;
  sim.oracle.on_wait(stream, event.clock.get());
  return sim.scheduler.enqueue(stream, EmptyWork{}, {event.position});
}

bool event_complete(Simulation& sim, const EventObject& event) {
  if (event.imported)
    return *sim.session.event_completed(event.shared_slot) >= *sim.session.event_recorded(event.shared_slot);
  return !event.recorded || sim.scheduler.complete(event.position);
}

Result synchronize_event(Simulation& sim, EventObject& event) {
  if (event.imported)
    return sim.scheduler.wait_foreign(event.shared_slot, *sim.session.event_recorded(event.shared_slot));
  if (!event.recorded) return kSuccess;
  std::shared_ptr<VectorClock> clock = event.clock;
  Result result = sim.scheduler.wait(event.position);
  sim.oracle.on_host_wait(clock.get());
  return result;
}

void destroy_event(Simulation& sim, uint64_t handle) {
  EventObject* event = sim.events.find(handle);
  if (event->shared_slot >= 0) sim.session.event_release(event->shared_slot);
  sim.events.remove(handle);
}

}  // namespace simgpu
