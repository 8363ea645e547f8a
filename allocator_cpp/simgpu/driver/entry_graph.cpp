// Entry points: building and reading graphs. Running them: entry_graph_exec.cpp.
#include <algorithm>
#include <cstdio>

#include "simulation.h"

using namespace simgpu;

namespace {

uint64_t number(const void* handle) { return reinterpret_cast<uint64_t>(handle); }

bool collect(Simulation& sim, Graph graph, const GraphNode* nodes, size_t count, std::vector<uint64_t>* out) {
  if (count > 0 && nodes == nullptr) return false;
  for (size_t i = 0; i < count; ++i) {
    NodeObject* node = sim.nodes.find(nodes[i]);
    if (node == nullptr || node->graph != number(graph)) return false;
    out->push_back(number(nodes[i]));
  }
  return true;
}

Result add(Simulation& sim, GraphNode* out, Graph graph, const GraphNode* nodes, size_t count, NodeType type,
           Work work) {
  std::vector<uint64_t> dependencies;
  if (out == nullptr || sim.graphs.find(graph) == nullptr || !collect(sim, graph, nodes, count, &dependencies))
    return kInvalidValue;
  *out = reinterpret_cast<GraphNode>(add_node(sim, number(graph), type, std::move(work), dependencies));
  return kSuccess;
}

Result add_child(Simulation& sim, GraphNode* out, Graph graph, const GraphNode* nodes, size_t count, Graph child) {
  if (sim.graphs.find(child) == nullptr) return kInvalidValue;
  if (Result error = add(sim, out, graph, nodes, count, kNodeGraph, EmptyWork{})) return error;
  uint64_t clone = clone_graph(sim, number(child));
  sim.nodes.find(*out)->child = clone;
  return kSuccess;
}

Result copy_work(Simulation& sim, const Copy3dParams* params, CopyWork* out) {
  if (params == nullptr) return kInvalidValue;
  if (params->source.type == kMemoryArray || params->target.type == kMemoryArray || params->depth > 1)
    return kNotSupported;
  auto address = [](const Copy3dSide& side) {
    return (side.type == kMemoryHost ? number(side.host) : side.device) + side.y * side.pitch + side.x_bytes;
  };
  auto is_host = [&](uint64_t at) {
    Region* region = sim.space.find(at);
    return region == nullptr || region->kind == RegionKind::kHost;
  };
  out->target = address(params->target);
  out->source = address(params->source);
  out->target_host = is_host(out->target);
  out->source_host = is_host(out->source);
  out->width = params->width_bytes;
  out->rows = std::max<size_t>(params->height, 1);
  out->target_pitch = params->target.pitch;
  out->source_pitch = params->source.pitch;
  return kSuccess;
}

Result fill_work(const MemsetNodeParams* params, FillWork* out) {
  if (params == nullptr) return kInvalidValue;
  unsigned element = params->element_size;
  if (element != 1 && element != 2 && element != 4) return kInvalidValue;
  out->target = params->target;
  out->value = params->value;
  out->element = element;
  out->width = params->width * element;
  out->rows = std::max<size_t>(params->height, 1);
  out->pitch = params->pitch;
  return kSuccess;
}

HostWork host_work(const HostNodeParams& params) {
  HostWork work;
  work.function = params.function;
  work.user_data = params.user_data;
  return work;
}

Result add_any(Simulation& sim, GraphNode* out, Graph graph, const GraphNode* nodes, size_t count,
               const GraphNodeParams* params) {
  if (params == nullptr) return kInvalidValue;
  switch (params->type) {
    case kNodeKernel:
      return add(sim, out, graph, nodes, count, kNodeKernel, KernelWork{params->kernel});
    case kNodeMemcpy: {
      CopyWork work;
      if (Result error = copy_work(sim, &params->memcpy.copy, &work)) return error;
      return add(sim, out, graph, nodes, count, kNodeMemcpy, work);
    }
    case kNodeMemset: {
      FillWork work;
      if (Result error = fill_work(&params->memset.memset, &work)) return error;
      return add(sim, out, graph, nodes, count, kNodeMemset, work);
    }
    case kNodeHost:
      return add(sim, out, graph, nodes, count, kNodeHost, host_work(params->host));
    case kNodeEmpty:
      return add(sim, out, graph, nodes, count, kNodeEmpty, EmptyWork{});
    case kNodeGraph:
      return add_child(sim, out, graph, nodes, count, params->child.graph);
    case kNodeWaitEvent:
      return add(sim, out, graph, nodes, count, kNodeWaitEvent, WaitWork{number(params->event.event)});
    case kNodeEventRecord:
      return add(sim, out, graph, nodes, count, kNodeEventRecord, RecordWork{number(params->event.event), 0});
    default:
      return kNotSupported;
  }
}

Result add_dependencies(Simulation& sim, Graph graph, const GraphNode* from, const GraphNode* to, size_t count) {
  std::vector<uint64_t> before, after;
  if (sim.graphs.find(graph) == nullptr || !collect(sim, graph, from, count, &before) ||
      !collect(sim, graph, to, count, &after)) {
    return kInvalidValue;
  }
  for (size_t i = 0; i < count; ++i) sim.nodes.find(after[i])->dependencies.push_back(before[i]);
  return kSuccess;
}

// The driver's way to give a list: a null array asks for the count; else up to *count are written, the rest set to null.
Result give(const std::vector<uint64_t>& handles, GraphNode* nodes, size_t* count) {
  if (count == nullptr) return kInvalidValue;
  if (nodes == nullptr) return *count = handles.size(), kSuccess;
  for (size_t i = 0; i < *count; ++i) nodes[i] = i < handles.size() ? reinterpret_cast<GraphNode>(handles[i]) : nullptr;
  *count = std::min(*count, handles.size());
  return kSuccess;
}

Result give_edges(Simulation& sim, Graph graph, GraphNode* from, GraphNode* to, EdgeData* edges, size_t* count) {
  GraphObject* object = sim.graphs.find(graph);
  if (object == nullptr || count == nullptr) return kInvalidValue;
  size_t capacity = *count, total = 0;
  for (uint64_t handle : object->nodes) {
    for (uint64_t before : sim.nodes.find(handle)->dependencies) {
      if (from != nullptr && to != nullptr && total < capacity) {
        from[total] = reinterpret_cast<GraphNode>(before);
        to[total] = reinterpret_cast<GraphNode>(handle);
        if (edges != nullptr) edges[total] = {};
      }
      ++total;
    }
  }
  *count = from == nullptr ? total : std::min(total, capacity);
  return kSuccess;
}

Result give_dependents(Simulation& sim, GraphNode node, GraphNode* nodes, size_t* count) {
  NodeObject* object = sim.nodes.find(node);
  if (object == nullptr) return kInvalidValue;
  std::vector<uint64_t> handles;
  for (uint64_t other : sim.graphs.find(object->graph)->nodes) {
    const std::vector<uint64_t>& list = sim.nodes.find(other)->dependencies;
    if (std::find(list.begin(), list.end(), number(node)) != list.end()) handles.push_back(other);
  }
  return give(handles, nodes, count);
}

}  // namespace

