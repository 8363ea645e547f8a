// The whole state of the simulated GPU in this process, behind one mutex, and the prologue shared by every entry point.
//
// One Simulation at a time; simgpu_reset puts a new one in its place. A forked child of a process that had called cuInit finds every
// call answering NOT_INITIALIZED, as with the real driver; at exit calls answer DEINITIALIZED.
//
// An error of asynchronous work (a device fault) is kept on the device, as on a GPU: later calls on it return it until simgpu_reset.
#pragma once
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "address_space.h"
#include "calls.h"
#include "capture.h"
#include "events.h"
#include "graphs.h"
#include "handles.h"
#include "oracle.h"
#include "physical.h"
#include "session.h"
#include "streams.h"
#include "violations.h"

namespace simgpu {

struct ContextObject {
  int device = 0;
};

struct PoolObject {
  int device = 0;
  uint64_t release_threshold = 0, reserved_high = 0, used = 0, used_high = 0;
  int reuse[3] = {1, 1, 1};
  bool is_default = false;
};

struct ModuleObject {
  int device = 0;
};

struct DeviceState {
  int ordinal = 0;
  int number = 0;        // in the session
  uint64_t context = 0;  // handle of the primary context
  int retained = 0;
  unsigned flags = 0;
  Result fault = kSuccess;
  uint8_t peers = 0;  // bit i: memory of device i may be reached from this one
  StreamObject* legacy = nullptr;
  std::map<std::thread::id, StreamObject*> per_thread;
  uint64_t default_pool = 0, current_pool = 0;
};

struct Simulation {
  explicit Simulation(const Configuration& configuration);

  Configuration configuration;
  bool initialized = false;
  bool peers = true;  // whether devices can reach each other's memory
  Session session;
  PhysicalMemory memory{&session};
  AddressSpace space{&memory};
  Calls calls;
  Violations violations;
  Scheduler scheduler;
  Oracle oracle;
  std::vector<DeviceState> devices;
  HandleTable<ContextObject, HandleKind::kContext> contexts;
  HandleTable<StreamObject*, HandleKind::kStream> streams;
  HandleTable<EventObject, HandleKind::kEvent> events;
  HandleTable<Physical, HandleKind::kMemory> memories;
  HandleTable<GraphObject, HandleKind::kGraph> graphs;
  HandleTable<NodeObject, HandleKind::kNode> nodes;
  HandleTable<ExecObject, HandleKind::kGraphExec> execs;
  HandleTable<UserObjectRecord, HandleKind::kUserObject> user_objects;
  HandleTable<PoolObject, HandleKind::kPool> pools;
  HandleTable<ModuleObject, HandleKind::kModule> modules;
  std::vector<std::unique_ptr<Capture>> captures;  // under way
  uint64_t next_capture = 1;
  std::map<std::string, uint64_t> opened;  // IPC handle's bytes -> address, of memory of other processes
  std::vector<Piece> pieces, more_pieces;  // scratch of translations

  // Records the violation and leaves the error on the device.
  void device_fault(int device, const std::string& text);
  // Device memory whose last mapping or handle reference went away goes back to the device.
  void drop_if_unused(uint64_t handle);
};

std::mutex& simulation_mutex();
std::condition_variable& simulation_changed();
// The current simulation; made from the environment at the first call. The mutex must be held.
Simulation& simulation();
// Replaces the simulation. False: the configuration is wrong, and the old one stays.
bool reset_simulation(const char* text, std::string* error);
const std::string& configuration_error();  // of the environment; empty: none
bool join_session(Simulation& sim);        // false: see configuration_error()
Result initialize(Simulation& sim);        // cuInit

// The thread's stack of current contexts. Trivially destructible: threads end after the simulation may be gone.
class ContextStack {
 public:
  uint64_t top() const { return depth_ > 0 ? contexts_[depth_ - 1] : 0; }
  bool push(uint64_t context) { return depth_ < kDeepest && (contexts_[depth_++] = context, true); }
  bool pop() { return depth_ > 0 && (--depth_, true); }
  void clear() { depth_ = 0; }

 private:
  static constexpr int kDeepest = 64;
  uint64_t contexts_[kDeepest];
  int depth_;
};
ContextStack& context_stack();
// The device of the current context; null when there is none.
DeviceState* current_device(Simulation& sim);
DeviceState* find_device(Simulation& sim, Device device);
DeviceState* context_device(Simulation& sim, Context context);
// The stream behind a handle (null and 1: the legacy stream, 2: the thread's own); null when there is no such stream.
StreamObject* find_stream(Simulation& sim, Stream stream);
StreamObject* legacy_stream(Simulation& sim, DeviceState& device);

// Set while this thread runs a host function of a stream: no driver call may be made from one.
bool& in_host_function();

// Begins every entry point: takes the mutex, counts the call, and finds out whether it must be refused.
class Enter {
 public:
  explicit Enter(Call call);
  Result error() const { return error_; }
  Simulation& sim() const { return *sim_; }
  DeviceState& device() const { return *device_; }  // of the current context, where the entry point needs one
  // Adds the call's cost on its success.
  void charge(double mappings, double bytes) { sim_->calls.charge(call_, mappings, bytes); }

 private:
  std::unique_lock<std::mutex> lock_;
  Call call_;
  Simulation* sim_ = nullptr;
  DeviceState* device_ = nullptr;
  Result error_ = kSuccess;
};

#define SIMGPU_BEGIN(symbol)                               \
  ::simgpu::Enter entered(::simgpu::Call::symbol);         \
  if (entered.error() != kSuccess) return entered.error(); \
  [[maybe_unused]] ::simgpu::Simulation& sim = entered.sim()

}  // namespace simgpu
