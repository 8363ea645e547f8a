// Device variables (`__device__ T name;`) that a library registered: each gets device memory on first use, per device.
// Kept behind one mutex; called by copy.cpp.
#pragma once
#include "runtime/runtime_types.h"

namespace simgpu::runtime {

struct SymbolPlace {
  DevicePtr address;
  size_t bytes;
};

// Where the variable lives on the current device. kInvalidSymbol when nothing registered it.
Error find_symbol(const void* host_variable, SymbolPlace* place);

}  // namespace simgpu::runtime
