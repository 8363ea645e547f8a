// Entry points: modules, functions and launches. Kernels are not run: a launch is an operation that takes its place in the stream and
// does nothing, so any code loads and any function found in it launches. Kernels that say what they touch: simgpu_launch.
#include <unistd.h>

#include "simulation.h"

using namespace simgpu;

namespace {

Result launch(Simulation& sim, const KernelNodeParams& params, Stream stream) {
  StreamObject* object = find_stream(sim, stream);
  if (object == nullptr) return kInvalidHandle;
  constexpr uint64_t kBlockThreads = 1024;
  uint64_t threads = static_cast<uint64_t>(params.block_x) * params.block_y * params.block_z;
  uint64_t blocks = static_cast<uint64_t>(params.grid_x) * params.grid_y * params.grid_z;
  if (params.function == nullptr) return kInvalidHandle;
  if (threads == 0 || threads > kBlockThreads || blocks == 0) return kInvalidValue;
  return submit(sim, *object, kNodeKernel, KernelWork{params});
}

Result load(Enter& entered, Module* module) {
  if (module == nullptr) return kInvalidValue;
  auto object = std::make_unique<ModuleObject>();
  object->device = entered.device().ordinal;
  *module = reinterpret_cast<Module>(entered.sim().modules.insert(std::move(object)));
  return kSuccess;
}

Result occupancy(int* blocks, int block_size) {
  constexpr int kThreads = 2048, kBlocks = 32;
  if (blocks == nullptr || block_size <= 0) return kInvalidValue;
  *blocks = block_size > 1024 ? 0 : std::min(kThreads / block_size, kBlocks);
  return kSuccess;
}

}  // namespace

SIMGPU_API Result cuLaunchKernel(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                 unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream,
                                 void** arguments, void** extra) {
  SIMGPU_BEGIN(cuLaunchKernel);
  return launch(sim,
                {function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, arguments, extra, nullptr,
                 nullptr},
                stream);
}

SIMGPU_API Result cuLaunchKernelEx(const LaunchConfig* config, Function function, void** arguments, void** extra) {
  SIMGPU_BEGIN(cuLaunchKernelEx);
  if (config == nullptr) return kInvalidValue;
  return launch(sim,
                {function, config->grid_x, config->grid_y, config->grid_z, config->block_x, config->block_y,
                 config->block_z, config->shared_bytes, arguments, extra, nullptr, nullptr},
                config->stream);
}

SIMGPU_API Result cuLaunchCooperativeKernel(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                            Stream stream, void** arguments) {
  SIMGPU_BEGIN(cuLaunchCooperativeKernel);
  return launch(sim,
                {function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, arguments, nullptr, nullptr,
                 nullptr},
                stream);
}

SIMGPU_API Result cuFuncGetAttribute(int* value, int attribute, Function function) {
  SIMGPU_BEGIN(cuFuncGetAttribute);
  constexpr int kMaxThreads = 0, kRegisters = 4, kPtxVersion = 5, kBinaryVersion = 6, kMaxDynamicShared = 8;
  if (value == nullptr || attribute < 0 || attribute > 15) return kInvalidValue;
  if (function == nullptr) return kInvalidHandle;
  switch (attribute) {
    case kMaxThreads:
      *value = 1024;
      break;
    case kRegisters:
      *value = 32;
      break;
    case kPtxVersion:
    case kBinaryVersion:
      *value = 90;
      break;
    case kMaxDynamicShared:
      *value = 232448;
      break;
    default:
      *value = 0;
  }
  return kSuccess;
}

SIMGPU_API Result cuFuncSetAttribute(Function function, int attribute, int) {
  SIMGPU_BEGIN(cuFuncSetAttribute);
  if (function == nullptr) return kInvalidHandle;
  return attribute >= 0 && attribute <= 15 ? kSuccess : kInvalidValue;
}

SIMGPU_API Result cuFuncSetCacheConfig(Function function, int) {
  SIMGPU_BEGIN(cuFuncSetCacheConfig);
  return function != nullptr ? kSuccess : kInvalidHandle;
}

SIMGPU_API Result cuFuncGetModule(Module* module, Function function) {
  SIMGPU_BEGIN(cuFuncGetModule);
  if (module == nullptr) return kInvalidValue;
  if (sim.modules.find(reinterpret_cast<uint64_t>(function)) == nullptr) return kInvalidHandle;
  *module = reinterpret_cast<Module>(function);
  return kSuccess;
}

SIMGPU_API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function, int block_size, size_t) {
  SIMGPU_BEGIN(cuOccupancyMaxActiveBlocksPerMultiprocessor);
  return occupancy(blocks, block_size);
}

SIMGPU_API Result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, Function, int block_size, size_t,
                                                                       unsigned) {
  SIMGPU_BEGIN(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
  return occupancy(blocks, block_size);
}

SIMGPU_API Result cuModuleLoad(Module* module, const char* path) {
  SIMGPU_BEGIN(cuModuleLoad);
  if (path == nullptr) return kInvalidValue;
  return access(path, R_OK) == 0 ? load(entered, module) : kFileNotFound;
}

SIMGPU_API Result cuModuleLoadData(Module* module, const void* image) {
  SIMGPU_BEGIN(cuModuleLoadData);
  return image != nullptr ? load(entered, module) : kInvalidValue;
}

SIMGPU_API Result cuModuleLoadDataEx(Module* module, const void* image, unsigned, int*, void**) {
  SIMGPU_BEGIN(cuModuleLoadDataEx);
  return image != nullptr ? load(entered, module) : kInvalidValue;
}

SIMGPU_API Result cuModuleUnload(Module module) {
  SIMGPU_BEGIN(cuModuleUnload);
  return sim.modules.remove(reinterpret_cast<uint64_t>(module)) != nullptr ? kSuccess : kInvalidHandle;
}

SIMGPU_API Result cuModuleGetFunction(Function* function, Module module, const char* name) {
  SIMGPU_BEGIN(cuModuleGetFunction);
  if (function == nullptr || name == nullptr) return kInvalidValue;
  if (sim.modules.find(module) == nullptr) return kInvalidHandle;
  *function = reinterpret_cast<Function>(module);  // every function of a module is the same to a driver that runs none
  return kSuccess;
}

SIMGPU_API Result cuModuleGetGlobal_v2(DevicePtr* address, size_t* bytes, Module module, const char* name) {
  SIMGPU_BEGIN(cuModuleGetGlobal_v2);
  (void)address, (void)bytes;
  if (name == nullptr) return kInvalidValue;
  return sim.modules.find(module) != nullptr ? kNotFound : kInvalidHandle;
}

SIMGPU_API Result cuProfilerStart() {
  SIMGPU_BEGIN(cuProfilerStart);
  return kSuccess;
}

SIMGPU_API Result cuProfilerStop() {
  SIMGPU_BEGIN(cuProfilerStop);
  return kSuccess;
}