SIMGPU_API Result cuGraphCreate(Graph* graph, unsigned flags) {
  SIMGPU_BEGIN(cuGraphCreate);
  if (graph == nullptr || flags != 0) return kInvalidValue;
  *graph = reinterpret_cast<Graph>(create_graph(sim));
  return kSuccess;
}

SIMGPU_API Result cuGraphDestroy(Graph graph) {
  SIMGPU_BEGIN(cuGraphDestroy);
  if (sim.graphs.find(graph) == nullptr) return kInvalidValue;
  destroy_graph(sim, number(graph));
  return kSuccess;
}

SIMGPU_API Result cuGraphClone(Graph* clone, Graph original) {
  SIMGPU_BEGIN(cuGraphClone);
  if (clone == nullptr || sim.graphs.find(original) == nullptr) return kInvalidValue;
  *clone = reinterpret_cast<Graph>(clone_graph(sim, number(original)));
  return kSuccess;
}

SIMGPU_API Result cuGraphAddKernelNode_v2(GraphNode* node, Graph graph, const GraphNode* nodes, size_t count,
                                          const KernelNodeParams* params) {
  SIMGPU_BEGIN(cuGraphAddKernelNode_v2);
  if (params == nullptr) return kInvalidValue;
  return add(sim, node, graph, nodes, count, kNodeKernel, KernelWork{*params});
}

SIMGPU_API Result cuGraphAddMemcpyNode(GraphNode* node, Graph graph, const GraphNode* nodes, size_t count,
                                       const Copy3dParams* params, Context context) {
  SIMGPU_BEGIN(cuGraphAddMemcpyNode);
  if (context_device(sim, context) == nullptr) return kInvalidContext;
  CopyWork work;
  if (Result error = copy_work(sim, params, &work)) return error;
  return add(sim, node, graph, nodes, count, kNodeMemcpy, work);
}

