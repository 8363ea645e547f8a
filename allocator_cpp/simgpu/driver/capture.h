// Stream capture: while a stream captures, its work becomes nodes of a graph. Forks and joins go through events.
//
// Rules and error codes: notes at each function; every row of the driver's rules about capture is enforced here. A capture that breaks
// one is invalidated: its streams answer STREAM_CAPTURE_INVALIDATED until cuStreamEndCapture. Locked by the simulation's mutex.
#pragma once
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "streams.h"

namespace simgpu {

struct Simulation;
struct EventObject;

struct Capture {
  uint64_t id = 0;
  uint64_t graph = 0;
  StreamObject* origin = nullptr;
  CaptureMode mode = kCaptureGlobal;
  std::thread::id thread;
  bool invalidated = false;
  std::vector<StreamObject*> streams;  // the origin and those forked into it
};

Result begin_capture(Simulation& sim, StreamObject& stream, CaptureMode mode, uint64_t graph,
                     std::vector<uint64_t> nodes);
// Ends the capture that began on the stream: the graph's handle, 0 with an error.
Result end_capture(Simulation& sim, StreamObject& stream, uint64_t* graph);
void invalidate(Capture& capture);

// A call that cannot be made while a capture may be disturbed, on this thread: STREAM_CAPTURE_UNSUPPORTED, and the captures it would
// have disturbed are invalidated.
Result check_unsafe_call(Simulation& sim);
// Work about to be put on the legacy stream while a blocking stream of the device captures: STREAM_CAPTURE_IMPLICIT.
Result check_legacy_use(Simulation& sim, int device);
// Whether it would.
bool legacy_use_disturbs(Simulation& sim, int device);
// A query or synchronisation of a stream that captures: STREAM_CAPTURE_UNSUPPORTED.
Result check_stream_query(Simulation& sim, StreamObject& stream);
// The same for an event last recorded in a capture: CAPTURED_EVENT.
Result check_event_query(Simulation& sim, EventObject& event);

// Puts work on the stream: a node while it captures, else an operation.
Result submit(Simulation& sim, StreamObject& stream, NodeType type, Work work);
Result capture_record(Simulation& sim, StreamObject& stream, EventObject& event);
// Fork, join or a wait inside a capture.
Result capture_wait(Simulation& sim, StreamObject& stream, EventObject& event);

CaptureMode& thread_capture_mode();

}  // namespace simgpu
