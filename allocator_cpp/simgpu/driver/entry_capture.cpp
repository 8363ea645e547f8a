// Entry points: stream capture.
#include "simulation.h"

using namespace simgpu;

namespace {

struct InfoOut {
  CaptureStatus* status;
  uint64_t* id = nullptr;
  Graph* graph = nullptr;
  const GraphNode** nodes = nullptr;
  const EdgeData** edges = nullptr;
  size_t* count = nullptr;
};

Result capture_info(Simulation& sim, Stream stream, const InfoOut& out) {
  StreamObject* object = find_stream(sim, stream);
  if (object == nullptr) return kInvalidHandle;
  if (out.status == nullptr) return kInvalidValue;
  const Capture* capture = object->capture;
  bool active = capture != nullptr && !capture->invalidated;
  *out.status = capture == nullptr ? kCaptureNone : active ? kCaptureActive : kCaptureInvalidated;
  if (object->legacy && legacy_use_disturbs(sim, object->device))
    return kStreamCaptureImplicit;  // asking breaks nothing
  if (out.id != nullptr) *out.id = active ? capture->id : 0;
  if (out.graph != nullptr) *out.graph = active ? reinterpret_cast<Graph>(capture->graph) : nullptr;
  if (out.count != nullptr) *out.count = active ? object->capture_nodes.size() : 0;
  if (out.edges != nullptr) *out.edges = nullptr;
  // The array belongs to the stream, until the next call on it.
  static_assert(sizeof(GraphNode) == sizeof(uint64_t), "handles are passed as pointers");
  if (out.nodes != nullptr)
    *out.nodes = active ? reinterpret_cast<const GraphNode*>(object->capture_nodes.data()) : nullptr;
  return kSuccess;
}

Result update_dependencies(Simulation& sim, Stream stream, const GraphNode* nodes, size_t count, unsigned flags) {
  StreamObject* object = find_stream(sim, stream);
  if (object == nullptr) return kInvalidHandle;
  if (object->capture == nullptr) return kIllegalState;
  if (object->capture->invalidated) return kStreamCaptureInvalidated;
  if ((count > 0 && nodes == nullptr) || flags > kSetDependencies) return kInvalidValue;
  std::vector<uint64_t> handles = flags == kAddDependencies ? object->capture_nodes : std::vector<uint64_t>();
  for (size_t i = 0; i < count; ++i) {
    NodeObject* node = sim.nodes.find(nodes[i]);
    if (node == nullptr || node->graph != object->capture->graph) return kInvalidValue;
    handles.push_back(reinterpret_cast<uint64_t>(nodes[i]));
  }
  object->capture_nodes = std::move(handles);
  return kSuccess;
}

bool known_mode(CaptureMode mode) { return mode >= kCaptureGlobal && mode <= kCaptureRelaxed; }

}  // namespace

SIMGPU_API Result cuStreamBeginCapture_v2(Stream stream, CaptureMode mode) {
  SIMGPU_BEGIN(cuStreamBeginCapture_v2);
  StreamObject* object = find_stream(sim, stream);
  if (object == nullptr) return kInvalidHandle;
  if (!known_mode(mode)) return kInvalidValue;
  return begin_capture(sim, *object, mode, 0, {});
}

SIMGPU_API Result cuStreamBeginCaptureToGraph(Stream stream, Graph graph, const GraphNode* nodes, const EdgeData*,
                                              size_t count, CaptureMode mode) {
  SIMGPU_BEGIN(cuStreamBeginCaptureToGraph);
  StreamObject* object = find_stream(sim, stream);
  if (object == nullptr) return kInvalidHandle;
  if (sim.graphs.find(graph) == nullptr || (count > 0 && nodes == nullptr) || !known_mode(mode)) return kInvalidValue;
  std::vector<uint64_t> handles;
  for (size_t i = 0; i < count; ++i) {
    if (sim.nodes.find(nodes[i]) == nullptr) return kInvalidValue;
    handles.push_back(reinterpret_cast<uint64_t>(nodes[i]));
  }
  return begin_capture(sim, *object, mode, reinterpret_cast<uint64_t>(graph), std::move(handles));
}

SIMGPU_API Result cuStreamEndCapture(Stream stream, Graph* graph) {
  SIMGPU_BEGIN(cuStreamEndCapture);
  StreamObject* object = find_stream(sim, stream);
  if (object == nullptr) return kInvalidHandle;
  if (graph == nullptr) return kInvalidValue;
  uint64_t handle = 0;
  Result result = end_capture(sim, *object, &handle);
  *graph = reinterpret_cast<Graph>(handle);
  return result;
}

SIMGPU_API Result cuStreamIsCapturing(Stream stream, CaptureStatus* status) {
  SIMGPU_BEGIN(cuStreamIsCapturing);
  return capture_info(sim, stream, {status});
}

SIMGPU_API Result cuStreamGetCaptureInfo(Stream stream, CaptureStatus* status, uint64_t* id) {
  SIMGPU_BEGIN(cuStreamGetCaptureInfo);
  return capture_info(sim, stream, {status, id});
}

SIMGPU_API Result cuStreamGetCaptureInfo_v2(Stream stream, CaptureStatus* status, uint64_t* id, Graph* graph,
                                            const GraphNode** nodes, size_t* count) {
  SIMGPU_BEGIN(cuStreamGetCaptureInfo_v2);
  return capture_info(sim, stream, {status, id, graph, nodes, nullptr, count});
}

SIMGPU_API Result cuStreamGetCaptureInfo_v3(Stream stream, CaptureStatus* status, uint64_t* id, Graph* graph,
                                            const GraphNode** nodes, const EdgeData** edges, size_t* count) {
  SIMGPU_BEGIN(cuStreamGetCaptureInfo_v3);
  return capture_info(sim, stream, {status, id, graph, nodes, edges, count});
}

SIMGPU_API Result cuStreamUpdateCaptureDependencies(Stream stream, GraphNode* nodes, size_t count, unsigned flags) {
  SIMGPU_BEGIN(cuStreamUpdateCaptureDependencies);
  return update_dependencies(sim, stream, nodes, count, flags);
}

SIMGPU_API Result cuStreamUpdateCaptureDependencies_v2(Stream stream, GraphNode* nodes, const EdgeData*, size_t count,
                                                       unsigned flags) {
  SIMGPU_BEGIN(cuStreamUpdateCaptureDependencies_v2);
  return update_dependencies(sim, stream, nodes, count, flags);
}

SIMGPU_API Result cuThreadExchangeStreamCaptureMode(CaptureMode* mode) {
  SIMGPU_BEGIN(cuThreadExchangeStreamCaptureMode);
  if (mode == nullptr || !known_mode(*mode)) return kInvalidValue;
  std::swap(*mode, thread_capture_mode());
  return kSuccess;
}
