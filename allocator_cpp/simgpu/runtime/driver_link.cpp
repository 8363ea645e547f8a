#include "runtime/driver_link.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <set>
#include <string>

namespace simgpu::runtime {
namespace {

constexpr int kMaxDevices = 8;

struct ThreadState {
  Error last_error = kSuccess;
  int device = 0;                   // set by cudaSetDevice; counts while no context is current
  Context known_context = nullptr;  // the context last seen current, and its device: saves a driver call
  int known_device = 0;
};
thread_local ThreadState state;

std::array<std::atomic<Context>, kMaxDevices> primary_contexts{};

// Stands in for an entry point that this libcuda does not have: callable with any arguments on x86-64 and AArch64.
int missing_entry_point() { return kNotSupported; }

template <typename Function>
void resolve(Function& slot, const Driver& driver, const char* symbol, int version) {
  void* found = nullptr;
  if (driver.proc_address(symbol, &found, version, 0, nullptr) != kSuccess || found == nullptr) {
    found = reinterpret_cast<void*>(&missing_entry_point);
  }
  slot = reinterpret_cast<Function>(found);
}

bool load(Driver& table) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "simgpu: libcuda.so.1 cannot be loaded (%s); start with python -m pyalloc.simgpu\n",
                 dlerror());
    return false;
  }
  auto present = reinterpret_cast<int (*)()>(dlsym(library, "simgpu_present"));
  if (present == nullptr) {
    std::fprintf(stderr,
                 "simgpu: libcuda.so.1 is a real driver's, loaded before the simulated one; start with python -m "
                 "pyalloc.simgpu\n");
    return false;
  }
  if (present() != 0) {
    auto reason = reinterpret_cast<const char* (*)()>(dlsym(library, "simgpu_last_error"));
    std::fprintf(stderr, "simgpu: %s\n", reason != nullptr ? reason() : "the simulated driver is not usable");
    return false;
  }
  table.proc_address = reinterpret_cast<decltype(table.proc_address)>(dlsym(library, "cuGetProcAddress_v2"));
  table.launch = reinterpret_cast<decltype(table.launch)>(dlsym(library, "simgpu_launch"));
  table.thread_context = reinterpret_cast<decltype(table.thread_context)>(dlsym(library, "simgpu_thread_context"));
  if (table.proc_address == nullptr || table.launch == nullptr || table.thread_context == nullptr) {
    std::fprintf(stderr,
                 "simgpu: libcuda.so.1 and libsimgpu_runtime.so are of different versions; reinstall pyalloc\n");
    return false;
  }
#define DRIVER_CALL(field, symbol, version, arguments) resolve(table.field, table, #symbol, version);
#include "runtime/driver_calls.def"
#undef DRIVER_CALL
  return true;
}

}  // namespace

const Driver* driver() {
  static Driver table{};
  static const bool usable = load(table);
  return usable ? &table : nullptr;
}

Error record(int result) {
  if (result != kSuccess) state.last_error = static_cast<Error>(result);
  return static_cast<Error>(result);
}

Error take_last_error() {
  Error error = state.last_error;
  state.last_error = kSuccess;
  return error;
}

Error peek_last_error() { return state.last_error; }

Error initialise() {
  const Driver* table = driver();
  if (table == nullptr) return kInsufficientDriver;
  return static_cast<Error>(table->init(0));
}

Error primary_context(int device, Context* context) {
  if (device < 0 || device >= kMaxDevices) return kInvalidDevice;
  Context known = primary_contexts[device].load(std::memory_order_acquire);
  if (known == nullptr) {
    if (int result = driver()->primary_retain(&known, device)) return static_cast<Error>(result);
    primary_contexts[device].store(known, std::memory_order_release);
  }
  *context = known;
  return kSuccess;
}

namespace {

Error make_current(int device) {
  Context context = nullptr;
  if (Error error = primary_context(device, &context)) return error;
  int result = driver()->context_set(context);
  if (result == kInvalidContext) {  // simgpu_reset dropped it: retain the new one
    primary_contexts[device].store(nullptr, std::memory_order_release);
    if (Error error = primary_context(device, &context)) return error;
    result = driver()->context_set(context);
  }
  return static_cast<Error>(result);
}

}  // namespace

Error bind_context() {
  const Driver* table = driver();
  if (table == nullptr) return kInsufficientDriver;
  Context context = nullptr;
  if (table->context_current(&context) == kSuccess && context != nullptr) return kSuccess;
  if (Error error = initialise()) return error;
  return make_current(state.device);
}

Error current_device(int* device) {
  if (device == nullptr) return kInvalidValue;
  const Driver* table = driver();
  if (table == nullptr) return kInsufficientDriver;
  // Without the driver's lock, as the real runtime: allocators ask before every allocation.
  auto context = reinterpret_cast<Context>(table->thread_context());
  if (context == nullptr) {
    *device = state.device;
    return kSuccess;
  }
  if (context != state.known_context) {
    if (int result = table->context_device(&state.known_device)) return static_cast<Error>(result);
    state.known_context = context;
  }
  *device = state.known_device;
  return kSuccess;
}

Error select_device(int device) {
  if (Error error = initialise()) return error;
  int count = 0;
  if (int result = driver()->device_count(&count)) return static_cast<Error>(result);
  if (device < 0 || device >= count) return kInvalidDevice;
  if (Error error = make_current(device)) return error;
  state.device = device;
  return kSuccess;
}

void say_not_simulated(const char* feature, const char* remedy) {
  static std::mutex mutex;
  static std::set<std::string> said;
  std::lock_guard<std::mutex> lock(mutex);
  if (said.insert(feature).second) std::fprintf(stderr, "simgpu: %s is not simulated: %s\n", feature, remedy);
}

}  // namespace simgpu::runtime
