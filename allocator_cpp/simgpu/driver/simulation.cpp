#include "simulation.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "visible_devices.h"

namespace simgpu {
namespace {

Simulation* current = nullptr;   // never freed at exit: calls may still come from other libraries' destructors
std::atomic<uint64_t> epoch{0};  // counts simulations: tells a thread that its contexts are gone
bool forked = false;
bool exiting = false;
std::string environment_error;

Configuration environment_configuration() {
  Configuration configuration;
  const char* text = std::getenv("PYALLOC_SIMGPU");
  environment_error.clear();
  parse_configuration(text != nullptr ? text : "", &configuration, &environment_error);
  return configuration;
}

// The child of a process that used the device cannot: its copy of the state is the parent's.
void in_child() {
  new (&simulation_mutex()) std::mutex;
  if (current == nullptr) return;
  if (current->initialized) {
    forked = true;
  } else {
    current->session.abandon();  // joins anew, as a process of its own, when it needs to
  }
}

__attribute__((constructor)) void watch_forks() { pthread_atfork(nullptr, nullptr, in_child); }

__attribute__((destructor)) void leave_session() {
  std::lock_guard<std::mutex> lock(simulation_mutex());
  exiting = true;
  if (current != nullptr && !forked) current->session.leave();
}

}  // namespace

std::mutex& simulation_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

std::condition_variable& simulation_changed() {
  static auto* changed = new std::condition_variable;
  return *changed;
}

Simulation::Simulation(const Configuration& wanted)
    : configuration(wanted), scheduler(this), oracle(this, wanted.oracle) {}

Simulation& simulation() {
  if (current == nullptr) {
    current = new Simulation(environment_configuration());
    ++epoch;
  }
  return *current;
}

const std::string& configuration_error() {
  simulation();
  return environment_error;
}

bool reset_simulation(const char* text, std::string* error) {
  Configuration configuration;
  if (text == nullptr) {
    configuration = environment_configuration();
    *error = environment_error;
    if (!error->empty()) return false;
  } else if (!parse_configuration(text, &configuration, error)) {
    return false;
  }
  environment_error.clear();
  if (forked) {
    current->session.abandon();  // the files behind the old state are the parent's: leak it
    forked = false;
  } else {
    delete current;
  }
  current = new Simulation(configuration);
  ++epoch;
  return true;
}

bool join_session(Simulation& sim) {
  if (!environment_error.empty()) return false;
  return sim.session.joined() || sim.session.join(sim.configuration, &environment_error);
}

Result initialize(Simulation& sim) {
  if (sim.initialized) return kSuccess;
  if (!join_session(sim)) return kOperatingSystem;
  std::vector<int> visible = visible_devices(std::getenv("CUDA_VISIBLE_DEVICES"), sim.configuration.devices);
  if (visible.empty()) return kNoDevice;
  sim.memory.set_visible(visible);
  sim.devices.resize(visible.size());
  for (size_t i = 0; i < visible.size(); ++i) {
    DeviceState& device = sim.devices[i];
    device.ordinal = static_cast<int>(i);
    device.number = visible[i];
    auto context = std::make_unique<ContextObject>();
    context->device = device.ordinal;
    device.context = sim.contexts.insert(std::move(context));
    auto pool = std::make_unique<PoolObject>();
    pool->device = device.ordinal;
    pool->is_default = true;
    device.default_pool = device.current_pool = sim.pools.insert(std::move(pool));
  }
  sim.initialized = true;
  return kSuccess;
}

ContextStack& context_stack() {
  static thread_local ContextStack stack;  // zero: empty
  static thread_local uint64_t stack_epoch = 0;
  uint64_t now = epoch.load(std::memory_order_relaxed);
  if (stack_epoch != now) {
    stack.clear();
    stack_epoch = now;
  }
  return stack;
}

DeviceState* find_device(Simulation& sim, Device device) {
  return device >= 0 && device < static_cast<int>(sim.devices.size()) ? &sim.devices[static_cast<size_t>(device)]
                                                                      : nullptr;
}

DeviceState* context_device(Simulation& sim, Context context) {
  ContextObject* object = sim.contexts.find(context);
  return object != nullptr ? &sim.devices[static_cast<size_t>(object->device)] : nullptr;
}

DeviceState* current_device(Simulation& sim) {
  return context_device(sim, reinterpret_cast<Context>(context_stack().top()));
}

StreamObject* legacy_stream(Simulation& sim, DeviceState& device) {
  if (device.legacy == nullptr) {
    device.legacy = sim.scheduler.create(device.ordinal, kStreamDefault, 0);
    device.legacy->legacy = true;
  }
  return device.legacy;
}

StreamObject* find_stream(Simulation& sim, Stream stream) {
  uint64_t value = reinterpret_cast<uint64_t>(stream);
  if (value > 2) {
    StreamObject** found = sim.streams.find(value);
    return found != nullptr ? *found : nullptr;
  }
  DeviceState* device = current_device(sim);
  if (device == nullptr) return nullptr;
  if (value < 2) return legacy_stream(sim, *device);
  StreamObject*& own = device->per_thread[std::this_thread::get_id()];
  if (own == nullptr) own = sim.scheduler.create(device->ordinal, kStreamDefault, 0);
  return own;
}

void Simulation::device_fault(int device, const std::string& text) {
  violations.add("device fault: %s", text.c_str());
  devices[static_cast<size_t>(device)].fault = kIllegalAddress;
}

void Simulation::drop_if_unused(uint64_t handle) {
  Physical* physical = memories.find(handle);
  if (physical == nullptr || physical->handles > 0 || physical->mappings > 0) return;
  oracle.on_release(*physical);
  memory.destroy(memories.remove(handle));
}

bool& in_host_function() {
  static thread_local bool inside = false;
  return inside;
}

Enter::Enter(Call call) : call_(call) {
  if (in_host_function()) {
    error_ = kNotPermitted;
    return;
  }
  if (forked) {
    error_ = kNotInitialized;
    return;
  }
  lock_ = std::unique_lock<std::mutex>(simulation_mutex());
  if (exiting) {
    error_ = kDeinitialized;
    return;
  }
  sim_ = &simulation();
  unsigned traits = kEntryPoints[static_cast<int>(call)].traits;
  if ((error_ = sim_->calls.begin(call)) != kSuccess || traits == kAlways) return;
  if (!sim_->initialized) {
    error_ = kNotInitialized;
    return;
  }
  if ((traits & (kNeedsContext | kReportsFault)) != 0) {
    device_ = current_device(*sim_);
    if (device_ == nullptr && (traits & kNeedsContext) != 0) {
      error_ = kInvalidContext;
      return;
    }
    if (device_ != nullptr && (traits & kReportsFault) != 0 && device_->fault != kSuccess) {
      error_ = device_->fault;
      return;
    }
  }
  if ((traits & kUnsafeInCapture) != 0) error_ = check_unsafe_call(*sim_);
}

}  // namespace simgpu
