// The few CUDA driver types this project uses, declared by us so that no CUDA header is needed to build.
// Shared by the core (which calls the driver) and simgpu (which plays it). tests/native/cuda_abi_test.cpp
// compares every size, offset and value with NVIDIA's own cuda.h where that is installed.
#pragma once
#include <cstddef>
#include <cstdint>

namespace pyalloc::cuda {

enum Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kMapFailed = 205,
  kNotMapped = 211,
  kUnsupportedLimit = 215,
  kPeerAccessUnsupported = 217,
  kFileNotFound = 301,
  kOperatingSystem = 304,
  kInvalidHandle = 400,
  kIllegalState = 401,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kPeerAccessAlreadyEnabled = 704,
  kPeerAccessNotEnabled = 705,
  kContextIsDestroyed = 709,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kLaunchFailed = 719,
  kNotPermitted = 800,
  kNotSupported = 801,
  kStreamCaptureUnsupported = 900,
  kStreamCaptureInvalidated = 901,
  kStreamCaptureMerge = 902,
  kStreamCaptureUnmatched = 903,
  kStreamCaptureUnjoined = 904,
  kStreamCaptureIsolation = 905,
  kStreamCaptureImplicit = 906,
  kCapturedEvent = 907,
  kStreamCaptureWrongThread = 908,
  kUnknown = 999,
};

using Device = int;
using DevicePtr = unsigned long long;
using MemHandle = unsigned long long;
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;

enum LocationType : int { kLocationDevice = 1, kLocationHost = 2 };
enum AllocationType : int { kAllocationPinned = 1 };
enum HandleType : int { kHandleNone = 0, kHandlePosixFd = 1, kHandleFabric = 8 };
enum AccessFlags : int { kAccessNone = 0, kAccessRead = 1, kAccessReadWrite = 3 };
enum GranularityFlags : int { kGranularityMinimum = 0, kGranularityRecommended = 1 };
enum CaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1, kCaptureInvalidated = 2 };
enum CaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };
enum EventFlags : unsigned { kEventDefault = 0, kEventDisableTiming = 2 };
enum HostFlags : unsigned { kHostPortable = 1 };
enum StreamFlags : unsigned { kStreamDefault = 0, kStreamNonBlocking = 1 };

enum DeviceAttribute : int {
  kAttrComputeCapabilityMajor = 75,
  kAttrComputeCapabilityMinor = 76,
  kAttrVirtualMemoryManagement = 102,
  kAttrHandlePosixFd = 103,
  kAttrGpuDirectRdmaWithVmm = 110,
};

struct MemLocation {
  LocationType type;
  int id;
};

struct AllocationProp {
  AllocationType type;
  HandleType requested_handle_types;
  MemLocation location;
  void* win32_handle_metadata;
  struct {
    unsigned char compression_type;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};
static_assert(sizeof(AllocationProp) == 32, "CUmemAllocationProp is 32 bytes on 64-bit Linux");

struct AccessDesc {
  MemLocation location;
  AccessFlags flags;
};
static_assert(sizeof(AccessDesc) == 12, "CUmemAccessDesc is 12 bytes");

}  // namespace pyalloc::cuda
