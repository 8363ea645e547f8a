// Entry points: initialisation, versions, error texts, cuGetProcAddress.
#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "../simgpu.h"
#include "simulation.h"

namespace simgpu {
namespace {

constexpr int kDriverVersion = 13000;

struct ErrorCode {
  const char* name;
  int value;
};
constexpr ErrorCode kErrorCodes[] = {
#define ERROR_CODE(name, value) {#name, value},
#include "error_codes.def"
#undef ERROR_CODE
};

const char* error_name(int value) {
  for (const ErrorCode& code : kErrorCodes) {
    if (code.value == value) return code.name;
  }
  return nullptr;
}

// "CUDA_ERROR_INVALID_VALUE" reads "invalid value".
const char* error_string(int value) {
  static std::map<int, std::string>& texts = *new std::map<int, std::string>;
  const char* name = error_name(value);
  if (name == nullptr) return nullptr;
  std::string& text = texts[value];
  if (text.empty()) {
    text = name + (std::strncmp(name, "CUDA_ERROR_", 11) == 0 ? 11 : 0);
    for (char& c : text) c = c == '_' ? ' ' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (value == kSuccess) text = "no error";
  }
  return text.c_str();
}

// The newest version of the name that is no newer than asked for; a symbol's own name finds it too.
template <typename Entry>
ProcAddressStatus resolve_among(const Entry* entries, int count, const char* name, int version, void** address) {
  bool known = false;
  for (int i = 0; i < count; ++i) {
    const Entry& entry = entries[i];
    if (std::strcmp(entry.name, name) != 0) continue;
    known = true;
    if (entry.version <= version) *address = entry.address;
  }
  if (*address != nullptr) return kProcFound;
  if (known) return kProcVersionTooLow;
  for (int i = 0; i < count; ++i) {
    if (std::strcmp(entries[i].symbol, name) == 0) return *address = entries[i].address, kProcFound;
  }
  return kProcNotFound;
}

// simgpu's own functions that an allocator calls through its driver table.
struct OwnFunction {
  const char* name;
  void* address;
};
const OwnFunction kOwnFunctions[] = {
    {"simgpu_oracle_enabled", reinterpret_cast<void*>(&simgpu_oracle_enabled)},
    {"simgpu_oracle_alloc", reinterpret_cast<void*>(&simgpu_oracle_alloc)},
    {"simgpu_oracle_free", reinterpret_cast<void*>(&simgpu_oracle_free)},
    {"simgpu_oracle_record", reinterpret_cast<void*>(&simgpu_oracle_record)},
    {"simgpu_oracle_sleep", reinterpret_cast<void*>(&simgpu_oracle_sleep)},
};

ProcAddressStatus resolve(const char* name, int version, void** address) {
  *address = nullptr;
  for (const OwnFunction& own : kOwnFunctions) {
    if (std::strcmp(own.name, name) == 0) return *address = own.address, kProcFound;
  }
  ProcAddressStatus status = resolve_among(kEntryPoints, static_cast<int>(Call::kCount), name, version, address);
  return status != kProcNotFound ? status
                                 : resolve_among(kUnsupportedEntryPoints, kUnsupportedCount, name, version, address);
}

}  // namespace
}  // namespace simgpu

using namespace simgpu;

SIMGPU_API Result cuInit(unsigned flags) {
  SIMGPU_BEGIN(cuInit);
  if (flags != 0) return kInvalidValue;
  Result result = initialize(sim);
  if (!configuration_error().empty()) std::fprintf(stderr, "simgpu: %s\n", configuration_error().c_str());
  return result;
}

SIMGPU_API Result cuDriverGetVersion(int* version) {
  SIMGPU_BEGIN(cuDriverGetVersion);
  if (version == nullptr) return kInvalidValue;
  *version = kDriverVersion;
  return kSuccess;
}

SIMGPU_API Result cuGetErrorName(Result error, const char** text) {
  if (text == nullptr) return kInvalidValue;
  *text = error_name(error);
  return *text != nullptr ? kSuccess : kInvalidValue;
}

SIMGPU_API Result cuGetErrorString(Result error, const char** text) {
  SIMGPU_BEGIN(cuGetErrorString);
  if (text == nullptr) return kInvalidValue;
  *text = error_string(error);
  return *text != nullptr ? kSuccess : kInvalidValue;
}

SIMGPU_API Result cuGetProcAddress_v2(const char* name, void** address, int version, uint64_t flags, int* status) {
  SIMGPU_BEGIN(cuGetProcAddress_v2);
  (void)flags;  // which default stream the caller wants: callers here name it in each call
  if (name == nullptr || address == nullptr) return kInvalidValue;
  ProcAddressStatus found = resolve(name, version, address);
  if (status != nullptr) {
    *status = found;
    return kSuccess;
  }
  return found == kProcFound ? kSuccess : kNotFound;
}

SIMGPU_API Result cuGetProcAddress(const char* name, void** address, int version, uint64_t flags) {
  SIMGPU_BEGIN(cuGetProcAddress);
  (void)flags;
  if (name == nullptr || address == nullptr) return kInvalidValue;
  return resolve(name, version, address) == kProcFound ? kSuccess : kNotFound;
}

// The driver's own log: this one says nothing there.
SIMGPU_API Result cuLogsRegisterCallback(void* callback, void* user_data, void** handle) {
  SIMGPU_BEGIN(cuLogsRegisterCallback);
  (void)user_data;
  if (callback == nullptr) return kInvalidValue;
  if (handle != nullptr) *handle = callback;
  return kSuccess;
}

SIMGPU_API Result cuLogsUnregisterCallback(void* handle) {
  SIMGPU_BEGIN(cuLogsUnregisterCallback);
  return handle != nullptr ? kSuccess : kInvalidValue;
}

// Private tables between NVIDIA's own libraries. Who asks for one is a CUDA runtime linked into a library or an
// extension: it cannot work here, and most of them report no more than a failed initialisation.
SIMGPU_API Result cuGetExportTable(const void** table, const Uuid*) {
  SIMGPU_BEGIN(cuGetExportTable);
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) {
    std::fprintf(stderr,
                 "simgpu: a library with a CUDA runtime of its own (cuRAND, an extension linked with cudart_static) is "
                 "not "
                 "simulated: link it with the shared runtime, or leave it out\n");
  }
  if (table == nullptr) return kInvalidValue;
  *table = nullptr;
  return kNotFound;
}
