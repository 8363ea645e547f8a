// Libraries that are not simulated. Their first calls (the ones that make a handle, without which nothing else can be
// reached) are answered here: one line on standard error that names the library and what to do, and the library's own
// "not supported" status. Calls that need no device (versions, error texts, descriptors) still reach the real library.
#include <cstdio>
#include <mutex>
#include <set>
#include <string>

#include "libraries/driver_work.h"

namespace simgpu::libraries {
namespace {

struct Library {
  const char* name;
  const char* remedy;
  int status;
};

// LIBRARY(identifier, name, status, remedy) then GATE(library, symbol) for each of its first calls.
#define LIBRARY(identifier, name, status, remedy) constexpr Library identifier{name, remedy, status};
#define GATE(library, symbol)
#include "libraries/unsupported.def"
#undef LIBRARY
#undef GATE

// Leaked: may be called from exit handlers.
std::string& last_line() {
  static auto* line = new std::string;
  return *line;
}
std::mutex mutex;

int refuse(const Library& library, const char* symbol) {
  std::lock_guard<std::mutex> lock(mutex);
  last_line() = std::string("simgpu: ") + library.name + " is not simulated (" + symbol + "): " + library.remedy;
  static auto* said = new std::set<const char*>;
  if (said->insert(library.name).second) std::fprintf(stderr, "%s\n", last_line().c_str());
  return library.status;
}

}  // namespace

#define LIBRARY(identifier, name, status, remedy)
#define GATE(library, symbol) \
  SIMGPU_LIBRARY_API int symbol() { return refuse(library, #symbol); }
#include "libraries/unsupported.def"
#undef LIBRARY
#undef GATE

// torch puts this text into the exception it raises for an NCCL error.
SIMGPU_LIBRARY_API const char* ncclGetLastError(void*) { return last_line().c_str(); }

}  // namespace simgpu::libraries
