// Events: a point of a stream, remembered by cuEventRecord. Locked by the simulation's mutex.
#pragma once
#include <memory>
#include <vector>

#include "streams.h"

namespace simgpu {

struct Simulation;

struct EventObject {
  int device = 0;
  unsigned flags = 0;
  bool recorded = false;
  Position position;
  uint64_t record = 0;          // number of records made
  double completed_at = 0;      // us, of the last record that completed
  uint64_t capture = 0;         // id of the capture it was last recorded in; 0: not captured
  std::vector<uint64_t> nodes;  // captured: the stream's nodes at the record
  std::shared_ptr<VectorClock> clock;
  int shared_slot = -1;  // interprocess: in the session's table
  bool imported = false;
};

// Records the event on a stream that is not capturing.
Result record_event(Simulation& sim, uint64_t handle, EventObject& event, StreamObject& stream);
// Makes the stream wait; a never recorded event is no wait.
Result wait_event(Simulation& sim, StreamObject& stream, EventObject& event);
bool event_complete(Simulation& sim, const EventObject& event);
Result synchronize_event(Simulation& sim, EventObject& event);
void destroy_event(Simulation& sim, uint64_t handle);

}  // namespace simgpu
