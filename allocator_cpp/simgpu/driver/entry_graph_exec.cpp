// Entry points: executable graphs, user objects, graph memory.
#include "simulation.h"

using namespace simgpu;

namespace {

uint64_t number(const void* handle) { return reinterpret_cast<uint64_t>(handle); }

// An executable holds the user objects of its graph, so that they outlive the graph.
void hold(Simulation& sim, const GraphObject& graph, ExecObject* exec) {
  exec->user_objects = graph.user_objects;
  for (auto& held : exec->user_objects) {
    if (UserObjectRecord* object = sim.user_objects.find(held.first)) object->references += held.second;
  }
}

Result instantiate(Simulation& sim, GraphExec* exec, Graph graph) {
  GraphObject* object = sim.graphs.find(graph);
  if (exec == nullptr || object == nullptr) return kInvalidValue;
  auto built = std::make_unique<ExecObject>();
  if (!flatten(sim, *object, &built->steps)) return kInvalidValue;  // a cycle
  hold(sim, *object, built.get());
  *exec = reinterpret_cast<GraphExec>(sim.execs.insert(std::move(built)));
  return kSuccess;
}

void release_held(Simulation& sim, const std::map<uint64_t, int64_t>& held) {
  for (auto& one : held) release_user_object(sim, one.first, one.second);
}

}  // namespace

SIMGPU_API Result cuGraphInstantiate(GraphExec* exec, Graph graph, GraphNode* error_node, char* log, size_t log_bytes) {
  SIMGPU_BEGIN(cuGraphInstantiate);
  if (error_node != nullptr) *error_node = nullptr;
  if (log != nullptr && log_bytes > 0) log[0] = '\0';
  return instantiate(sim, exec, graph);
}

SIMGPU_API Result cuGraphInstantiateWithFlags(GraphExec* exec, Graph graph, unsigned long long) {
  SIMGPU_BEGIN(cuGraphInstantiateWithFlags);
  return instantiate(sim, exec, graph);
}

SIMGPU_API Result cuGraphInstantiateWithParams(GraphExec* exec, Graph graph, InstantiateParams* params) {
  SIMGPU_BEGIN(cuGraphInstantiateWithParams);
  if (params == nullptr) return kInvalidValue;
  Result result = instantiate(sim, exec, graph);
  params->error_node = nullptr;
  params->result = result == kSuccess ? 0 : 1;
  return result;
}

SIMGPU_API Result cuGraphExecGetFlags(GraphExec exec, uint64_t* flags) {
  SIMGPU_BEGIN(cuGraphExecGetFlags);
  if (flags == nullptr || sim.execs.find(exec) == nullptr) return kInvalidValue;
  *flags = 0;
  return kSuccess;
}

SIMGPU_API Result cuGraphExecUpdate_v2(GraphExec exec, Graph graph, ExecUpdateResult* info) {
  SIMGPU_BEGIN(cuGraphExecUpdate_v2);
  constexpr int kUpdated = 0, kTopologyChanged = 2;
  ExecObject* object = sim.execs.find(exec);
  GraphObject* source = sim.graphs.find(graph);
  if (object == nullptr || source == nullptr || info == nullptr) return kInvalidValue;
  *info = {kUpdated, nullptr, nullptr};
  std::vector<ExecStep> steps;
  bool same = flatten(sim, *source, &steps) && steps.size() == object->steps.size();
  for (size_t i = 0; same && i < steps.size(); ++i) same = steps[i].type == object->steps[i].type;
  if (!same) {
    info->result = kTopologyChanged;
    return kGraphExecUpdateFailure;
  }
  object->steps = std::move(steps);
  return kSuccess;
}

SIMGPU_API Result cuGraphExecDestroy(GraphExec exec) {
  SIMGPU_BEGIN(cuGraphExecDestroy);
  std::unique_ptr<ExecObject> object = sim.execs.remove(number(exec));
  if (object == nullptr) return kInvalidValue;
  release_held(sim, object->user_objects);
  return kSuccess;
}

