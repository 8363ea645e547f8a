// Graphs: nodes of work with dependencies, made by capture or by hand; executables, which replay them on a stream; user objects,
// which live as long as the graphs that hold them. Locked by the simulation's mutex.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "work.h"

namespace simgpu {

struct Simulation;
struct StreamObject;

struct NodeObject {
  uint64_t graph = 0;
  NodeType type = kNodeEmpty;
  Work work;
  uint64_t child = 0;                  // kNodeGraph: a graph owned by this node
  std::vector<uint64_t> dependencies;  // handles, in the same graph
};

struct GraphObject {
  std::vector<uint64_t> nodes;
  std::map<uint64_t, int64_t> user_objects;  // handle -> references held
};

struct ExecStep {
  NodeType type;
  Work work;
};

struct ExecObject {
  std::vector<ExecStep> steps;  // in an order that respects the dependencies
  std::map<uint64_t, int64_t> user_objects;
};

struct UserObjectRecord {
  void* pointer = nullptr;
  HostFunction destroy = nullptr;
  int64_t references = 0;
};

uint64_t create_graph(Simulation& sim);
void destroy_graph(Simulation& sim, uint64_t graph);
uint64_t add_node(Simulation& sim, uint64_t graph, NodeType type, Work work, const std::vector<uint64_t>& dependencies);
void destroy_node(Simulation& sim, uint64_t node);
uint64_t clone_graph(Simulation& sim, uint64_t graph);
// Node handles in an order that respects the dependencies; false when they form a cycle.
bool topological_order(Simulation& sim, const GraphObject& graph, std::vector<uint64_t>* order);
// The steps of the graph and its children, in order; false when there is a cycle.
bool flatten(Simulation& sim, const GraphObject& graph, std::vector<ExecStep>* steps);
Result launch_exec(Simulation& sim, ExecObject& exec, StreamObject& stream);
std::string dot_text(Simulation& sim, const GraphObject& graph);

// Drops references; the last one runs the destructor, with the mutex released.
void release_user_object(Simulation& sim, uint64_t object, int64_t count);

}  // namespace simgpu
