#include "capture.h"

#include <algorithm>
#include <unordered_set>

#include "simulation.h"

namespace simgpu {
namespace {

Capture* find_capture(Simulation& sim, uint64_t id) {
  for (auto& capture : sim.captures) {
    if (capture->id == id) return capture.get();
  }
  return nullptr;
}

void add_nodes(std::vector<uint64_t>* into, const std::vector<uint64_t>& nodes) {
  for (uint64_t node : nodes) {
    if (std::find(into->begin(), into->end(), node) == into->end()) into->push_back(node);
  }
}

// Every stream forked into the capture must have been joined: its last nodes lie before the origin's.
bool all_joined(Simulation& sim, const Capture& capture) {
  std::unordered_set<uint64_t> reached;
  std::vector<uint64_t> open = capture.origin->capture_nodes;
  while (!open.empty()) {
    uint64_t handle = open.back();
    open.pop_back();
    if (!reached.insert(handle).second) continue;
    if (NodeObject* node = sim.nodes.find(handle))
      open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
  }
  for (const StreamObject* stream : capture.streams) {
    if (stream == capture.origin) continue;
    for (uint64_t node : stream->capture_nodes) {
      if (reached.count(node) == 0) return false;
    }
  }
  return true;
}

}  // namespace

CaptureMode& thread_capture_mode() {
  static thread_local CaptureMode mode = kCaptureGlobal;
  return mode;
}

void invalidate(Capture& capture) { capture.invalidated = true; }

Result begin_capture(Simulation& sim, StreamObject& stream, CaptureMode mode, uint64_t graph,
                     std::vector<uint64_t> nodes) {
  if (stream.legacy) return kStreamCaptureUnsupported;
  if (stream.capture != nullptr) return kIllegalState;
  auto capture = std::make_unique<Capture>();
  capture->id = sim.next_capture++;
  capture->graph = graph != 0 ? graph : create_graph(sim);
  capture->origin = &stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->streams = {&stream};
  stream.capture = capture.get();
  stream.capture_nodes = std::move(nodes);
  sim.captures.push_back(std::move(capture));
  return kSuccess;
}

Result end_capture(Simulation& sim, StreamObject& stream, uint64_t* graph) {
  *graph = 0;
  Capture* capture = stream.capture;
  if (capture == nullptr) return kIllegalState;
  if (capture->origin != &stream) {
    invalidate(*capture);
    return kStreamCaptureUnmatched;
  }
  if (capture->mode != kCaptureRelaxed && capture->thread != std::this_thread::get_id())
    return kStreamCaptureWrongThread;
  Result result = kSuccess;
  if (capture->invalidated) {
    result = kStreamCaptureInvalidated;
  } else if (!all_joined(sim, *capture)) {
    result = kStreamCaptureUnjoined;
  }
  for (StreamObject* joined : capture->streams) {
    joined->capture = nullptr;
    joined->capture_nodes.clear();
  }
  if (result == kSuccess) {
    *graph = capture->graph;
  } else {
    destroy_graph(sim, capture->graph);
  }
  sim.captures.erase(std::find_if(sim.captures.begin(), sim.captures.end(),
                                  [&](const auto& other) { return other.get() == capture; }));
  return result;
}

Result check_unsafe_call(Simulation& sim) {
  if (sim.captures.empty() || thread_capture_mode() == kCaptureRelaxed) return kSuccess;
  bool disturbed = false;
  for (auto& capture : sim.captures) {
    if (capture->mode == kCaptureRelaxed) continue;
    bool own = capture->thread == std::this_thread::get_id();
    if (!own && (thread_capture_mode() == kCaptureThreadLocal || capture->mode == kCaptureThreadLocal)) continue;
    invalidate(*capture);
    disturbed = true;
  }
  return disturbed ? kStreamCaptureUnsupported : kSuccess;
}

namespace {

bool has_blocking_stream(const Capture& capture, int device) {
  for (const StreamObject* stream : capture.streams) {
    if (stream->blocking && stream->device == device) return true;
  }
  return false;
}

}  // namespace

bool legacy_use_disturbs(Simulation& sim, int device) {
  for (auto& capture : sim.captures) {
    if (has_blocking_stream(*capture, device)) return true;
  }
  return false;
}

Result check_legacy_use(Simulation& sim, int device) {
  if (!legacy_use_disturbs(sim, device)) return kSuccess;
  for (auto& capture : sim.captures) {
    if (has_blocking_stream(*capture, device)) invalidate(*capture);
  }
  return kStreamCaptureImplicit;
}

Result check_stream_query(Simulation& sim, StreamObject& stream) {
  if (stream.capture != nullptr) {
    invalidate(*stream.capture);
    return kStreamCaptureUnsupported;
  }
  return stream.legacy ? check_legacy_use(sim, stream.device) : kSuccess;
}

Result check_event_query(Simulation& sim, EventObject& event) {
  if (event.capture == 0) return kSuccess;
  if (Capture* capture = find_capture(sim, event.capture)) invalidate(*capture);
  return kCapturedEvent;
}

Result submit(Simulation& sim, StreamObject& stream, NodeType type, Work work) {
  if (stream.capture == nullptr) {
    if (stream.legacy && !sim.captures.empty()) {
      if (Result error = check_legacy_use(sim, stream.device)) return error;
    }
    return sim.scheduler.enqueue(stream, std::move(work));
  }
  if (stream.capture->invalidated) return kStreamCaptureInvalidated;
  if (std::holds_alternative<FreeWork>(work)) return kNotSupported;
  if (auto* host = std::get_if<HostWork>(&work); host != nullptr && host->callback != nullptr) {
    invalidate(*stream.capture);  // cuStreamAddCallback cannot be captured; cuLaunchHostFunc can
    return kStreamCaptureUnsupported;
  }
  uint64_t node = add_node(sim, stream.capture->graph, type, std::move(work), stream.capture_nodes);
  stream.capture_nodes = {node};
  return kSuccess;
}

Result capture_record(Simulation&, StreamObject& stream, EventObject& event) {
  if (stream.capture->invalidated) return kStreamCaptureInvalidated;
  event.recorded = true;
  event.capture = stream.capture->id;
  event.nodes = stream.capture_nodes;
  return kSuccess;
}

Result capture_wait(Simulation& sim, StreamObject& stream, EventObject& event) {
  Capture* from = event.capture != 0 ? find_capture(sim, event.capture) : nullptr;
  if (stream.capture != nullptr) {
    if (stream.capture->invalidated) return kStreamCaptureInvalidated;
    if (!event.recorded) return kSuccess;
    if (event.capture == 0) {
      invalidate(*stream.capture);
      return kStreamCaptureIsolation;
    }
    if (from == nullptr) return kCapturedEvent;
    if (from != stream.capture) {
      invalidate(*stream.capture);
      invalidate(*from);
      return kStreamCaptureMerge;
    }
    add_nodes(&stream.capture_nodes, event.nodes);
    return kSuccess;
  }
  if (from == nullptr) return kCapturedEvent;  // captured, and that capture is over
  if (from->invalidated) return kStreamCaptureInvalidated;
  if (stream.legacy) {
    invalidate(*from);
    return kStreamCaptureImplicit;
  }
  stream.capture = from;
  stream.capture_nodes = event.nodes;
  from->streams.push_back(&stream);
  return kSuccess;
}

}  // namespace simgpu
