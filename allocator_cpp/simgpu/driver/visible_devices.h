// CUDA_VISIBLE_DEVICES: which devices of the simulation this process sees, and in which order.
#pragma once
#include <vector>

namespace simgpu {

// Indices of the simulation's devices, by the ordinal the driver gives them. `text` as in the environment variable: numbers or UUIDs
// (their beginning suffices), separated by commas; what follows the first wrong entry is not visible. Null: all devices.
std::vector<int> visible_devices(const char* text, int devices);

}  // namespace simgpu
