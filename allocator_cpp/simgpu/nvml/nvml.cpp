// NVML: what torch, torch.cuda.utilization and monitoring tools ask of it, answered from the simulation's own state. As
// with the real library nothing here initialises CUDA, so a process may count devices and fork afterwards. A device
// handle is the device's number plus one. No state of its own beyond the count of nvmlInit calls, hence no lock.
#include <atomic>
#include <cstdio>
#include <cstring>

#include "device_identity.h"
#include "nvml/nvml_types.h"
#include "simgpu.h"

namespace simgpu::nvml {
namespace {

constexpr int kDriverVersion = 13000;  // the CUDA version the driver is for
constexpr unsigned kIdlePowerMilliwatts = 70000;
constexpr unsigned kTemperatureCelsius = 30;
constexpr unsigned kClockMegahertz = 1980;
constexpr int kMaxProcesses = 64;

std::atomic<int> users{0};

int device_of(Device handle) { return static_cast<int>(reinterpret_cast<uintptr_t>(handle)) - 1; }
bool is_device(int device) { return device >= 0 && device < simgpu_device_count(); }

// Runs `answer(device)` when NVML is initialised and the handle is one of ours.
template <typename Answer>
Status with_device(Device handle, Answer answer) {
  if (users.load() == 0) return kUninitialized;
  int device = device_of(handle);
  return is_device(device) ? answer(device) : kInvalidArgument;
}

Status give_handle(int device, Device* out) {
  if (out == nullptr) return kInvalidArgument;
  if (!is_device(device)) return kNotFound;
  *out = reinterpret_cast<Device>(static_cast<uintptr_t>(device) + 1);
  return kSuccess;
}

Status give_text(const char* text, char* out, unsigned capacity) {
  if (out == nullptr) return kInvalidArgument;
  if (std::strlen(text) + 1 > capacity) return kInsufficientSize;
  std::strcpy(out, text);
  return kSuccess;
}

// A structure whose first word is its size and version: everything after that word becomes zero.
Status clear_versioned(void* structure) {
  if (structure == nullptr) return kInvalidArgument;
  unsigned bytes = *static_cast<unsigned*>(structure) & 0xffffff;
  if (bytes < sizeof(unsigned)) return kInvalidArgument;
  std::memset(static_cast<char*>(structure) + sizeof(unsigned), 0, bytes - sizeof(unsigned));
  return kSuccess;
}

template <typename Process>
Status list_processes(Device handle, unsigned* count, Process* out) {
  return with_device(handle, [&](int device) {
    if (count == nullptr) return kInvalidArgument;
    int pids[kMaxProcesses];
    uint64_t bytes[kMaxProcesses];
    size_t held = simgpu_processes(device, pids, bytes, kMaxProcesses);
    if (held > kMaxProcesses) held = kMaxProcesses;
    unsigned capacity = *count;
    *count = static_cast<unsigned>(held);
    if (held > capacity) return kInsufficientSize;
    if (held > 0 && out == nullptr) return kInvalidArgument;
    for (size_t i = 0; i < held; ++i) {
      std::memset(&out[i], 0, sizeof out[i]);
      out[i].pid = static_cast<unsigned>(pids[i]);
      out[i].used_gpu_memory = bytes[i];
    }
    return kSuccess;
  });
}

}  // namespace

SIMGPU_NVML_API Status nvmlInit_v2() {
  if (simgpu_present() != 0) return kDriverNotLoaded;
  ++users;
  return kSuccess;
}
SIMGPU_NVML_API Status nvmlInit() { return nvmlInit_v2(); }
SIMGPU_NVML_API Status nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }

SIMGPU_NVML_API Status nvmlShutdown() {
  if (users.load() == 0) return kUninitialized;
  --users;
  return kSuccess;
}

