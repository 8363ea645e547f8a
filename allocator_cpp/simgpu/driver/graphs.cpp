#include "graphs.h"

#include <algorithm>
#include <cstdio>
#include <unordered_map>

#include "capture.h"
#include "simulation.h"

namespace simgpu {

uint64_t create_graph(Simulation& sim) { return sim.graphs.insert(std::make_unique<GraphObject>()); }

uint64_t add_node(Simulation& sim, uint64_t graph, NodeType type, Work work,
                  const std::vector<uint64_t>& dependencies) {
  auto node = std::make_unique<NodeObject>();
  node->graph = graph;
  node->type = type;
  node->work = std::move(work);
  node->dependencies = dependencies;
  uint64_t handle = sim.nodes.insert(std::move(node));
  sim.graphs.find(graph)->nodes.push_back(handle);
  return handle;
}

void destroy_node(Simulation& sim, uint64_t handle) {
  NodeObject* node = sim.nodes.find(handle);
  if (node == nullptr) return;
  if (GraphObject* graph = sim.graphs.find(node->graph)) {
    graph->nodes.erase(std::remove(graph->nodes.begin(), graph->nodes.end(), handle), graph->nodes.end());
    for (uint64_t other : graph->nodes) {
      std::vector<uint64_t>& list = sim.nodes.find(other)->dependencies;
      list.erase(std::remove(list.begin(), list.end(), handle), list.end());
    }
  }
  uint64_t child = node->child;
  sim.nodes.remove(handle);
  if (child != 0) destroy_graph(sim, child);
}

void destroy_graph(Simulation& sim, uint64_t handle) {
  std::unique_ptr<GraphObject> graph = sim.graphs.remove(handle);
  if (graph == nullptr) return;
  for (uint64_t node : graph->nodes) destroy_node(sim, node);
  for (auto& held : graph->user_objects) release_user_object(sim, held.first, held.second);
}

uint64_t clone_graph(Simulation& sim, uint64_t handle) {
  uint64_t clone = create_graph(sim);
  GraphObject original = *sim.graphs.find(handle);
  std::unordered_map<uint64_t, uint64_t> copies;
  for (uint64_t node : original.nodes) {
    NodeObject copy = *sim.nodes.find(node);
    copies[node] = add_node(sim, clone, copy.type, copy.work, {});
    if (copy.child != 0) {
      uint64_t child = clone_graph(sim, copy.child);
      sim.nodes.find(copies[node])->child = child;
    }
  }
  for (uint64_t node : original.nodes) {
    for (uint64_t before : sim.nodes.find(node)->dependencies)
      sim.nodes.find(copies[node])->dependencies.push_back(copies[before]);
  }
  sim.graphs.find(clone)->user_objects = original.user_objects;
  for (auto& held : original.user_objects) {
    if (UserObjectRecord* object = sim.user_objects.find(held.first)) object->references += held.second;
  }
  return clone;
}

bool topological_order(Simulation& sim, const GraphObject& graph, std::vector<uint64_t>* order) {
  std::unordered_map<uint64_t, size_t> missing;
  std::unordered_map<uint64_t, std::vector<uint64_t>> after;
  for (uint64_t handle : graph.nodes) {
    NodeObject* node = sim.nodes.find(handle);
    missing[handle] = node->dependencies.size();
    for (uint64_t before : node->dependencies) after[before].push_back(handle);
  }
  for (uint64_t handle : graph.nodes) {
    if (missing[handle] == 0) order->push_back(handle);
  }
  for (size_t i = 0; i < order->size(); ++i) {
    for (uint64_t next : after[(*order)[i]]) {
      if (--missing[next] == 0) order->push_back(next);
    }
  }
  return order->size() == graph.nodes.size();
}

bool flatten(Simulation& sim, const GraphObject& graph, std::vector<ExecStep>* steps) {
  std::vector<uint64_t> order;
  if (!topological_order(sim, graph, &order)) return false;
  for (uint64_t handle : order) {
    NodeObject* node = sim.nodes.find(handle);
    if (node->type == kNodeEmpty) continue;
    if (node->type == kNodeGraph) {
      GraphObject* child = sim.graphs.find(node->child);
      if (child == nullptr || !flatten(sim, *child, steps)) return false;
    } else {
      steps->push_back({node->type, node->work});
    }
  }
  return true;
}

Result launch_exec(Simulation& sim, ExecObject& exec, StreamObject& stream) {
  if (exec.steps.empty()) return submit(sim, stream, kNodeEmpty, EmptyWork{});
  std::vector<ExecStep> steps = exec.steps;  // a host function may change or destroy the executable
  for (ExecStep& step : steps) {
    Result result = kSuccess;
    auto* record = std::get_if<RecordWork>(&step.work);
    auto* wait = std::get_if<WaitWork>(&step.work);
    EventObject* event = record != nullptr ? sim.events.find(record->event)
                         : wait != nullptr ? sim.events.find(wait->event)
                                           : nullptr;
    if (stream.capture != nullptr || (record == nullptr && wait == nullptr)) {
      result = submit(sim, stream, step.type, std::move(step.work));
    } else if (event != nullptr && record != nullptr) {
      result = record_event(sim, record->event, *event, stream);
    } else if (event != nullptr && event->capture == 0) {
      result = wait_event(sim, stream, *event);
    }
    if (result != kSuccess) return result;
  }
  return kSuccess;
}

std::string dot_text(Simulation& sim, const GraphObject& graph) {
  static const char* const kNames[] = {"kernel", "memcpy", "memset",     "host",
                                       "graph",  "empty",  "wait event", "record event"};
  std::unordered_map<uint64_t, size_t> number;
  std::string text = "digraph simgpu {\n";
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    number[graph.nodes[i]] = i;
    NodeType type = sim.nodes.find(graph.nodes[i])->type;
    text += "  n" + std::to_string(i) + " [label=\"" + std::to_string(i) + " " + (type < 8 ? kNames[type] : "other") +
            "\"];\n";
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (uint64_t before : sim.nodes.find(graph.nodes[i])->dependencies) {
      text += "  n" + std::to_string(number[before]) + " -> n" + std::to_string(i) + ";\n";
    }
  }
  return text + "}\n";
}

void release_user_object(Simulation& sim, uint64_t handle, int64_t count) {
  UserObjectRecord* object = sim.user_objects.find(handle);
  if (object == nullptr) return;
  object->references -= count;
  if (object->references > 0) return;
  std::unique_ptr<UserObjectRecord> dead = sim.user_objects.remove(handle);
  simulation_mutex().unlock();
  bool before = in_host_function();
  in_host_function() = true;
  dead->destroy(dead->pointer);
  in_host_function() = before;
  simulation_mutex().lock();
}

}  // namespace simgpu
