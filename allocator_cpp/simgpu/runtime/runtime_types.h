// The CUDA 13 runtime types that cross the boundary to torch, declared by us so that no CUDA header is needed to build.
// Layouts are NVIDIA's: tests/simgpu/test_runtime_abi.py compares sizes, offsets and values with the real headers where
// they are installed. Handles (streams, events, graphs) are the driver's own handles, as in the real runtime.
#pragma once
#include <cstddef>
#include <cstdint>

#include "driver/cuda_abi.h"

#define SIMGPU_RUNTIME_API extern "C" __attribute__((visibility("default")))

namespace simgpu::runtime {

using pyalloc::cuda::AccessDesc;
using pyalloc::cuda::Context;
using pyalloc::cuda::DevicePtr;
using pyalloc::cuda::Event;
using pyalloc::cuda::Stream;

// cudaError_t. Since CUDA 11 the runtime's numbers are the driver's, so a driver result is passed on as it is.
enum Error : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kMemoryAllocation = 2,
  kInitializationError = 3,
  kInvalidConfiguration = 9,
  kInvalidPitchValue = 12,
  kInvalidSymbol = 13,
  kInvalidMemcpyDirection = 21,
  kInsufficientDriver = 35,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kNotReady = 600,
  kNotSupported = 801,
};

inline constexpr int kRuntimeVersion = 13000;
inline constexpr int kNoDeviceOrdinal = -2;  // cudaInvalidDeviceId: memory that belongs to no device

enum MemoryType : int { kMemoryUnregistered = 0, kMemoryHost = 1, kMemoryDevice = 2, kMemoryManaged = 3 };
enum MemcpyKind : int { kCopyHostToHost = 0, kCopyHostToDevice, kCopyDeviceToHost, kCopyDeviceToDevice, kCopyDefault };

using Kernel = struct KernelTag*;
using Library = struct LibraryTag*;
using Graph = struct GraphTag*;
using GraphNode = struct GraphNodeTag*;
using GraphExec = struct GraphExecTag*;
using UserObject = struct UserObjectTag*;
using MemPool = struct MemPoolTag*;
using HostFunction = void (*)(void* user_data);
using StreamCallback = void (*)(Stream stream, Error status, void* user_data);

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

struct PointerAttributes {
  MemoryType type;
  int device;
  void* device_pointer;
  void* host_pointer;
  long reserved[8];
};

struct FuncAttributes {
  size_t shared_size_bytes;
  size_t const_size_bytes;
  size_t local_size_bytes;
  int max_threads_per_block;
  int num_regs;
  int ptx_version;
  int binary_version;
  int cache_mode_ca;
  int max_dynamic_shared_size_bytes;
  int preferred_shmem_carveout;
  int cluster_dim_must_be_set;
  int required_cluster_width;
  int required_cluster_height;
  int required_cluster_depth;
  int cluster_scheduling_policy_preference;
  int non_portable_cluster_size_allowed;
  int reserved[16];
};

struct LaunchConfig {
  Dim3 grid;
  Dim3 block;
  size_t dynamic_shared_bytes;
  Stream stream;
  void* attributes;
  unsigned attribute_count;
};

struct IpcHandle {
  char bytes[64];
};

struct GraphEdgeData {
  unsigned char from_port;
  unsigned char to_port;
  unsigned char type;
  unsigned char reserved[5];
};

struct DeviceProp {
  char name[256];
  unsigned char uuid[16];
  char luid[8];
  unsigned luid_device_node_mask;
  size_t total_global_mem;
  size_t shared_mem_per_block;
  int regs_per_block;
  int warp_size;
  size_t mem_pitch;
  int max_threads_per_block;
  int max_threads_dim[3];
  int max_grid_size[3];
  size_t total_const_mem;
  int major;
  int minor;
  size_t texture_alignment;
  size_t texture_pitch_alignment;
  int multi_processor_count;
  int integrated;
  int can_map_host_memory;
  int texture_and_surface_limits[39];  // maxTexture1D to maxSurfaceCubemapLayered: nothing here draws
  size_t surface_alignment;
  int concurrent_kernels;
  int ecc_enabled;
  int pci_bus_id;
  int pci_device_id;
  int pci_domain_id;
  int tcc_driver;
  int async_engine_count;
  int unified_addressing;
  int memory_bus_width;
  int l2_cache_size;
  int persisting_l2_cache_max_size;
  int max_threads_per_multi_processor;
  int stream_priorities_supported;
  int global_l1_cache_supported;
  int local_l1_cache_supported;
  size_t shared_mem_per_multiprocessor;
  int regs_per_multiprocessor;
  int managed_memory;
  int is_multi_gpu_board;
  int multi_gpu_board_group_id;
  int host_native_atomic_supported;
  int pageable_memory_access;
  int concurrent_managed_access;
  int compute_preemption_supported;
  int can_use_host_pointer_for_registered_mem;
  int cooperative_launch;
  size_t shared_mem_per_block_optin;
  int pageable_memory_access_uses_host_page_tables;
  int direct_managed_mem_access_from_host;
  int max_blocks_per_multi_processor;
  int access_policy_max_window_size;
  size_t reserved_shared_mem_per_block;
  int host_register_supported;
  int sparse_cuda_array_supported;
  int host_register_read_only_supported;
  int timeline_semaphore_interop_supported;
  int memory_pools_supported;
  int gpu_direct_rdma_supported;
  unsigned gpu_direct_rdma_flush_writes_options;
  int gpu_direct_rdma_writes_ordering;
  unsigned memory_pool_supported_handle_types;
  int deferred_mapping_cuda_array_supported;
  int ipc_event_supported;
  int cluster_launch;
  int unified_function_pointers;
  int device_numa_config;
  int device_numa_id;
  int mps_enabled;
  int host_numa_id;
  unsigned gpu_pci_device_id;
  unsigned gpu_pci_subsystem_id;
  int host_numa_multinode_ipc_supported;
  int reserved[56];
};

}  // namespace simgpu::runtime
