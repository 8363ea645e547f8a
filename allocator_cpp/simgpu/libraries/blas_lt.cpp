// cuBLASLt: descriptors that are kept but never read, one algorithm for every product, and a product that is a kernel
// doing nothing.
#include <cstring>

#include "libraries/driver_work.h"

namespace simgpu::libraries {
namespace {

enum Status : int { kStatusSuccess = 0, kStatusInvalidValue = 7, kStatusExecutionFailed = 13 };

constexpr size_t kLibraryVersion = 130100;  // 13.1.0, of torch's own CUDA 13 wheels

// cublasLtMatmulHeuristicResult_t
struct Heuristic {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Heuristic) == 96, "cublasLtMatmulHeuristicResult_t is 96 bytes");

// Stands for a descriptor, a layout or a preference: all a caller may do with one is set attributes and destroy it.
struct Description {
  char unused = 0;
};

Status create(Description** out) {
  if (out == nullptr) return kStatusInvalidValue;
  *out = new Description;
  return kStatusSuccess;
}

Status destroy(Description* one) {
  delete one;
  return kStatusSuccess;
}

}  // namespace

SIMGPU_LIBRARY_API size_t cublasLtGetVersion() { return kLibraryVersion; }

SIMGPU_LIBRARY_API Status cublasLtCreate(Description** handle) { return create(handle); }
SIMGPU_LIBRARY_API Status cublasLtDestroy(Description* handle) { return destroy(handle); }

SIMGPU_LIBRARY_API Status cublasLtMatmulDescCreate(Description** out, int, int) { return create(out); }
SIMGPU_LIBRARY_API Status cublasLtMatmulDescDestroy(Description* one) { return destroy(one); }
SIMGPU_LIBRARY_API Status cublasLtMatmulDescSetAttribute(Description*, int, const void*, size_t) {
  return kStatusSuccess;
}

SIMGPU_LIBRARY_API Status cublasLtMatrixLayoutCreate(Description** out, int, uint64_t, uint64_t, int64_t) {
  return create(out);
}
SIMGPU_LIBRARY_API Status cublasLtMatrixLayoutDestroy(Description* one) { return destroy(one); }
SIMGPU_LIBRARY_API Status cublasLtMatrixLayoutSetAttribute(Description*, int, const void*, size_t) {
  return kStatusSuccess;
}

SIMGPU_LIBRARY_API Status cublasLtMatmulPreferenceCreate(Description** out) { return create(out); }
SIMGPU_LIBRARY_API Status cublasLtMatmulPreferenceDestroy(Description* one) { return destroy(one); }
SIMGPU_LIBRARY_API Status cublasLtMatmulPreferenceSetAttribute(Description*, int, const void*, size_t) {
  return kStatusSuccess;
}

SIMGPU_LIBRARY_API Status cublasLtMatmulAlgoGetHeuristic(Description*, Description*, Description*, Description*,
                                                         Description*, Description*, Description*, int requested,
                                                         Heuristic* results, int* found) {
  if (requested < 1 || results == nullptr || found == nullptr) return kStatusInvalidValue;
  std::memset(results, 0, sizeof *results);
  *found = 1;
  return kStatusSuccess;
}

SIMGPU_LIBRARY_API Status cublasLtMatmulAlgoInit(Description*, int, int, int, int, int, int, int, uint64_t* algorithm) {
  std::memset(algorithm, 0, sizeof(Heuristic::algorithm));
  return kStatusSuccess;
}

SIMGPU_LIBRARY_API Status cublasLtMatmulAlgoCheck(Description*, Description*, Description*, Description*, Description*,
                                                  Description*, const uint64_t*, Heuristic* result) {
  if (result == nullptr) return kStatusInvalidValue;
  std::memset(result, 0, sizeof *result);
  return kStatusSuccess;
}

SIMGPU_LIBRARY_API Status cublasLtMatmulAlgoConfigSetAttribute(uint64_t*, int, const void*, size_t) {
  return kStatusSuccess;
}

SIMGPU_LIBRARY_API Status cublasLtMatmulAlgoConfigGetAttribute(const uint64_t*, int, void* value, size_t bytes,
                                                               size_t* written) {
  if (value != nullptr) std::memset(value, 0, bytes);
  if (written != nullptr) *written = bytes;
  return kStatusSuccess;
}

SIMGPU_LIBRARY_API Status cublasLtMatmul(Description*, Description*, const void* /*alpha*/, const void* /*a*/,
                                         Description*, const void* /*b*/, Description*, const void* /*beta*/,
                                         const void* /*c*/, Description*, void* /*d*/, Description*,
                                         const uint64_t* /*algorithm*/, void* /*workspace*/, size_t /*workspace_bytes*/,
                                         Stream stream) {
  return enqueue_kernel(stream) == 0 ? kStatusSuccess : kStatusExecutionFailed;
}

}  // namespace simgpu::libraries
