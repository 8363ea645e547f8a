// The NVML types that cross the boundary, declared by us: layouts are NVIDIA's.
#pragma once
#include <cstddef>
#include <cstdint>

#define SIMGPU_NVML_API extern "C" __attribute__((visibility("default")))

namespace simgpu::nvml {

enum Status : int {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kInsufficientSize = 7,
  kDriverNotLoaded = 9,
};

using Device = struct DeviceTag*;

struct Memory {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct ProcessV1 {
  unsigned pid;
  unsigned long long used_gpu_memory;
};
struct ProcessV2 {
  unsigned pid;
  unsigned long long used_gpu_memory;
  unsigned gpu_instance, compute_instance;
};
static_assert(sizeof(ProcessV1) == 16 && sizeof(ProcessV2) == 24, "nvmlProcessInfo");
struct Utilization {
  unsigned gpu, memory;
};
struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68, "nvmlPciInfo_t");

}  // namespace simgpu::nvml
