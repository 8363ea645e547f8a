// The runtime stand-in's way to the simulated driver: the table of entry points, the thread's device and context, the
// thread's last error. Everything else in this folder is a translation of one runtime call into one or two calls of
// this table. No locks: the table is filled once, the rest is per thread. Called by every file of this folder and by
// nothing else.
#pragma once
#include "driver_copy.h"
#include "runtime/runtime_types.h"
#include "simgpu.h"

namespace simgpu::runtime {

struct Driver {
#define DRIVER_CALL(field, symbol, version, arguments) int(*field) arguments;
#include "runtime/driver_calls.def"
#undef DRIVER_CALL
  int (*proc_address)(const char* symbol, void** function, int version, unsigned long long flags, int* status);
  decltype(&simgpu_launch) launch;
  decltype(&simgpu_thread_context) thread_context;
};

// Null when libcuda.so.1 is missing or is not simgpu's; the reason has been printed once.
const Driver* driver();

// Keeps `result` for cudaGetLastError when it is an error, and returns it.
Error record(int result);
Error take_last_error();
Error peek_last_error();

// The driver, initialised: cuInit has succeeded. Most calls that need no context.
Error initialise();
// A context is current on this thread: the one that is, else the primary context of the thread's device.
Error bind_context();

Error current_device(int* device);
Error select_device(int device);
// The primary context of any device, retained once per process.
Error primary_context(int device, Context* context);

template <typename Call>
Error with_driver(Call call) {
  if (Error error = initialise()) return record(error);
  return record(call(*driver()));
}

template <typename Call>
Error with_context(Call call) {
  if (Error error = bind_context()) return record(error);
  return record(call(*driver()));
}

inline DevicePtr address_of(const void* pointer) { return reinterpret_cast<DevicePtr>(pointer); }

// One line on standard error, once per process for each `feature`.
void say_not_simulated(const char* feature, const char* remedy);

}  // namespace simgpu::runtime
