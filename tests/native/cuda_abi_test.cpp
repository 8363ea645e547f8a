// Our declarations of the driver's types against NVIDIA's own header, where that is installed: at compile time, all of it.
#if __has_include("/usr/local/cuda/include/cuda.h")
#include "/usr/local/cuda/include/cuda.h"
#define HAVE_NVIDIA_HEADER 1
#endif

#include "driver/abi.h"
#include "driver/cuda_abi.h"
#include "test_case.h"

#ifdef HAVE_NVIDIA_HEADER
namespace {

#define SAME_SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs), #theirs " has another size")
#define SAME_PLACE(ours, member, theirs, other) \
  static_assert(offsetof(ours, member) == offsetof(theirs, other), #theirs "::" #other " is elsewhere")
#define SAME_VALUE(ours, theirs) static_assert(int(ours) == int(theirs), #theirs " has another value")

// --- shared by the core and simgpu ---
using namespace pyalloc::cuda;
SAME_SIZE(Device, CUdevice);
SAME_SIZE(DevicePtr, CUdeviceptr);
SAME_SIZE(MemHandle, CUmemGenericAllocationHandle);
SAME_SIZE(Result, CUresult);
SAME_SIZE(MemLocation, CUmemLocation);
SAME_SIZE(AllocationProp, CUmemAllocationProp);
SAME_PLACE(AllocationProp, requested_handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_PLACE(AllocationProp, location, CUmemAllocationProp, location);
SAME_PLACE(AllocationProp, flags, CUmemAllocationProp, allocFlags);
SAME_PLACE(AllocationProp, flags.gpu_direct_rdma_capable, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
SAME_SIZE(AccessDesc, CUmemAccessDesc);
SAME_PLACE(AccessDesc, flags, CUmemAccessDesc, flags);

SAME_VALUE(kSuccess, CUDA_SUCCESS);
SAME_VALUE(kInvalidValue, CUDA_ERROR_INVALID_VALUE);
SAME_VALUE(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
SAME_VALUE(kDeinitialized, CUDA_ERROR_DEINITIALIZED);
SAME_VALUE(kNoDevice, CUDA_ERROR_NO_DEVICE);
SAME_VALUE(kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
SAME_VALUE(kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
SAME_VALUE(kMapFailed, CUDA_ERROR_MAP_FAILED);
SAME_VALUE(kNotMapped, CUDA_ERROR_NOT_MAPPED);
SAME_VALUE(kUnsupportedLimit, CUDA_ERROR_UNSUPPORTED_LIMIT);
SAME_VALUE(kPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
SAME_VALUE(kFileNotFound, CUDA_ERROR_FILE_NOT_FOUND);
SAME_VALUE(kOperatingSystem, CUDA_ERROR_OPERATING_SYSTEM);
SAME_VALUE(kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
SAME_VALUE(kIllegalState, CUDA_ERROR_ILLEGAL_STATE);
SAME_VALUE(kNotFound, CUDA_ERROR_NOT_FOUND);
SAME_VALUE(kNotReady, CUDA_ERROR_NOT_READY);
SAME_VALUE(kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME_VALUE(kPeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
SAME_VALUE(kPeerAccessNotEnabled, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
SAME_VALUE(kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME_VALUE(kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME_VALUE(kHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME_VALUE(kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
SAME_VALUE(kNotPermitted, CUDA_ERROR_NOT_PERMITTED);
SAME_VALUE(kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
SAME_VALUE(kStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME_VALUE(kStreamCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME_VALUE(kStreamCaptureMerge, CUDA_ERROR_STREAM_CAPTURE_MERGE);
SAME_VALUE(kStreamCaptureUnmatched, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
SAME_VALUE(kStreamCaptureUnjoined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
SAME_VALUE(kStreamCaptureIsolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
SAME_VALUE(kStreamCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME_VALUE(kCapturedEvent, CUDA_ERROR_CAPTURED_EVENT);
SAME_VALUE(kStreamCaptureWrongThread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
SAME_VALUE(kUnknown, CUDA_ERROR_UNKNOWN);

SAME_VALUE(kLocationDevice, CU_MEM_LOCATION_TYPE_DEVICE);
SAME_VALUE(kLocationHost, CU_MEM_LOCATION_TYPE_HOST);
SAME_VALUE(kAllocationPinned, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME_VALUE(kHandlePosixFd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME_VALUE(kHandleFabric, CU_MEM_HANDLE_TYPE_FABRIC);
SAME_VALUE(kAccessRead, CU_MEM_ACCESS_FLAGS_PROT_READ);
SAME_VALUE(kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME_VALUE(kGranularityMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME_VALUE(kGranularityRecommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
SAME_VALUE(kCaptureActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME_VALUE(kCaptureInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
SAME_VALUE(kCaptureThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME_VALUE(kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_VALUE(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
SAME_VALUE(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
SAME_VALUE(kAttrComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_VALUE(kAttrComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_VALUE(kAttrVirtualMemoryManagement, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME_VALUE(kAttrHandlePosixFd, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME_VALUE(kAttrGpuDirectRdmaWithVmm, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);

// --- simgpu's own ---
SAME_SIZE(simgpu::EdgeData, CUgraphEdgeData);
SAME_SIZE(simgpu::LaunchConfig, CUlaunchConfig);
SAME_PLACE(simgpu::LaunchConfig, stream, CUlaunchConfig, hStream);
SAME_SIZE(simgpu::KernelNodeParams, CUDA_KERNEL_NODE_PARAMS_v2);
SAME_PLACE(simgpu::KernelNodeParams, arguments, CUDA_KERNEL_NODE_PARAMS_v2, kernelParams);
SAME_SIZE(simgpu::MemsetNodeParams, CUDA_MEMSET_NODE_PARAMS);
SAME_PLACE(simgpu::MemsetNodeParams, value, CUDA_MEMSET_NODE_PARAMS, value);
SAME_PLACE(simgpu::MemsetNodeParams, width, CUDA_MEMSET_NODE_PARAMS, width);
SAME_SIZE(simgpu::HostNodeParams, CUDA_HOST_NODE_PARAMS);
SAME_SIZE(simgpu::Copy2dParams, CUDA_MEMCPY2D);
SAME_PLACE(simgpu::Copy2dParams, target.device, CUDA_MEMCPY2D, dstDevice);
SAME_PLACE(simgpu::Copy2dParams, height, CUDA_MEMCPY2D, Height);
SAME_SIZE(simgpu::Copy3dParams, CUDA_MEMCPY3D);
SAME_PLACE(simgpu::Copy3dParams, source.pitch, CUDA_MEMCPY3D, srcPitch);
SAME_PLACE(simgpu::Copy3dParams, target.device, CUDA_MEMCPY3D, dstDevice);
SAME_PLACE(simgpu::Copy3dParams, depth, CUDA_MEMCPY3D, Depth);
SAME_SIZE(simgpu::GraphNodeParams, CUgraphNodeParams);
SAME_PLACE(simgpu::GraphNodeParams, kernel, CUgraphNodeParams, kernel);
SAME_PLACE(simgpu::GraphNodeParams, memcpy.copy, CUgraphNodeParams, memcpy.copyParams);
SAME_PLACE(simgpu::GraphNodeParams, event.event, CUgraphNodeParams, eventRecord.event);
SAME_SIZE(simgpu::InstantiateParams, CUDA_GRAPH_INSTANTIATE_PARAMS);
SAME_PLACE(simgpu::InstantiateParams, result, CUDA_GRAPH_INSTANTIATE_PARAMS, result_out);
SAME_SIZE(simgpu::ExecUpdateResult, CUgraphExecUpdateResultInfo);
SAME_SIZE(simgpu::PoolProps, CUmemPoolProps);
SAME_PLACE(simgpu::PoolProps, location, CUmemPoolProps, location);
SAME_SIZE(simgpu::IpcHandle, CUipcMemHandle);
SAME_SIZE(simgpu::IpcHandle, CUipcEventHandle);
SAME_SIZE(simgpu::Uuid, CUuuid);
SAME_VALUE(simgpu::kNodeKernel, CU_GRAPH_NODE_TYPE_KERNEL);
SAME_VALUE(simgpu::kNodeMemcpy, CU_GRAPH_NODE_TYPE_MEMCPY);
SAME_VALUE(simgpu::kNodeMemset, CU_GRAPH_NODE_TYPE_MEMSET);
SAME_VALUE(simgpu::kNodeHost, CU_GRAPH_NODE_TYPE_HOST);
SAME_VALUE(simgpu::kNodeGraph, CU_GRAPH_NODE_TYPE_GRAPH);
SAME_VALUE(simgpu::kNodeEmpty, CU_GRAPH_NODE_TYPE_EMPTY);
SAME_VALUE(simgpu::kNodeWaitEvent, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
SAME_VALUE(simgpu::kNodeEventRecord, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
SAME_VALUE(simgpu::kNodeConditional, CU_GRAPH_NODE_TYPE_CONDITIONAL);
SAME_VALUE(simgpu::kEventInterprocess, CU_EVENT_INTERPROCESS);
SAME_VALUE(simgpu::kRecordExternal, CU_EVENT_RECORD_EXTERNAL);
SAME_VALUE(simgpu::kSetDependencies, CU_STREAM_SET_CAPTURE_DEPENDENCIES);
SAME_VALUE(simgpu::kMemoryUnified, CU_MEMORYTYPE_UNIFIED);
SAME_VALUE(simgpu::kProcVersionTooLow, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
SAME_VALUE(simgpu::kPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME_VALUE(simgpu::kPointerIpcCapable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
SAME_VALUE(simgpu::kPointerMappingBase, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR);
SAME_VALUE(simgpu::kPointerMemoryBlockId, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID);

#define ERROR_CODE(name, value) SAME_VALUE(name, value);
#include "driver/error_codes.def"
#undef ERROR_CODE

}  // namespace
#endif

TEST(declarations_agree_with_nvidias_header) {
#ifdef HAVE_NVIDIA_HEADER
  CHECK_EQ(sizeof(pyalloc::cuda::AllocationProp), sizeof(CUmemAllocationProp));
#else
  std::printf("skipped: /usr/local/cuda/include/cuda.h is not installed\n");
  CHECK_EQ(sizeof(pyalloc::cuda::AllocationProp), size_t{32});
#endif
}