SIMGPU_NVML_API const char* nvmlErrorString(Status status) {
  switch (status) {
    case kSuccess:
      return "Success";
    case kUninitialized:
      return "Uninitialized";
    case kInvalidArgument:
      return "Invalid Argument";
    case kNotSupported:
      return "Not Supported";
    case kNotFound:
      return "Not Found";
    case kInsufficientSize:
      return "Insufficient Size";
    case kDriverNotLoaded:
      return "Driver Not Loaded";
    default:
      return "Unknown Error";
  }
}

SIMGPU_NVML_API Status nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (version == nullptr) return kInvalidArgument;
  *version = kDriverVersion;
  return kSuccess;
}
SIMGPU_NVML_API Status nvmlSystemGetCudaDriverVersion(int* version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}
SIMGPU_NVML_API Status nvmlSystemGetDriverVersion(char* out, unsigned capacity) {
  return give_text("580.0 (simgpu)", out, capacity);
}
SIMGPU_NVML_API Status nvmlSystemGetNVMLVersion(char* out, unsigned capacity) {
  return give_text("13.580.0", out, capacity);
}

SIMGPU_NVML_API Status nvmlDeviceGetCount_v2(unsigned* count) {
  if (users.load() == 0) return kUninitialized;
  if (count == nullptr) return kInvalidArgument;
  *count = static_cast<unsigned>(simgpu_device_count());
  return kSuccess;
}
SIMGPU_NVML_API Status nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }

SIMGPU_NVML_API Status nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* out) {
  if (users.load() == 0) return kUninitialized;
  return is_device(static_cast<int>(index)) ? give_handle(static_cast<int>(index), out) : kInvalidArgument;
}
SIMGPU_NVML_API Status nvmlDeviceGetHandleByIndex(unsigned index, Device* out) {
  return nvmlDeviceGetHandleByIndex_v2(index, out);
}

SIMGPU_NVML_API Status nvmlDeviceGetHandleByPciBusId_v2(const char* text, Device* out) {
  if (users.load() == 0) return kUninitialized;
  unsigned domain = 0;
  unsigned bus = 0;
  if (text == nullptr || std::sscanf(text, "%x:%x:", &domain, &bus) != 2) return kInvalidArgument;
  return give_handle(static_cast<int>(bus) - kFirstPciBus, out);
}
SIMGPU_NVML_API Status nvmlDeviceGetHandleByPciBusId(const char* text, Device* out) {
  return nvmlDeviceGetHandleByPciBusId_v2(text, out);
}

SIMGPU_NVML_API Status nvmlDeviceGetHandleByUUID(const char* uuid, Device* out) {
  if (users.load() == 0) return kUninitialized;
  if (uuid == nullptr) return kInvalidArgument;
  for (int device = 0; device < simgpu_device_count(); ++device) {
    char own[kUuidTextBytes];
    write_uuid_text(device, own);
    if (std::strcmp(own, uuid) == 0) return give_handle(device, out);
  }
  return kNotFound;
}

SIMGPU_NVML_API Status nvmlDeviceGetIndex(Device handle, unsigned* index) {
  return with_device(handle, [&](int device) {
    *index = static_cast<unsigned>(device);
    return kSuccess;
  });
}
SIMGPU_NVML_API Status nvmlDeviceGetMinorNumber(Device handle, unsigned* minor) {
  return nvmlDeviceGetIndex(handle, minor);
}

SIMGPU_NVML_API Status nvmlDeviceGetUUID(Device handle, char* out, unsigned capacity) {
  return with_device(handle, [&](int device) {
    char own[kUuidTextBytes];
    write_uuid_text(device, own);
    return give_text(own, out, capacity);
  });
}

SIMGPU_NVML_API Status nvmlDeviceGetName(Device handle, char* out, unsigned capacity) {
  return with_device(handle, [&](int) { return give_text(kDeviceName, out, capacity); });
}

SIMGPU_NVML_API Status nvmlDeviceGetPciInfo_v3(Device handle, PciInfo* out) {
  return with_device(handle, [&](int device) {
    if (out == nullptr) return kInvalidArgument;
    std::memset(out, 0, sizeof *out);
    auto bus = static_cast<unsigned char>(kFirstPciBus + device);
    out->bus = bus;
    std::snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "0000:%02X:00.0", bus);
    std::snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", bus);
    return kSuccess;
  });
}

