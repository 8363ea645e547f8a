// The driver types that only the simulated driver needs, beside those it shares with the core (src/driver/cuda_abi.h).
// Declared by us; tests/native/cuda_abi_test.cpp compares them with NVIDIA's cuda.h where that is installed.
#pragma once
#include "driver/cuda_abi.h"

#define SIMGPU_API extern "C" __attribute__((visibility("default")))

namespace simgpu {
using namespace pyalloc::cuda;

constexpr Result kGraphExecUpdateFailure = static_cast<Result>(910);

using Graph = struct GraphTag*;
using GraphExec = struct GraphExecTag*;
using GraphNode = struct GraphNodeTag*;
using UserObject = struct UserObjectTag*;
using MemoryPool = struct MemoryPoolTag*;
using Function = struct FunctionTag*;
using Module = struct ModuleTag*;
using HostFunction = void (*)(void* user_data);
using StreamCallback = void (*)(Stream stream, Result status, void* user_data);

enum MemoryType : unsigned { kMemoryHost = 1, kMemoryDevice = 2, kMemoryArray = 3, kMemoryUnified = 4 };
enum NodeType : int {
  kNodeKernel = 0,
  kNodeMemcpy = 1,
  kNodeMemset = 2,
  kNodeHost = 3,
  kNodeGraph = 4,
  kNodeEmpty = 5,
  kNodeWaitEvent = 6,
  kNodeEventRecord = 7,
  kNodeConditional = 13,
};
enum EventExtraFlags : unsigned { kEventBlockingSync = 1, kEventInterprocess = 4 };
enum RecordFlags : unsigned { kRecordDefault = 0, kRecordExternal = 1 };
enum UpdateDependencies : unsigned { kAddDependencies = 0, kSetDependencies = 1 };
enum ProcAddressStatus : int { kProcFound = 0, kProcNotFound = 1, kProcVersionTooLow = 2 };

enum PointerAttribute : int {
  kPointerContext = 1,
  kPointerMemoryType = 2,
  kPointerDevicePointer = 3,
  kPointerHostPointer = 4,
  kPointerSyncMemops = 6,
  kPointerBufferId = 7,
  kPointerIsManaged = 8,
  kPointerDeviceOrdinal = 9,
  kPointerIpcCapable = 10,
  kPointerRangeStart = 11,
  kPointerRangeSize = 12,
  kPointerMapped = 13,
  kPointerAllowedHandleTypes = 14,
  kPointerRdmaCapable = 15,
  kPointerAccessFlags = 16,
  kPointerMempoolHandle = 17,
  kPointerMappingSize = 18,
  kPointerMappingBase = 19,
  kPointerMemoryBlockId = 20,
};

struct EdgeData {
  unsigned char from_port, to_port, type, reserved[5];
};
static_assert(sizeof(EdgeData) == 8, "CUgraphEdgeData is 8 bytes");

struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  Stream stream;
  void* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56, "CUlaunchConfig is 56 bytes");

struct KernelNodeParams {
  Function function;
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void** arguments;
  void** extra;
  void* kernel;
  Context context;
};
static_assert(sizeof(KernelNodeParams) == 72, "CUDA_KERNEL_NODE_PARAMS_v2 is 72 bytes");

struct MemsetNodeParams {
  DevicePtr target;
  size_t pitch;
  unsigned value, element_size;
  size_t width, height;
};
static_assert(sizeof(MemsetNodeParams) == 40, "CUDA_MEMSET_NODE_PARAMS is 40 bytes");

struct HostNodeParams {
  HostFunction function;
  void* user_data;
};

struct Copy2dSide {
  size_t x_bytes, y;
  MemoryType type;
  void* host;
  DevicePtr device;
  void* array;
  size_t pitch;
};
struct Copy2dParams {
  Copy2dSide source, target;
  size_t width_bytes, height;
};
static_assert(sizeof(Copy2dParams) == 128, "CUDA_MEMCPY2D is 128 bytes");

struct Copy3dSide {
  size_t x_bytes, y, z, lod;
  MemoryType type;
  void* host;
  DevicePtr device;
  void* array;
  void* reserved;
  size_t pitch, height;
};
struct Copy3dParams {
  Copy3dSide source, target;
  size_t width_bytes, height, depth;
};
static_assert(sizeof(Copy3dParams) == 200, "CUDA_MEMCPY3D is 200 bytes");

struct GraphNodeParams {
  NodeType type;
  int reserved0[3];
  union {
    long long reserved1[29];
    KernelNodeParams kernel;
    struct {
      int flags, reserved;
      Context context;
      Copy3dParams copy;
    } memcpy;
    struct {
      MemsetNodeParams memset;
      Context context;
    } memset;
    HostNodeParams host;
    struct {
      Graph graph;
    } child;
    struct {
      Event event;
    } event;
  };
  long long reserved2;
};
static_assert(sizeof(GraphNodeParams) == 256, "CUgraphNodeParams is 256 bytes");

struct InstantiateParams {
  unsigned long long flags;
  Stream upload_stream;
  GraphNode error_node;
  int result;
};
struct ExecUpdateResult {
  int result;
  GraphNode error_node, error_from_node;
};

struct PoolProps {
  AllocationType type;
  HandleType handle_types;
  MemLocation location;
  void* win32_security;
  size_t max_size;
  unsigned short usage;
  unsigned char reserved[54];
};
static_assert(sizeof(PoolProps) == 88, "CUmemPoolProps is 88 bytes");

struct IpcHandle {
  unsigned char bytes[64];
};
struct Uuid {
  unsigned char bytes[16];
};

}  // namespace simgpu