SIMGPU_API Result cuGraphLaunch(GraphExec exec, Stream stream) {
  SIMGPU_BEGIN(cuGraphLaunch);
  ExecObject* object = sim.execs.find(exec);
  StreamObject* target = find_stream(sim, stream);
  if (object == nullptr) return kInvalidValue;
  if (target == nullptr) return kInvalidHandle;
  return launch_exec(sim, *object, *target);
}

SIMGPU_API Result cuGraphUpload(GraphExec exec, Stream stream) {
  SIMGPU_BEGIN(cuGraphUpload);
  if (sim.execs.find(exec) == nullptr) return kInvalidValue;
  return find_stream(sim, stream) != nullptr ? kSuccess : kInvalidHandle;
}

SIMGPU_API Result cuUserObjectCreate(UserObject* out, void* pointer, HostFunction destroy, unsigned references,
                                     unsigned flags) {
  SIMGPU_BEGIN(cuUserObjectCreate);
  constexpr unsigned kNoDestructorSync = 1;
  if (out == nullptr || destroy == nullptr || references == 0 || flags != kNoDestructorSync) return kInvalidValue;
  auto object = std::make_unique<UserObjectRecord>();
  object->pointer = pointer;
  object->destroy = destroy;
  object->references = references;
  *out = reinterpret_cast<UserObject>(sim.user_objects.insert(std::move(object)));
  return kSuccess;
}

SIMGPU_API Result cuUserObjectRetain(UserObject object, unsigned count) {
  SIMGPU_BEGIN(cuUserObjectRetain);
  UserObjectRecord* record = sim.user_objects.find(object);
  if (record == nullptr || count == 0) return kInvalidValue;
  record->references += count;
  return kSuccess;
}

SIMGPU_API Result cuUserObjectRelease(UserObject object, unsigned count) {
  SIMGPU_BEGIN(cuUserObjectRelease);
  UserObjectRecord* record = sim.user_objects.find(object);
  if (record == nullptr || count == 0 || count > record->references) return kInvalidValue;
  release_user_object(sim, number(object), count);
  return kSuccess;
}

SIMGPU_API Result cuGraphRetainUserObject(Graph graph, UserObject object, unsigned count, unsigned flags) {
  SIMGPU_BEGIN(cuGraphRetainUserObject);
  constexpr unsigned kMove = 1;
  GraphObject* target = sim.graphs.find(graph);
  UserObjectRecord* record = sim.user_objects.find(object);
  if (target == nullptr || record == nullptr || count == 0 || (flags & ~kMove) != 0) return kInvalidValue;
  target->user_objects[number(object)] += count;
  if ((flags & kMove) == 0) record->references += count;
  return kSuccess;
}

SIMGPU_API Result cuGraphReleaseUserObject(Graph graph, UserObject object, unsigned count) {
  SIMGPU_BEGIN(cuGraphReleaseUserObject);
  GraphObject* target = sim.graphs.find(graph);
  if (target == nullptr || count == 0) return kInvalidValue;
  auto held = target->user_objects.find(number(object));
  if (held == target->user_objects.end() || held->second < count) return kInvalidValue;
  held->second -= count;
  if (held->second == 0) target->user_objects.erase(held);
  release_user_object(sim, number(object), count);
  return kSuccess;
}

// Graphs here own no memory: their allocation nodes are not simulated.
SIMGPU_API Result cuDeviceGetGraphMemAttribute(Device device, int, void* value) {
  SIMGPU_BEGIN(cuDeviceGetGraphMemAttribute);
  if (find_device(sim, device) == nullptr) return kInvalidDevice;
  if (value == nullptr) return kInvalidValue;
  *static_cast<uint64_t*>(value) = 0;
  return kSuccess;
}

SIMGPU_API Result cuDeviceSetGraphMemAttribute(Device device, int, void* value) {
  SIMGPU_BEGIN(cuDeviceSetGraphMemAttribute);
  if (find_device(sim, device) == nullptr) return kInvalidDevice;
  return value != nullptr && *static_cast<uint64_t*>(value) == 0 ? kSuccess : kInvalidValue;
}

SIMGPU_API Result cuDeviceGraphMemTrim(Device device) {
  SIMGPU_BEGIN(cuDeviceGraphMemTrim);
  return find_device(sim, device) != nullptr ? kSuccess : kInvalidDevice;
}
