// For tests of private pools and CUDA graphs: short forms of the C ABI's calls, and captures as a program makes them.
#pragma once
#include <vector>

#include "pools.h"

extern "C" {
pyalloc::cuda::Result cuStreamBeginCapture_v2(pyalloc::cuda::Stream stream, pyalloc::cuda::CaptureMode mode);
pyalloc::cuda::Result cuStreamEndCapture(pyalloc::cuda::Stream stream, void** graph);
pyalloc::cuda::Result cuStreamIsCapturing(pyalloc::cuda::Stream stream, pyalloc::cuda::CaptureStatus* status);
pyalloc::cuda::Result cuStreamWaitEvent(pyalloc::cuda::Stream stream, pyalloc::cuda::Event event, unsigned flags);
pyalloc::cuda::Result cuEventCreate(pyalloc::cuda::Event* event, unsigned flags);
pyalloc::cuda::Result cuEventRecord(pyalloc::cuda::Event event, pyalloc::cuda::Stream stream);
pyalloc::cuda::Result cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long flags);
pyalloc::cuda::Result cuGraphLaunch(void* exec, pyalloc::cuda::Stream stream);
pyalloc::cuda::Result cuGraphExecDestroy(void* exec);
pyalloc::cuda::Result cuGraphDestroy(void* graph);
}

namespace test {

inline int retain(pyalloc_pool_key key) {
  int pool = -1;
  CHECK_EQ(pyalloc_private_pool_retain(0, key, &pool), PYALLOC_OK);
  return pool;
}
inline void release(pyalloc_pool_key key) { CHECK_EQ(pyalloc_private_pool_release(0, key), PYALLOC_OK); }
inline int uses(pyalloc_pool_key key) {
  int count = -1;
  CHECK_EQ(pyalloc_private_pool_uses(0, key, &count), PYALLOC_OK);
  return count;
}
inline void* allocate_in(int pool, size_t bytes, void* stream = nullptr) {
  void* pointer = nullptr;
  return pyalloc_allocate_in(0, pool, stream, PYALLOC_STREAM_OWNED, bytes, &pointer) == PYALLOC_OK ? pointer : nullptr;
}

// The pool's figures; zeros when it is not known.
inline pyalloc_private_pool of_pool(pyalloc_pool_key key) {
  pyalloc_private_pool found{};
  found.key = key;
  auto look = [](void* context, const pyalloc_private_pool* pool) {
    auto* wanted = static_cast<pyalloc_private_pool*>(context);
    if (pool->key.first == wanted->key.first && pool->key.second == wanted->key.second) *wanted = *pool;
  };
  CHECK_EQ(pyalloc_private_pools(0, &found, look), PYALLOC_OK);
  return found;
}

inline pyalloc::cuda::Stream driver_stream(void* stream) { return static_cast<pyalloc::cuda::Stream>(stream); }

// A capture in global mode, as torch's by default.
inline void begin_capture(void* stream) {
  CHECK_EQ(pyalloc_note_stream(0, stream, PYALLOC_STREAM_OWNED), PYALLOC_OK);
  CHECK_EQ(cuStreamBeginCapture_v2(driver_stream(stream), pyalloc::cuda::kCaptureGlobal), pyalloc::cuda::kSuccess);
}
inline bool capturing(void* stream) {
  pyalloc::cuda::CaptureStatus status = pyalloc::cuda::kCaptureNone;
  return cuStreamIsCapturing(driver_stream(stream), &status) == pyalloc::cuda::kSuccess &&
         status == pyalloc::cuda::kCaptureActive;
}

class Graph {
 public:
  explicit Graph(void* stream) {
    CHECK_EQ(cuStreamEndCapture(driver_stream(stream), &graph_), pyalloc::cuda::kSuccess);
    if (graph_ != nullptr) CHECK_EQ(cuGraphInstantiateWithFlags(&exec_, graph_, 0), pyalloc::cuda::kSuccess);
  }
  ~Graph() { destroy(); }
  void replay(void* stream) { CHECK_EQ(cuGraphLaunch(exec_, driver_stream(stream)), pyalloc::cuda::kSuccess); }
  void destroy() {
    if (exec_ != nullptr) cuGraphExecDestroy(exec_);
    if (graph_ != nullptr) cuGraphDestroy(graph_);
    exec_ = graph_ = nullptr;
  }

 private:
  void *graph_ = nullptr, *exec_ = nullptr;
};

// `to` goes on after what `from` has enqueued; in a capture, a fork or a join.
inline void follow(void* from, void* to) {
  pyalloc::cuda::Event event = nullptr;
  CHECK_EQ(cuEventCreate(&event, pyalloc::cuda::kEventDisableTiming), pyalloc::cuda::kSuccess);
  CHECK_EQ(cuEventRecord(event, driver_stream(from)), pyalloc::cuda::kSuccess);
  CHECK_EQ(cuStreamWaitEvent(driver_stream(to), event, 0), pyalloc::cuda::kSuccess);
}

}  // namespace test
