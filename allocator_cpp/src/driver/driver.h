// The one table of driver entry points, real or simulated. Resolved once per process with dlopen("libcuda.so.1") and
// cuGetProcAddress, before anything else of the core runs; read without a lock afterwards.
#pragma once
#include <string>

#include "base/status.h"
#include "driver/cuda_abi.h"

namespace pyalloc {

namespace cuda {
struct DriverTable {
#define DRIVER_CALL(field, symbol, version, arguments) Result(*field) arguments = nullptr;
#define OPTIONAL_CALL DRIVER_CALL
#define ORACLE_CALL(field, symbol, arguments) void(*field) arguments = nullptr;
#include "driver/driver_calls.def"
#undef DRIVER_CALL
#undef OPTIONAL_CALL
#undef ORACLE_CALL
};
}  // namespace cuda
using cuda::DriverTable;

struct DriverFacts {
  std::string library;  // path as loaded; empty when there is none
  std::string missing;  // required symbols not found, separated by spaces
  int version = 0;      // as cuDriverGetVersion gives it: 13000 is 13.0
  bool simulated = false;
};

// Opens the library and fills the table; no cuInit. Repeating returns the first answer.
Status resolve_driver();
const DriverTable& driver();
const DriverFacts& driver_facts();
// From now on no call reaches the driver: each answers CUDA_ERROR_DEINITIALIZED, as the driver's own do once it is gone.
// For the end of the process, when other threads may be on their way from one call to the next.
void leave_driver();

// fail() with the entry point's name, what it was for, and the driver's name of the error.
Status driver_failure(const char* entry_point, cuda::Result error, const char* purpose);

// "CUDA_ERROR_...", or a number when the driver does not know it.
const char* driver_error_name(cuda::Result error);

}  // namespace pyalloc
