// Stream capture and graphs.
#include "runtime/driver_link.h"

namespace simgpu::runtime {

SIMGPU_RUNTIME_API Error cudaStreamBeginCapture(Stream stream, int mode) {
  return with_context([&](const Driver& d) { return d.capture_begin(stream, mode); });
}

SIMGPU_RUNTIME_API Error cudaStreamBeginCaptureToGraph(Stream stream, Graph graph, const GraphNode* dependencies,
                                                       const GraphEdgeData* edges, size_t count, int mode) {
  return with_context(
      [&](const Driver& d) { return d.capture_begin_to_graph(stream, graph, dependencies, edges, count, mode); });
}

SIMGPU_RUNTIME_API Error cudaStreamEndCapture(Stream stream, Graph* graph) {
  return with_context([&](const Driver& d) { return d.capture_end(stream, graph); });
}

SIMGPU_RUNTIME_API Error cudaStreamIsCapturing(Stream stream, int* status) {
  return with_context([&](const Driver& d) { return d.capture_status(stream, status); });
}

SIMGPU_RUNTIME_API Error cudaStreamGetCaptureInfo(Stream stream, int* status, unsigned long long* id, Graph* graph,
                                                  const GraphNode** dependencies, const GraphEdgeData** edges,
                                                  size_t* count) {
  return with_context(
      [&](const Driver& d) { return d.capture_info(stream, status, id, graph, dependencies, edges, count); });
}

SIMGPU_RUNTIME_API Error cudaStreamUpdateCaptureDependencies(Stream stream, GraphNode* dependencies,
                                                             const GraphEdgeData* edges, size_t count, unsigned flags) {
  return with_context([&](const Driver& d) { return d.capture_update(stream, dependencies, edges, count, flags); });
}

SIMGPU_RUNTIME_API Error cudaThreadExchangeStreamCaptureMode(int* mode) {
  return with_driver([&](const Driver& d) { return d.capture_exchange_mode(mode); });
}

SIMGPU_RUNTIME_API Error cudaGraphCreate(Graph* graph, unsigned flags) {
  return with_context([&](const Driver& d) { return d.graph_create(graph, flags); });
}

SIMGPU_RUNTIME_API Error cudaGraphDestroy(Graph graph) {
  return with_context([&](const Driver& d) { return d.graph_destroy(graph); });
}

SIMGPU_RUNTIME_API Error cudaGraphInstantiateWithFlags(GraphExec* executable, Graph graph, unsigned long long flags) {
  return with_context([&](const Driver& d) { return d.graph_instantiate(executable, graph, flags); });
}

SIMGPU_RUNTIME_API Error cudaGraphInstantiate(GraphExec* executable, Graph graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

SIMGPU_RUNTIME_API Error cudaGraphUpload(GraphExec executable, Stream stream) {
  return with_context([&](const Driver& d) { return d.graph_upload(executable, stream); });
}

SIMGPU_RUNTIME_API Error cudaGraphLaunch(GraphExec executable, Stream stream) {
  return with_context([&](const Driver& d) { return d.graph_launch(executable, stream); });
}

SIMGPU_RUNTIME_API Error cudaGraphExecDestroy(GraphExec executable) {
  return with_context([&](const Driver& d) { return d.graph_exec_destroy(executable); });
}

SIMGPU_RUNTIME_API Error cudaGraphGetNodes(Graph graph, GraphNode* nodes, size_t* count) {
  return with_context([&](const Driver& d) { return d.graph_nodes(graph, nodes, count); });
}

SIMGPU_RUNTIME_API Error cudaGraphNodeGetType(GraphNode node, int* type) {
  return with_context([&](const Driver& d) { return d.graph_node_type(node, type); });
}

SIMGPU_RUNTIME_API Error cudaGraphNodeGetDependencies(GraphNode node, GraphNode* dependencies, GraphEdgeData* edges,
                                                      size_t* count) {
  return with_context([&](const Driver& d) { return d.graph_node_dependencies(node, dependencies, edges, count); });
}

SIMGPU_RUNTIME_API Error cudaGraphDebugDotPrint(Graph graph, const char* path, unsigned flags) {
  return with_context([&](const Driver& d) { return d.graph_dot(graph, path, flags); });
}

SIMGPU_RUNTIME_API Error cudaGraphRetainUserObject(Graph graph, UserObject object, unsigned count, unsigned flags) {
  return with_context([&](const Driver& d) { return d.graph_retain_object(graph, object, count, flags); });
}

SIMGPU_RUNTIME_API Error cudaUserObjectCreate(UserObject* object, void* pointer, HostFunction destroy,
                                              unsigned references, unsigned flags) {
  return with_driver(
      [&](const Driver& d) { return d.user_object_create(object, pointer, destroy, references, flags); });
}

SIMGPU_RUNTIME_API Error cudaUserObjectRelease(UserObject object, unsigned count) {
  return with_driver([&](const Driver& d) { return d.user_object_release(object, count); });
}

// Nodes made by hand are kernels (whose parameters are the real runtime's) or conditionals (which read device memory
// that no kernel has written): neither means anything here.
SIMGPU_RUNTIME_API Error cudaGraphAddNode(GraphNode*, Graph, const GraphNode*, const GraphEdgeData*, size_t, void*) {
  say_not_simulated("adding graph nodes by hand (cudaGraphAddNode)", "capture the work on a stream instead");
  return record(kNotSupported);
}

SIMGPU_RUNTIME_API Error cudaGraphConditionalHandleCreate(unsigned long long*, Graph, unsigned, unsigned) {
  say_not_simulated("conditional graph nodes", "capture each branch as a graph of its own");
  return record(kNotSupported);
}

}  // namespace simgpu::runtime
