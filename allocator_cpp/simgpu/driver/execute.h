// Doing what an operation says: bytes are moved, spans checked, host functions called. Locked by the simulation's mutex.
#pragma once
#include "streams.h"

namespace simgpu {

struct Simulation;

// Errors are recorded as violations and left on the stream's device.
void execute(Simulation& sim, StreamObject& stream, Operation& operation);

// Moves bytes at once, without a stream: simgpu_read and simgpu_write, copies between host addresses.
bool read_device(Simulation& sim, uint64_t address, void* host, uint64_t bytes);
bool write_device(Simulation& sim, uint64_t address, const void* host, uint64_t bytes);

}  // namespace simgpu
