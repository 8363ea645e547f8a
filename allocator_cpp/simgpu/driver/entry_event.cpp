// Entry points: events.
#include "simulation.h"

using namespace simgpu;

namespace {

Result record(Simulation& sim, Event handle, Stream stream, unsigned flags) {
  if ((flags & ~static_cast<unsigned>(kRecordExternal)) != 0) return kInvalidValue;
  EventObject* event = sim.events.find(handle);
  StreamObject* object = find_stream(sim, stream);
  if (event == nullptr || object == nullptr || event->device != object->device) return kInvalidHandle;
  uint64_t number = reinterpret_cast<uint64_t>(handle);
  if (object->capture != nullptr) {
    if (flags == kRecordExternal) return submit(sim, *object, kNodeEventRecord, RecordWork{number, 0});
    return capture_record(sim, *object, *event);
  }
  if (object->legacy && !sim.captures.empty()) {
    if (Result error = check_legacy_use(sim, object->device)) return error;
  }
  return record_event(sim, number, *event, *object);
}

Result elapsed(Simulation& sim, float* milliseconds, Event start, Event end) {
  EventObject *first = sim.events.find(start), *second = sim.events.find(end);
  if (first == nullptr || second == nullptr) return kInvalidHandle;
  if (milliseconds == nullptr) return kInvalidValue;
  if (!first->recorded || !second->recorded || ((first->flags | second->flags) & kEventDisableTiming) != 0)
    return kInvalidHandle;
  if (first->capture != 0 || second->capture != 0) return kCapturedEvent;
  if (!event_complete(sim, *first) || !event_complete(sim, *second)) return kNotReady;
  *milliseconds = static_cast<float>((second->completed_at - first->completed_at) / 1000);
  return kSuccess;
}

}  // namespace

SIMGPU_API Result cuEventCreate(Event* event, unsigned flags) {
  SIMGPU_BEGIN(cuEventCreate);
  constexpr unsigned kKnown = kEventBlockingSync | kEventDisableTiming | kEventInterprocess;
  if (event == nullptr || (flags & ~kKnown) != 0) return kInvalidValue;
  if ((flags & kEventInterprocess) != 0 && (flags & kEventDisableTiming) == 0) return kInvalidValue;
  auto object = std::make_unique<EventObject>();
  object->device = entered.device().ordinal;
  object->flags = flags;
  if ((flags & kEventInterprocess) != 0 && (object->shared_slot = sim.session.event_create()) < 0) return kOutOfMemory;
  *event = reinterpret_cast<Event>(sim.events.insert(std::move(object)));
  return kSuccess;
}

SIMGPU_API Result cuEventDestroy_v2(Event event) {
  SIMGPU_BEGIN(cuEventDestroy_v2);
  if (sim.events.find(event) == nullptr) return kInvalidHandle;
  destroy_event(sim, reinterpret_cast<uint64_t>(event));
  return kSuccess;
}

SIMGPU_API Result cuEventRecord(Event event, Stream stream) {
  SIMGPU_BEGIN(cuEventRecord);
  return record(sim, event, stream, kRecordDefault);
}

SIMGPU_API Result cuEventRecordWithFlags(Event event, Stream stream, unsigned flags) {
  SIMGPU_BEGIN(cuEventRecordWithFlags);
  return record(sim, event, stream, flags);
}

SIMGPU_API Result cuEventQuery(Event event) {
  SIMGPU_BEGIN(cuEventQuery);
  EventObject* object = sim.events.find(event);
  if (object == nullptr) return kInvalidHandle;
  if (Result error = check_event_query(sim, *object)) return error;
  sim.scheduler.poll();
  object = sim.events.find(event);  // polling may have let another thread destroy it
  if (object == nullptr) return kInvalidHandle;
  if (Result fault = sim.devices[static_cast<size_t>(object->device)].fault) return fault;
  if (!event_complete(sim, *object)) return kNotReady;
  sim.oracle.on_host_wait(object->clock.get());
  return kSuccess;
}

SIMGPU_API Result cuEventSynchronize(Event event) {
  SIMGPU_BEGIN(cuEventSynchronize);
  EventObject* object = sim.events.find(event);
  if (object == nullptr) return kInvalidHandle;
  if (Result error = check_event_query(sim, *object)) return error;
  return synchronize_event(sim, *object);
}

SIMGPU_API Result cuEventElapsedTime(float* milliseconds, Event start, Event end) {
  SIMGPU_BEGIN(cuEventElapsedTime);
  return elapsed(sim, milliseconds, start, end);
}

SIMGPU_API Result cuEventElapsedTime_v2(float* milliseconds, Event start, Event end) {
  SIMGPU_BEGIN(cuEventElapsedTime_v2);
  return elapsed(sim, milliseconds, start, end);
}