SIMGPU_API Result cuGraphAddMemsetNode(GraphNode* node, Graph graph, const GraphNode* nodes, size_t count,
                                       const MemsetNodeParams* params, Context context) {
  SIMGPU_BEGIN(cuGraphAddMemsetNode);
  if (context_device(sim, context) == nullptr) return kInvalidContext;
  FillWork work;
  if (Result error = fill_work(params, &work)) return error;
  return add(sim, node, graph, nodes, count, kNodeMemset, work);
}

SIMGPU_API Result cuGraphAddHostNode(GraphNode* node, Graph graph, const GraphNode* nodes, size_t count,
                                     const HostNodeParams* params) {
  SIMGPU_BEGIN(cuGraphAddHostNode);
  if (params == nullptr || params->function == nullptr) return kInvalidValue;
  return add(sim, node, graph, nodes, count, kNodeHost, host_work(*params));
}

SIMGPU_API Result cuGraphAddEmptyNode(GraphNode* node, Graph graph, const GraphNode* nodes, size_t count) {
  SIMGPU_BEGIN(cuGraphAddEmptyNode);
  return add(sim, node, graph, nodes, count, kNodeEmpty, EmptyWork{});
}

SIMGPU_API Result cuGraphAddChildGraphNode(GraphNode* node, Graph graph, const GraphNode* nodes, size_t count,
                                           Graph child) {
  SIMGPU_BEGIN(cuGraphAddChildGraphNode);
  return add_child(sim, node, graph, nodes, count, child);
}

SIMGPU_API Result cuGraphAddEventRecordNode(GraphNode* node, Graph graph, const GraphNode* nodes, size_t count,
                                            Event event) {
  SIMGPU_BEGIN(cuGraphAddEventRecordNode);
  if (sim.events.find(event) == nullptr) return kInvalidValue;
  return add(sim, node, graph, nodes, count, kNodeEventRecord, RecordWork{number(event), 0});
}

SIMGPU_API Result cuGraphAddEventWaitNode(GraphNode* node, Graph graph, const GraphNode* nodes, size_t count,
                                          Event event) {
  SIMGPU_BEGIN(cuGraphAddEventWaitNode);
  if (sim.events.find(event) == nullptr) return kInvalidValue;
  return add(sim, node, graph, nodes, count, kNodeWaitEvent, WaitWork{number(event)});
}

SIMGPU_API Result cuGraphAddNode(GraphNode* node, Graph graph, const GraphNode* nodes, size_t count,
                                 GraphNodeParams* params) {
  SIMGPU_BEGIN(cuGraphAddNode);
  return add_any(sim, node, graph, nodes, count, params);
}

SIMGPU_API Result cuGraphAddNode_v2(GraphNode* node, Graph graph, const GraphNode* nodes, const EdgeData*, size_t count,
                                    GraphNodeParams* params) {
  SIMGPU_BEGIN(cuGraphAddNode_v2);
  return add_any(sim, node, graph, nodes, count, params);
}

SIMGPU_API Result cuGraphAddDependencies(Graph graph, const GraphNode* from, const GraphNode* to, size_t count) {
  SIMGPU_BEGIN(cuGraphAddDependencies);
  return add_dependencies(sim, graph, from, to, count);
}

SIMGPU_API Result cuGraphAddDependencies_v2(Graph graph, const GraphNode* from, const GraphNode* to, const EdgeData*,
                                            size_t count) {
  SIMGPU_BEGIN(cuGraphAddDependencies_v2);
  return add_dependencies(sim, graph, from, to, count);
}

SIMGPU_API Result cuGraphDestroyNode(GraphNode node) {
  SIMGPU_BEGIN(cuGraphDestroyNode);
  if (sim.nodes.find(node) == nullptr) return kInvalidValue;
  destroy_node(sim, number(node));
  return kSuccess;
}

SIMGPU_API Result cuGraphGetNodes(Graph graph, GraphNode* nodes, size_t* count) {
  SIMGPU_BEGIN(cuGraphGetNodes);
  GraphObject* object = sim.graphs.find(graph);
  return object != nullptr ? give(object->nodes, nodes, count) : kInvalidValue;
}

