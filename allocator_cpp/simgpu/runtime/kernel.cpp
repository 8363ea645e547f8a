// Kernel launches. A kernel does nothing, but it is work on its stream: it is enqueued in the driver, so order, capture
// and errors are those of a launch. Launch shapes are checked against the device's limits as a real device does.
#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/driver_link.h"

namespace simgpu::runtime {
namespace {

constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxBlockZ = 64;
constexpr unsigned kMaxGridX = 0x7fffffff;
constexpr unsigned kMaxGridYZ = 65535;
constexpr size_t kMaxDynamicShared = 227 << 10;
constexpr int kDefaultDynamicShared = 48 << 10;
constexpr int kSharedPerMultiprocessor = 228 << 10;
constexpr int kReservedShared = 1 << 10;  // per block, taken by the system
constexpr int kThreadsPerMultiprocessor = 2048;
constexpr int kBlocksPerMultiprocessor = 32;
constexpr int kArchitecture = 90;
constexpr int kRegistersPerThread = 32;
constexpr int kFuncMaxDynamicShared = 8;  // cudaFuncAttributeMaxDynamicSharedMemorySize

bool is_launchable(const Dim3& grid, const Dim3& block) {
  bool grid_fits =
      grid.x >= 1 && grid.x <= kMaxGridX && grid.y >= 1 && grid.y <= kMaxGridYZ && grid.z >= 1 && grid.z <= kMaxGridYZ;
  bool block_fits = block.x >= 1 && block.x <= kMaxThreads && block.y >= 1 && block.y <= kMaxThreads && block.z >= 1 &&
                    block.z <= kMaxBlockZ && static_cast<uint64_t>(block.x) * block.y * block.z <= kMaxThreads;
  return grid_fits && block_fits;
}

Error launch(const void* function, const Dim3& grid, const Dim3& block, size_t shared_bytes, Stream stream) {
  return with_context([&](const Driver& d) -> int {
    if (function == nullptr) return kInvalidValue;
    if (!is_launchable(grid, block)) return kInvalidConfiguration;
    if (shared_bytes > kMaxDynamicShared) return kInvalidValue;
    return d.launch(stream, nullptr, 0, nullptr, 0, 0);
  });
}

// What kernel<<<grid, block, shared, stream>>> pushes and the kernel's host stub pops.
struct Configuration {
  Dim3 grid, block;
  size_t shared_bytes;
  Stream stream;
};
thread_local std::vector<Configuration> configurations;

}  // namespace

SIMGPU_RUNTIME_API unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared_bytes, Stream stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}

SIMGPU_RUNTIME_API Error __cudaPopCallConfiguration(Dim3* grid, Dim3* block, size_t* shared_bytes, void* stream) {
  if (configurations.empty()) return record(kInvalidConfiguration);
  const Configuration& top = configurations.back();
  *grid = top.grid;
  *block = top.block;
  *shared_bytes = top.shared_bytes;
  *static_cast<Stream*>(stream) = top.stream;
  configurations.pop_back();
  return kSuccess;
}

SIMGPU_RUNTIME_API Error __cudaGetKernel(Kernel* kernel, const void* function) {
  *kernel = reinterpret_cast<Kernel>(const_cast<void*>(function));
  return kSuccess;
}

SIMGPU_RUNTIME_API Error __cudaLaunchKernel(Kernel kernel, Dim3 grid, Dim3 block, void**, size_t shared_bytes,
                                            Stream stream) {
  return launch(kernel, grid, block, shared_bytes, stream);
}

SIMGPU_RUNTIME_API Error cudaLaunchKernel(const void* function, Dim3 grid, Dim3 block, void**, size_t shared_bytes,
                                          Stream stream) {
  return launch(function, grid, block, shared_bytes, stream);
}

SIMGPU_RUNTIME_API Error cudaLaunchCooperativeKernel(const void* function, Dim3 grid, Dim3 block, void**,
                                                     size_t shared_bytes, Stream stream) {
  return launch(function, grid, block, shared_bytes, stream);
}

SIMGPU_RUNTIME_API Error cudaLaunchKernelExC(const LaunchConfig* config, const void* function, void**) {
  if (config == nullptr) return record(kInvalidValue);
  return launch(function, config->grid, config->block, config->dynamic_shared_bytes, config->stream);
}

SIMGPU_RUNTIME_API Error cudaFuncGetAttributes(FuncAttributes* attributes, const void* function) {
  if (attributes == nullptr || function == nullptr) return record(kInvalidValue);
  std::memset(attributes, 0, sizeof *attributes);
  attributes->max_threads_per_block = kMaxThreads;
  attributes->num_regs = kRegistersPerThread;
  attributes->ptx_version = kArchitecture;
  attributes->binary_version = kArchitecture;
  attributes->max_dynamic_shared_size_bytes = kDefaultDynamicShared;
  return kSuccess;
}

SIMGPU_RUNTIME_API Error cudaFuncSetAttribute(const void* function, int attribute, int value) {
  if (function == nullptr) return record(kInvalidValue);
  if (attribute == kFuncMaxDynamicShared && (value < 0 || static_cast<size_t>(value) > kMaxDynamicShared))
    return record(kInvalidValue);
  return kSuccess;
}

SIMGPU_RUNTIME_API Error cudaKernelSetAttributeForDevice(Kernel kernel, int attribute, int value, int) {
  return cudaFuncSetAttribute(kernel, attribute, value);
}

SIMGPU_RUNTIME_API Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function,
                                                                                int block_size, size_t shared_bytes,
                                                                                unsigned) {
  if (blocks == nullptr || function == nullptr || block_size <= 0) return record(kInvalidValue);
  size_t shared_needed = shared_bytes + kReservedShared;
  auto by_shared = static_cast<int>(kSharedPerMultiprocessor / shared_needed);
  *blocks = block_size > static_cast<int>(kMaxThreads)
                ? 0
                : std::min({kThreadsPerMultiprocessor / block_size, by_shared, kBlocksPerMultiprocessor});
  return kSuccess;
}

SIMGPU_RUNTIME_API Error cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function,
                                                                       int block_size, size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared_bytes, 0);
}

// Code loaded at run time. As with code linked in, every kernel of it launches and does nothing, so one object stands
// for the library and for each of its kernels.
struct LibraryTag {
  char unused = 0;
};

SIMGPU_RUNTIME_API Error cudaLibraryLoadData(Library* library, const void* code, void*, void**, unsigned, void*, void**,
                                             unsigned) {
  if (library == nullptr || code == nullptr) return record(kInvalidValue);
  *library = new LibraryTag;
  return kSuccess;
}

SIMGPU_RUNTIME_API Error cudaLibraryGetKernel(Kernel* kernel, Library library, const char* name) {
  if (kernel == nullptr || library == nullptr || name == nullptr) return record(kInvalidValue);
  *kernel = reinterpret_cast<Kernel>(library);
  return kSuccess;
}

SIMGPU_RUNTIME_API Error cudaLibraryUnload(Library library) {
  delete library;
  return kSuccess;
}

}  // namespace simgpu::runtime
