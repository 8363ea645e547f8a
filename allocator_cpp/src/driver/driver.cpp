#include "driver/driver.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <mutex>

namespace pyalloc {
namespace {

constexpr int kOldestDriver = 11000;  // VMM with POSIX file descriptors, and cuDevicePrimaryCtxRelease as declared

// Leaked on purpose: frees can arrive while the process is going down, after static destructors ran.
struct Resolved {
  DriverTable table;
  DriverFacts facts;
  Status status = kOk;
  std::string error;
};
Resolved& resolved() {
  static Resolved* one = new Resolved;
  return *one;
}

// What is called once the driver was left.
template <class... Arguments>
cuda::Result refused(Arguments...) {
  return cuda::kDeinitialized;
}
template <class... Arguments>
void ignored(Arguments...) {}

constexpr DriverTable kLeft = {
#define DRIVER_CALL(field, symbol, version, arguments) refused,
#define OPTIONAL_CALL DRIVER_CALL
#define ORACLE_CALL(field, symbol, arguments) ignored,
#include "driver/driver_calls.def"
#undef DRIVER_CALL
#undef OPTIONAL_CALL
#undef ORACLE_CALL
};

std::atomic<const DriverTable*> used{nullptr};  // once it is resolved

using GetProcAddress = cuda::Result (*)(const char*, void**, int, unsigned long long, int*);

void* find_symbol(void* library, GetProcAddress get, const char* symbol, int version) {
  void* address = nullptr;
  int found = 0;
  if (get != nullptr && get(symbol, &address, version, 0, &found) == cuda::kSuccess && address != nullptr)
    return address;
  // Drivers before 11.3 have no cuGetProcAddress; there the newest binding of a symbol is its _v2.
  if (get == nullptr && version >= 3020) {
    if (void* newer = ::dlsym(library, (std::string(symbol) + "_v2").c_str())) return newer;
  }
  return get == nullptr ? ::dlsym(library, symbol) : nullptr;
}

Status refuse(Resolved& to, Status status, std::string text) {
  to.error = std::move(text);
  to.status = status;
  return status;
}

void resolve_once(Resolved& to) {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    refuse(to, PYALLOC_NO_DRIVER,
           std::string("no NVIDIA driver: ") + (why != nullptr ? why : "libcuda.so.1 not found") +
               "; install the driver, or run under python -m pyalloc.simgpu");
    return;
  }
  auto get = reinterpret_cast<GetProcAddress>(::dlsym(library, "cuGetProcAddress_v2"));
  DriverTable& table = to.table;
#define DRIVER_CALL(field, symbol, version, arguments)                                                \
  table.field = reinterpret_cast<decltype(table.field)>(find_symbol(library, get, #symbol, version)); \
  if (table.field == nullptr) to.facts.missing += to.facts.missing.empty() ? #symbol : " " #symbol;
#define OPTIONAL_CALL(field, symbol, version, arguments) \
  table.field = reinterpret_cast<decltype(table.field)>(find_symbol(library, get, #symbol, version));
#define ORACLE_CALL(field, symbol, arguments)
#include "driver/driver_calls.def"
#undef DRIVER_CALL
#undef OPTIONAL_CALL
#undef ORACLE_CALL

  auto oracle_enabled = reinterpret_cast<int (*)()>(::dlsym(library, "simgpu_oracle_enabled"));
  to.facts.simulated = oracle_enabled != nullptr;
  if (oracle_enabled != nullptr && oracle_enabled() != 0) {
#define DRIVER_CALL(field, symbol, version, arguments)
#define OPTIONAL_CALL(field, symbol, version, arguments)
#define ORACLE_CALL(field, symbol, arguments) \
  table.field = reinterpret_cast<decltype(table.field)>(::dlsym(library, #symbol));
#include "driver/driver_calls.def"
#undef DRIVER_CALL
#undef OPTIONAL_CALL
#undef ORACLE_CALL
  }

  Dl_info where{};
  if (table.driver_version != nullptr && ::dladdr(reinterpret_cast<void*>(table.driver_version), &where) != 0 &&
      where.dli_fname != nullptr) {
    to.facts.library = where.dli_fname;
  } else {
    to.facts.library = "libcuda.so.1";
  }
  if (table.driver_version != nullptr) table.driver_version(&to.facts.version);
  if (!to.facts.missing.empty()) {
    refuse(to, PYALLOC_NO_DRIVER,
           "the NVIDIA driver at " + to.facts.library + " lacks " + to.facts.missing +
               "; a driver for CUDA 11.0 or newer has them");
  } else if (to.facts.version < kOldestDriver) {
    refuse(to, PYALLOC_NO_DRIVER,
           "the NVIDIA driver supports CUDA " + std::to_string(to.facts.version / 1000) + "." +
               std::to_string(to.facts.version % 1000 / 10) + "; pyalloc needs one for CUDA 11.0 or newer");
  }
}

}  // namespace

Status resolve_driver() {
  static std::once_flag once;
  Resolved& one = resolved();
  std::call_once(once, [&one] {
    resolve_once(one);
    const DriverTable* none = nullptr;
    used.compare_exchange_strong(none, &one.table, std::memory_order_release);  // unless it was left meanwhile
  });
  return one.status == kOk ? kOk : fail(one.status, "%s", one.error.c_str());
}

const DriverTable& driver() {
  const DriverTable* table = used.load(std::memory_order_acquire);
  return table != nullptr ? *table : resolved().table;
}
void leave_driver() { used.store(&kLeft, std::memory_order_release); }
const DriverFacts& driver_facts() { return resolved().facts; }

const char* driver_error_name(cuda::Result error) {
  static thread_local char number[32];
  const char* name = nullptr;
  if (driver().error_name != nullptr && driver().error_name(error, &name) == cuda::kSuccess && name != nullptr)
    return name;
  std::snprintf(number, sizeof number, "error %d", static_cast<int>(error));
  return number;
}

Status driver_failure(const char* entry_point, cuda::Result error, const char* purpose) {
  Status status = error == cuda::kOutOfMemory ? PYALLOC_OUT_OF_MEMORY : PYALLOC_DRIVER_ERROR;
  return fail(status, "%s failed with %s while %s", entry_point, driver_error_name(error), purpose);
}

}  // namespace pyalloc