SIMGPU_API Result cuGraphGetRootNodes(Graph graph, GraphNode* nodes, size_t* count) {
  SIMGPU_BEGIN(cuGraphGetRootNodes);
  GraphObject* object = sim.graphs.find(graph);
  if (object == nullptr) return kInvalidValue;
  std::vector<uint64_t> roots;
  for (uint64_t handle : object->nodes) {
    if (sim.nodes.find(handle)->dependencies.empty()) roots.push_back(handle);
  }
  return give(roots, nodes, count);
}

SIMGPU_API Result cuGraphGetEdges(Graph graph, GraphNode* from, GraphNode* to, size_t* count) {
  SIMGPU_BEGIN(cuGraphGetEdges);
  return give_edges(sim, graph, from, to, nullptr, count);
}

SIMGPU_API Result cuGraphGetEdges_v2(Graph graph, GraphNode* from, GraphNode* to, EdgeData* edges, size_t* count) {
  SIMGPU_BEGIN(cuGraphGetEdges_v2);
  return give_edges(sim, graph, from, to, edges, count);
}

SIMGPU_API Result cuGraphNodeGetType(GraphNode node, NodeType* type) {
  SIMGPU_BEGIN(cuGraphNodeGetType);
  NodeObject* object = sim.nodes.find(node);
  if (object == nullptr || type == nullptr) return kInvalidValue;
  *type = object->type;
  return kSuccess;
}

SIMGPU_API Result cuGraphNodeGetDependencies(GraphNode node, GraphNode* nodes, size_t* count) {
  SIMGPU_BEGIN(cuGraphNodeGetDependencies);
  NodeObject* object = sim.nodes.find(node);
  return object != nullptr ? give(object->dependencies, nodes, count) : kInvalidValue;
}

SIMGPU_API Result cuGraphNodeGetDependencies_v2(GraphNode node, GraphNode* nodes, EdgeData* edges, size_t* count) {
  SIMGPU_BEGIN(cuGraphNodeGetDependencies_v2);
  NodeObject* object = sim.nodes.find(node);
  if (object == nullptr) return kInvalidValue;
  Result result = give(object->dependencies, nodes, count);
  if (result == kSuccess && nodes != nullptr && edges != nullptr) std::fill(edges, edges + *count, EdgeData{});
  return result;
}

SIMGPU_API Result cuGraphNodeGetDependentNodes(GraphNode node, GraphNode* nodes, size_t* count) {
  SIMGPU_BEGIN(cuGraphNodeGetDependentNodes);
  return give_dependents(sim, node, nodes, count);
}

SIMGPU_API Result cuGraphNodeGetDependentNodes_v2(GraphNode node, GraphNode* nodes, EdgeData* edges, size_t* count) {
  SIMGPU_BEGIN(cuGraphNodeGetDependentNodes_v2);
  Result result = give_dependents(sim, node, nodes, count);
  if (result == kSuccess && nodes != nullptr && edges != nullptr) std::fill(edges, edges + *count, EdgeData{});
  return result;
}

SIMGPU_API Result cuGraphKernelNodeGetParams_v2(GraphNode node, KernelNodeParams* params) {
  SIMGPU_BEGIN(cuGraphKernelNodeGetParams_v2);
  NodeObject* object = sim.nodes.find(node);
  if (object == nullptr || params == nullptr || object->type != kNodeKernel) return kInvalidValue;
  const KernelWork* kernel = std::get_if<KernelWork>(&object->work);
  *params = kernel != nullptr ? kernel->params : KernelNodeParams{};
  return kSuccess;
}

SIMGPU_API Result cuGraphMemsetNodeGetParams(GraphNode node, MemsetNodeParams* params) {
  SIMGPU_BEGIN(cuGraphMemsetNodeGetParams);
  NodeObject* object = sim.nodes.find(node);
  const FillWork* fill = object != nullptr ? std::get_if<FillWork>(&object->work) : nullptr;
  if (fill == nullptr || params == nullptr) return kInvalidValue;
  *params = {fill->target, fill->pitch, fill->value, fill->element, fill->width / fill->element, fill->rows};
  return kSuccess;
}

SIMGPU_API Result cuGraphDebugDotPrint(Graph graph, const char* path, unsigned) {
  SIMGPU_BEGIN(cuGraphDebugDotPrint);
  GraphObject* object = sim.graphs.find(graph);
  if (object == nullptr || path == nullptr) return kInvalidValue;
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return kOperatingSystem;
  std::fputs(dot_text(sim, *object).c_str(), file);
  return std::fclose(file) == 0 ? kSuccess : kOperatingSystem;
}
