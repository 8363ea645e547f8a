// What nvcc's start-up code calls: libraries with kernels announce their code and device variables when they are
// loaded. Kernels do nothing here, so their code is not kept; variables are, since programs copy to them.
#include <map>
#include <mutex>

#include "runtime/driver_link.h"
#include "runtime/symbols.h"

namespace simgpu::runtime {
namespace {

struct Variable {
  size_t bytes = 0;
  std::map<int, DevicePtr> places;  // device to address
};

std::mutex mutex;

// Leaked on purpose: libraries unregister from exit handlers that may run after our own destructors.
std::map<const void*, Variable>& variables() {
  static auto* all = new std::map<const void*, Variable>;
  return *all;
}

}  // namespace

Error find_symbol(const void* host_variable, SymbolPlace* place) {
  int device = 0;
  if (Error error = current_device(&device)) return error;
  std::lock_guard<std::mutex> lock(mutex);
  auto found = variables().find(host_variable);
  if (found == variables().end()) return kInvalidSymbol;
  DevicePtr& address = found->second.places[device];
  if (address == 0) {
    if (int result = driver()->memory_alloc(&address, found->second.bytes)) return static_cast<Error>(result);
  }
  *place = {address, found->second.bytes};
  return kSuccess;
}

SIMGPU_RUNTIME_API void** __cudaRegisterFatBinary(void* code) { return reinterpret_cast<void**>(code); }
SIMGPU_RUNTIME_API void __cudaRegisterFatBinaryEnd(void**) {}
SIMGPU_RUNTIME_API void __cudaUnregisterFatBinary(void**) {}
SIMGPU_RUNTIME_API char __cudaInitModule(void**) { return 1; }
SIMGPU_RUNTIME_API void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*,
                                               int*) {}

SIMGPU_RUNTIME_API void __cudaRegisterVar(void**, char* host_variable, char*, const char*, int, size_t bytes, int,
                                          int) {
  std::lock_guard<std::mutex> lock(mutex);
  variables()[host_variable].bytes = bytes;
}

}  // namespace simgpu::runtime
