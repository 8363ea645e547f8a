// cuBLAS: every operation is a kernel that does nothing, enqueued on the handle's stream, so that its place in stream
// order, captures and errors are those of real work. The vector and matrix transfers do copy. A handle is used by one
// thread at a time, as NVIDIA requires; nothing here locks.
#include "libraries/driver_work.h"

namespace simgpu::libraries {
namespace {

enum Status : int {
  kStatusSuccess = 0,
  kStatusNotInitialized = 1,
  kStatusInvalidValue = 7,
  kStatusExecutionFailed = 13
};

struct Handle {
  Stream stream = nullptr;
  int math_mode = 0;
  int pointer_mode = 0;
};

Status operation(Handle* handle) {
  if (handle == nullptr) return kStatusNotInitialized;
  return enqueue_kernel(handle->stream) == 0 ? kStatusSuccess : kStatusExecutionFailed;
}

Status transfer(const void* source, size_t source_pitch, void* target, size_t target_pitch, size_t width, size_t height,
                Stream stream) {
  if (width == 0 || height == 0) return kStatusSuccess;
  if (source_pitch < width || target_pitch < width) return kStatusInvalidValue;
  return copy_rows(source, source_pitch, target, target_pitch, width, height, stream) == 0 ? kStatusSuccess
                                                                                           : kStatusExecutionFailed;
}

Status transfer_vector(int count, int element, const void* source, int source_step, void* target, int target_step,
                       Stream stream) {
  if (count < 0 || element <= 0 || source_step <= 0 || target_step <= 0) return kStatusInvalidValue;
  auto width = static_cast<size_t>(element);
  return transfer(source, width * source_step, target, width * target_step, width, count, stream);
}

Status transfer_matrix(int rows, int columns, int element, const void* source, int source_rows, void* target,
                       int target_rows, Stream stream) {
  if (rows < 0 || columns < 0 || element <= 0 || source_rows <= 0 || target_rows <= 0) return kStatusInvalidValue;
  auto size = static_cast<size_t>(element);
  return transfer(source, size * source_rows, target, size * target_rows, size * rows, columns, stream);
}

}  // namespace

SIMGPU_LIBRARY_API Status cublasCreate_v2(Handle** handle) {
  if (handle == nullptr) return kStatusInvalidValue;
  *handle = new Handle;
  return kStatusSuccess;
}

SIMGPU_LIBRARY_API Status cublasDestroy_v2(Handle* handle) {
  delete handle;
  return kStatusSuccess;
}

SIMGPU_LIBRARY_API Status cublasSetStream_v2(Handle* handle, Stream stream) {
  if (handle == nullptr) return kStatusNotInitialized;
  handle->stream = stream;
  return kStatusSuccess;
}

SIMGPU_LIBRARY_API Status cublasGetStream_v2(Handle* handle, Stream* stream) {
  if (handle == nullptr) return kStatusNotInitialized;
  *stream = handle->stream;
  return kStatusSuccess;
}

SIMGPU_LIBRARY_API Status cublasSetMathMode(Handle* handle, int mode) {
  if (handle == nullptr) return kStatusNotInitialized;
  handle->math_mode = mode;
  return kStatusSuccess;
}

SIMGPU_LIBRARY_API Status cublasGetMathMode(Handle* handle, int* mode) {
  if (handle == nullptr) return kStatusNotInitialized;
  *mode = handle->math_mode;
  return kStatusSuccess;
}

SIMGPU_LIBRARY_API Status cublasSetPointerMode_v2(Handle* handle, int mode) {
  if (handle == nullptr) return kStatusNotInitialized;
  handle->pointer_mode = mode;
  return kStatusSuccess;
}

SIMGPU_LIBRARY_API Status cublasGetPointerMode_v2(Handle* handle, int* mode) {
  if (handle == nullptr) return kStatusNotInitialized;
  *mode = handle->pointer_mode;
  return kStatusSuccess;
}

// The workspace stays the caller's and is never touched; the number of multiprocessors changes nothing.
SIMGPU_LIBRARY_API Status cublasSetWorkspace_v2(Handle* handle, void*, size_t) {
  return handle == nullptr ? kStatusNotInitialized : kStatusSuccess;
}
SIMGPU_LIBRARY_API Status cublasSetSmCountTarget(Handle* handle, int) {
  return handle == nullptr ? kStatusNotInitialized : kStatusSuccess;
}

SIMGPU_LIBRARY_API Status cublasSetVectorAsync(int count, int element, const void* host, int host_step, void* device,
                                               int device_step, Stream stream) {
  return transfer_vector(count, element, host, host_step, device, device_step, stream);
}
SIMGPU_LIBRARY_API Status cublasGetVectorAsync(int count, int element, const void* device, int device_step, void* host,
                                               int host_step, Stream stream) {
  return transfer_vector(count, element, device, device_step, host, host_step, stream);
}
SIMGPU_LIBRARY_API Status cublasSetMatrixAsync(int rows, int columns, int element, const void* host, int host_rows,
                                               void* device, int device_rows, Stream stream) {
  return transfer_matrix(rows, columns, element, host, host_rows, device, device_rows, stream);
}
SIMGPU_LIBRARY_API Status cublasGetMatrixAsync(int rows, int columns, int element, const void* device, int device_rows,
                                               void* host, int host_rows, Stream stream) {
  return transfer_matrix(rows, columns, element, device, device_rows, host, host_rows, stream);
}

// The operations: arguments after the handle are the caller's to pass and ours to ignore.
#define BLAS_OPERATION(symbol) \
  SIMGPU_LIBRARY_API Status symbol(Handle* handle) { return operation(handle); }
#define BLAS_FOUR_TYPES(name)   \
  BLAS_OPERATION(cublasS##name) \
  BLAS_OPERATION(cublasD##name) BLAS_OPERATION(cublasC##name) BLAS_OPERATION(cublasZ##name)
#include "libraries/blas_operations.def"
#undef BLAS_FOUR_TYPES
#undef BLAS_OPERATION

}  // namespace simgpu::libraries
