// Entry points: streams and host functions.
#include "simulation.h"

using namespace simgpu;

namespace {

constexpr int kGreatestPriority = -5;

Result create_stream(Enter& entered, Stream* stream, unsigned flags, int priority) {
  Simulation& sim = entered.sim();
  if (stream == nullptr || (flags & ~static_cast<unsigned>(kStreamNonBlocking)) != 0) return kInvalidValue;
  if (priority > 0) priority = 0;
  if (priority < kGreatestPriority) priority = kGreatestPriority;
  StreamObject* object = sim.scheduler.create(entered.device().ordinal, flags, priority);
  object->handle = sim.streams.insert(std::make_unique<StreamObject*>(object));
  *stream = reinterpret_cast<Stream>(object->handle);
  return kSuccess;
}

}  // namespace

SIMGPU_API Result cuStreamCreate(Stream* stream, unsigned flags) {
  SIMGPU_BEGIN(cuStreamCreate);
  return create_stream(entered, stream, flags, 0);
}

SIMGPU_API Result cuStreamCreateWithPriority(Stream* stream, unsigned flags, int priority) {
  SIMGPU_BEGIN(cuStreamCreateWithPriority);
  return create_stream(entered, stream, flags, priority);
}

SIMGPU_API Result cuStreamDestroy_v2(Stream stream) {
  SIMGPU_BEGIN(cuStreamDestroy_v2);
  StreamObject** found = sim.streams.find(stream);
  if (found == nullptr) return kInvalidHandle;
  StreamObject* object = *found;
  if (object->capture != nullptr) {
    invalidate(*object->capture);
    return kStreamCaptureUnsupported;
  }
  sim.streams.remove(object->handle);
  sim.scheduler.destroy(object);  // what it still has queued goes on
  return kSuccess;
}

SIMGPU_API Result cuStreamQuery(Stream stream) {
  SIMGPU_BEGIN(cuStreamQuery);
  StreamObject* object = find_stream(sim, stream);
  if (object == nullptr) return kInvalidHandle;
  if (Result error = check_stream_query(sim, *object)) return error;
  sim.scheduler.poll();
  if (Result fault = sim.devices[static_cast<size_t>(object->device)].fault) return fault;
  if (object->completed < object->enqueued) return kNotReady;
  sim.oracle.on_host_wait(*object);
  return kSuccess;
}

SIMGPU_API Result cuStreamSynchronize(Stream stream) {
  SIMGPU_BEGIN(cuStreamSynchronize);
  StreamObject* object = find_stream(sim, stream);
  if (object == nullptr) return kInvalidHandle;
  if (Result error = check_stream_query(sim, *object)) return error;
  Result result = sim.scheduler.wait_stream(*object);
  sim.oracle.on_host_wait(*object);
  return result;
}

SIMGPU_API Result cuStreamWaitEvent(Stream stream, Event event, unsigned flags) {
  SIMGPU_BEGIN(cuStreamWaitEvent);
  if ((flags & ~static_cast<unsigned>(kRecordExternal)) != 0) return kInvalidValue;
  StreamObject* object = find_stream(sim, stream);
  EventObject* waited = sim.events.find(event);
  if (object == nullptr || waited == nullptr) return kInvalidHandle;
  if (object->capture != nullptr && flags == kRecordExternal) {
    return submit(sim, *object, kNodeWaitEvent, WaitWork{reinterpret_cast<uint64_t>(event)});
  }
  if (object->capture != nullptr || waited->capture != 0) return capture_wait(sim, *object, *waited);
  if (object->legacy && !sim.captures.empty()) {
    if (Result error = check_legacy_use(sim, object->device)) return error;
  }
  return wait_event(sim, *object, *waited);
}

SIMGPU_API Result cuStreamGetPriority(Stream stream, int* priority) {
  SIMGPU_BEGIN(cuStreamGetPriority);
  StreamObject* object = find_stream(sim, stream);
  if (object == nullptr) return kInvalidHandle;
  if (priority == nullptr) return kInvalidValue;
  *priority = object->priority;
  return kSuccess;
}

SIMGPU_API Result cuStreamGetFlags(Stream stream, unsigned* flags) {
  SIMGPU_BEGIN(cuStreamGetFlags);
  StreamObject* object = find_stream(sim, stream);
  if (object == nullptr) return kInvalidHandle;
  if (flags == nullptr) return kInvalidValue;
  *flags = object->flags;
  return kSuccess;
}

SIMGPU_API Result cuStreamGetId(Stream stream, unsigned long long* id) {
  SIMGPU_BEGIN(cuStreamGetId);
  StreamObject* object = find_stream(sim, stream);
  if (object == nullptr) return kInvalidHandle;
  if (id == nullptr) return kInvalidValue;
  *id = object->serial;
  return kSuccess;
}

SIMGPU_API Result cuStreamGetCtx(Stream stream, Context* context) {
  SIMGPU_BEGIN(cuStreamGetCtx);
  StreamObject* object = find_stream(sim, stream);
  if (object == nullptr) return kInvalidHandle;
  if (context == nullptr) return kInvalidValue;
  *context = reinterpret_cast<Context>(sim.devices[static_cast<size_t>(object->device)].context);
  return kSuccess;
}

SIMGPU_API Result cuStreamGetDevice(Stream stream, Device* device) {
  SIMGPU_BEGIN(cuStreamGetDevice);
  StreamObject* object = find_stream(sim, stream);
  if (object == nullptr) return kInvalidHandle;
  if (device == nullptr) return kInvalidValue;
  *device = object->device;
  return kSuccess;
}

SIMGPU_API Result cuStreamAddCallback(Stream stream, StreamCallback callback, void* user_data, unsigned flags) {
  SIMGPU_BEGIN(cuStreamAddCallback);
  StreamObject* object = find_stream(sim, stream);
  if (object == nullptr) return kInvalidHandle;
  if (callback == nullptr || flags != 0) return kInvalidValue;
  HostWork work;
  work.callback = callback;
  work.stream = reinterpret_cast<uint64_t>(stream);
  work.user_data = user_data;
  return submit(sim, *object, kNodeHost, work);
}

SIMGPU_API Result cuLaunchHostFunc(Stream stream, HostFunction function, void* user_data) {
  SIMGPU_BEGIN(cuLaunchHostFunc);
  StreamObject* object = find_stream(sim, stream);
  if (object == nullptr) return kInvalidHandle;
  if (function == nullptr) return kInvalidValue;
  HostWork work;
  work.function = function;
  work.user_data = user_data;
  return submit(sim, *object, kNodeHost, work);
}
