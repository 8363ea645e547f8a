// simgpu.h: what tests and benchmarks set and read.
#include <algorithm>
#include <cstring>

#include "../simgpu.h"
#include "execute.h"
#include "simulation.h"

using namespace simgpu;

#define CONTROL extern "C" __attribute__((visibility("default")))

namespace {

thread_local std::string last_error;  // of this thread: the text stays while the caller reads it

int refuse(std::string text) {
  last_error = std::move(text);
  return -1;
}

std::string quoted(const char* text) { return std::string("'") + (text != nullptr ? text : "") + "'"; }

struct Control {
  Control() : lock(simulation_mutex()), sim(simulation()) {}
  // Of the session, which this joins: what NVML reads needs no cuInit.
  bool has_device(int device) { return device >= 0 && device < sim.configuration.devices && join_session(sim); }
  std::lock_guard<std::mutex> lock;
  Simulation& sim;
};

size_t copy_text(const std::string& text, char* buffer, size_t capacity) {
  if (buffer != nullptr && capacity > 0) {
    size_t n = std::min(capacity - 1, text.size());
    std::memcpy(buffer, text.data(), n);
    buffer[n] = '\0';
  }
  return text.size() + 1;
}

// The stream an allocator names. A default stream is the one of the memory's device: memory is freed in threads whose
// current device is another, or that have no context.
StreamObject* oracle_stream(Simulation& sim, uint64_t address, void* handle) {
  uint64_t value = reinterpret_cast<uint64_t>(handle);
  if (value > 2 || (value == 2 && current_device(sim) != nullptr)) return find_stream(sim, static_cast<Stream>(handle));
  std::vector<Piece> pieces;
  if (sim.space.translate(address, 1, AddressSpace::kAnyDevice, false, &pieces) == Fault::kNone)
    return legacy_stream(sim, sim.devices[static_cast<size_t>(pieces[0].physical->device)]);
  if (StreamObject* home = sim.oracle.home(address)) return home;
  int device = sim.oracle.asleep_on(address);
  return device < 0 ? nullptr : legacy_stream(sim, sim.devices[static_cast<size_t>(device)]);
}

}  // namespace

CONTROL int simgpu_present(void) {
  std::lock_guard<std::mutex> lock(simulation_mutex());
  last_error = configuration_error();
  return last_error.empty() ? 0 : -1;
}

CONTROL unsigned long long simgpu_thread_context(void) { return context_stack().top(); }

CONTROL const char* simgpu_last_error(void) { return last_error.c_str(); }

CONTROL int simgpu_reset(const char* configuration) {
  std::lock_guard<std::mutex> lock(simulation_mutex());
  std::string error;
  return reset_simulation(configuration, &error) ? 0 : refuse(error);
}

CONTROL int simgpu_set_stream_mode(const char* mode, uint64_t seed) {
  Control control;
  StreamMode parsed;
  if (mode == nullptr || !parse_stream_mode(mode, &parsed)) {
    return refuse("stream mode " + quoted(mode) + "; expected immediate, deferred or timed");
  }
  control.sim.scheduler.set_mode(parsed, seed);
  return 0;
}

CONTROL void simgpu_set_work_time(double us_per_operation) {
  Control control;
  control.sim.scheduler.work_time = us_per_operation;
}

CONTROL int64_t simgpu_step(int64_t n) {
  Control control;
  return control.sim.scheduler.step(n);
}

CONTROL int64_t simgpu_pending(void) {
  Control control;
  return control.sim.scheduler.pending();
}

CONTROL int simgpu_launch(void* stream, const simgpu_span* reads, size_t n_reads, const simgpu_span* writes,
                          size_t n_writes, uint8_t value) {
  Control control;
  if (!control.sim.initialized) return refuse("cuInit has not been called"), kNotInitialized;
  StreamObject* object = find_stream(control.sim, static_cast<Stream>(stream));
  if (object == nullptr) return refuse("there is no such stream, or no current context"), kInvalidHandle;
  SpanWork work;
  for (size_t i = 0; i < n_reads; ++i) work.reads.push_back({reads[i].address, reads[i].bytes});
  for (size_t i = 0; i < n_writes; ++i) work.writes.push_back({writes[i].address, writes[i].bytes});
  work.value = value;
  Result result = submit(control.sim, *object, kNodeKernel, std::move(work));
  if (result != kSuccess) refuse("the launch returned error " + std::to_string(result));
  return result;
}

CONTROL int64_t simgpu_calls(const char* entry_point) {
  Control control;
  return control.sim.calls.count(entry_point);
}

CONTROL void simgpu_reset_calls(void) {
  Control control;
  control.sim.calls.reset_counts();
}

CONTROL size_t simgpu_calls_json(char* buffer, size_t capacity) {
  Control control;
  return copy_text(control.sim.calls.json(), buffer, capacity);
}

