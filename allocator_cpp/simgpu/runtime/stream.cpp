// Streams, events and host functions.
#include "runtime/driver_link.h"

namespace simgpu::runtime {

SIMGPU_RUNTIME_API Error cudaStreamCreateWithPriority(Stream* stream, unsigned flags, int priority) {
  return with_context([&](const Driver& d) { return d.stream_create(stream, flags, priority); });
}

SIMGPU_RUNTIME_API Error cudaStreamCreateWithFlags(Stream* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

SIMGPU_RUNTIME_API Error cudaStreamCreate(Stream* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

SIMGPU_RUNTIME_API Error cudaStreamDestroy(Stream stream) {
  return with_context([&](const Driver& d) { return d.stream_destroy(stream); });
}

SIMGPU_RUNTIME_API Error cudaStreamQuery(Stream stream) {
  return with_context([&](const Driver& d) { return d.stream_query(stream); });
}

SIMGPU_RUNTIME_API Error cudaStreamSynchronize(Stream stream) {
  return with_context([&](const Driver& d) { return d.stream_synchronize(stream); });
}

SIMGPU_RUNTIME_API Error cudaStreamGetPriority(Stream stream, int* priority) {
  return with_context([&](const Driver& d) { return d.stream_priority(stream, priority); });
}

SIMGPU_RUNTIME_API Error cudaStreamGetFlags(Stream stream, unsigned* flags) {
  return with_context([&](const Driver& d) { return d.stream_flags(stream, flags); });
}

SIMGPU_RUNTIME_API Error cudaStreamGetId(Stream stream, unsigned long long* id) {
  return with_context([&](const Driver& d) { return d.stream_id(stream, id); });
}

SIMGPU_RUNTIME_API Error cudaStreamWaitEvent(Stream stream, Event event, unsigned flags) {
  return with_context([&](const Driver& d) { return d.stream_wait_event(stream, event, flags); });
}

SIMGPU_RUNTIME_API Error cudaStreamAddCallback(Stream stream, StreamCallback callback, void* user_data,
                                               unsigned flags) {
  return with_context([&](const Driver& d) { return d.stream_callback(stream, callback, user_data, flags); });
}

SIMGPU_RUNTIME_API Error cudaLaunchHostFunc(Stream stream, HostFunction function, void* user_data) {
  return with_context([&](const Driver& d) { return d.launch_host(stream, function, user_data); });
}

SIMGPU_RUNTIME_API Error cudaEventCreateWithFlags(Event* event, unsigned flags) {
  return with_context([&](const Driver& d) { return d.event_create(event, flags); });
}

SIMGPU_RUNTIME_API Error cudaEventCreate(Event* event) { return cudaEventCreateWithFlags(event, 0); }

SIMGPU_RUNTIME_API Error cudaEventDestroy(Event event) {
  return with_context([&](const Driver& d) { return d.event_destroy(event); });
}

SIMGPU_RUNTIME_API Error cudaEventRecord(Event event, Stream stream) {
  return with_context([&](const Driver& d) { return d.event_record(event, stream); });
}

SIMGPU_RUNTIME_API Error cudaEventRecordWithFlags(Event event, Stream stream, unsigned flags) {
  return with_context([&](const Driver& d) { return d.event_record_flags(event, stream, flags); });
}

SIMGPU_RUNTIME_API Error cudaEventQuery(Event event) {
  return with_context([&](const Driver& d) { return d.event_query(event); });
}

SIMGPU_RUNTIME_API Error cudaEventSynchronize(Event event) {
  return with_context([&](const Driver& d) { return d.event_synchronize(event); });
}

SIMGPU_RUNTIME_API Error cudaEventElapsedTime(float* milliseconds, Event start, Event end) {
  return with_context([&](const Driver& d) { return d.event_elapsed(milliseconds, start, end); });
}

}  // namespace simgpu::runtime