SIMGPU_NVML_API Status nvmlDeviceGetCudaComputeCapability(Device handle, int* major, int* minor) {
  return with_device(handle, [&](int) {
    *major = kComputeMajor;
    *minor = kComputeMinor;
    return kSuccess;
  });
}

SIMGPU_NVML_API Status nvmlDeviceGetMemoryInfo(Device handle, Memory* out) {
  return with_device(handle, [&](int device) {
    if (out == nullptr) return kInvalidArgument;
    uint64_t used = simgpu_used(device);
    *out = {simgpu_capacity(device), simgpu_capacity(device) - used, used};
    return kSuccess;
  });
}

SIMGPU_NVML_API Status nvmlDeviceGetMemoryInfo_v2(Device handle, MemoryV2* out) {
  return with_device(handle, [&](int device) {
    if (out == nullptr) return kInvalidArgument;
    uint64_t used = simgpu_used(device);
    *out = {out->version, simgpu_capacity(device), 0, simgpu_capacity(device) - used, used};
    return kSuccess;
  });
}

SIMGPU_NVML_API Status nvmlDeviceGetComputeRunningProcesses(Device handle, unsigned* count, ProcessV1* out) {
  return list_processes(handle, count, out);
}
SIMGPU_NVML_API Status nvmlDeviceGetComputeRunningProcesses_v2(Device handle, unsigned* count, ProcessV2* out) {
  return list_processes(handle, count, out);
}
SIMGPU_NVML_API Status nvmlDeviceGetComputeRunningProcesses_v3(Device handle, unsigned* count, ProcessV2* out) {
  return list_processes(handle, count, out);
}

// Kernels take no time here: a simulated device is idle, cool and at its clock.
SIMGPU_NVML_API Status nvmlDeviceGetUtilizationRates(Device handle, Utilization* out) {
  return with_device(handle, [&](int) {
    *out = {0, 0};
    return kSuccess;
  });
}
SIMGPU_NVML_API Status nvmlDeviceGetTemperature(Device handle, int, unsigned* celsius) {
  return with_device(handle, [&](int) {
    *celsius = kTemperatureCelsius;
    return kSuccess;
  });
}
SIMGPU_NVML_API Status nvmlDeviceGetPowerUsage(Device handle, unsigned* milliwatts) {
  return with_device(handle, [&](int) {
    *milliwatts = kIdlePowerMilliwatts;
    return kSuccess;
  });
}
SIMGPU_NVML_API Status nvmlDeviceGetClockInfo(Device handle, int, unsigned* megahertz) {
  return with_device(handle, [&](int) {
    *megahertz = kClockMegahertz;
    return kSuccess;
  });
}

// No NVSwitch fabric and no NVLink: state 0 is "not supported". torch asks before the first expandable segment.
SIMGPU_NVML_API Status nvmlDeviceGetGpuFabricInfoV(Device handle, void* out) {
  return with_device(handle, [&](int) { return clear_versioned(out); });
}
SIMGPU_NVML_API Status nvmlDeviceGetGpuFabricInfo(Device, void*) { return kNotSupported; }
SIMGPU_NVML_API Status nvmlDeviceGetNvLinkState(Device, unsigned, unsigned*) { return kNotSupported; }
SIMGPU_NVML_API Status nvmlDeviceGetNvLinkRemoteDeviceType(Device, unsigned, unsigned*) { return kNotSupported; }
SIMGPU_NVML_API Status nvmlDeviceGetNvLinkRemotePciInfo_v2(Device, unsigned, PciInfo*) { return kNotSupported; }

SIMGPU_NVML_API Status nvmlDeviceGetP2PStatus(Device one, Device other, int, int* status) {
  return with_device(one, [&](int) {
    return with_device(other, [&](int) {
      *status = 0;  // NVML_P2P_STATUS_OK
      return kSuccess;
    });
  });
}

}  // namespace simgpu::nvml