CONTROL int simgpu_set_cost(const char* entry_point, double per_call, double per_mapping, double per_mib) {
  Control control;
  if (control.sim.calls.set_cost(entry_point, per_call, per_mapping, per_mib)) return 0;
  return refuse("no entry point is named " + quoted(entry_point));
}

CONTROL double simgpu_clock_us(void) {
  Control control;
  return control.sim.calls.clock_us;
}

CONTROL double simgpu_charged_us(void) {
  Control control;
  return control.sim.calls.charged_us;
}

CONTROL void simgpu_set_cost_moves_clock(int on) {
  Control control;
  control.sim.calls.cost_moves_clock = on != 0;
}

CONTROL void simgpu_advance(double us) {
  Control control;
  control.sim.scheduler.advance(us);
}

CONTROL int simgpu_fail(const char* entry_point, int64_t nth, int64_t times, int error) {
  Control control;
  if (control.sim.calls.fail(entry_point, nth, times, static_cast<Result>(error))) return 0;
  return refuse("no entry point is named " + quoted(entry_point) + ", or nth is below 1 or times below 0");
}

CONTROL void simgpu_clear_faults(void) {
  Control control;
  control.sim.calls.clear_faults();
}

CONTROL int64_t simgpu_violations(void) {
  Control control;
  return control.sim.violations.count();
}

CONTROL size_t simgpu_violation(int64_t i, char* buffer, size_t capacity) {
  Control control;
  const std::string* text = control.sim.violations.text(i);
  return text != nullptr ? copy_text(*text, buffer, capacity) : 0;
}

CONTROL void simgpu_clear_violations(void) {
  Control control;
  control.sim.violations.clear();
}

CONTROL int simgpu_device_count(void) {
  Control control;
  return control.sim.configuration.devices;
}

CONTROL int simgpu_set_capacity(int device, uint64_t bytes) {
  Control control;
  if (!control.has_device(device)) return refuse("there is no device " + std::to_string(device));
  control.sim.session.set_capacity(device, bytes);
  return 0;
}

CONTROL int simgpu_set_limit(int device, uint64_t bytes, int told) {
  Control control;
  if (!control.has_device(device)) return refuse("there is no device " + std::to_string(device));
  control.sim.session.set_limit(device, bytes, told != 0);
  return 0;
}

CONTROL void simgpu_set_peers(int on) {
  Control control;
  control.sim.peers = on != 0;
}

CONTROL uint64_t simgpu_capacity(int device) {
  Control control;
  return control.has_device(device) ? control.sim.session.capacity(device) : 0;
}

CONTROL uint64_t simgpu_used(int device) {
  Control control;
  return control.has_device(device) ? control.sim.session.used(device) : 0;
}

CONTROL size_t simgpu_processes(int device, int* pids, uint64_t* bytes, size_t capacity) {
  Control control;
  return control.has_device(device) ? control.sim.session.processes(device, pids, bytes, capacity) : 0;
}

CONTROL int simgpu_read(uint64_t address, void* buffer, size_t bytes) {
  Control control;
  return read_device(control.sim, address, buffer, bytes) ? 0 : refuse("the range is not fully mapped");
}

CONTROL int simgpu_write(uint64_t address, const void* buffer, size_t bytes) {
  Control control;
  return write_device(control.sim, address, buffer, bytes) ? 0 : refuse("the range is not fully mapped");
}

CONTROL uint64_t simgpu_resident(void) {
  Control control;
  return control.sim.memory.resident();
}

CONTROL int simgpu_oracle_enabled(void) {
  Control control;
  return control.sim.oracle.enabled() ? 1 : 0;
}

CONTROL void simgpu_oracle_alloc(uint64_t address, size_t bytes, void* stream) {
  Control control;
  if (!control.sim.oracle.enabled()) return;
  if (StreamObject* object = oracle_stream(control.sim, address, stream))
    control.sim.oracle.alloc(address, bytes, *object);
}

CONTROL void simgpu_oracle_free(uint64_t address, size_t bytes, void* stream) {
  Control control;
  if (!control.sim.oracle.enabled()) return;
  if (StreamObject* object = oracle_stream(control.sim, address, stream))
    control.sim.oracle.free(address, bytes, *object);
}

CONTROL void simgpu_oracle_sleep(uint64_t address, size_t bytes, int asleep) {
  Control control;
  control.sim.oracle.sleep(address, bytes, asleep != 0);
}

CONTROL void simgpu_oracle_record(uint64_t address, size_t bytes, void* stream) {
  Control control;
  if (!control.sim.oracle.enabled()) return;
  if (StreamObject* object = oracle_stream(control.sim, address, stream))
    control.sim.oracle.record(address, bytes, *object);
}
