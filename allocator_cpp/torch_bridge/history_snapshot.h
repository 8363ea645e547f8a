// A whole snapshot, behind torch.cuda.memory_snapshot() and memory_viz: the heap and its history, each device's of one
// moment.
#pragma once
#include "history.h"
#include "samples.h"
#include "snapshot.h"

namespace pyalloc_bridge {

inline size_t active_bytes(const std::vector<SegmentInfo>& segments) {
  size_t bytes = 0;
  for (const SegmentInfo& one : segments) bytes += one.active_size;
  return bytes;
}

// Stacks of blocks that the history has none of, but that were sampled.
inline void add_sampled_stacks(std::vector<SegmentInfo>& segments) {
  for (SegmentInfo& segment : segments) {
    uint64_t address = segment.address;
    for (auto& block : segment.blocks) {
      if (block.allocated && !block.context_when_allocated) block.context_when_allocated = samples.context_of(address);
      address += block.size;
    }
  }
}

// The device's segments of one pool, (0, 0): of all. What its history is told of them is about all.
inline std::vector<SegmentInfo> told_segments(int device, Pool only, bool include_traces,
                                              std::vector<TraceEntry>& trace) {
  std::vector<SegmentInfo> segments;
  DeviceHistory& history = History::instance().device(device);
  std::lock_guard<std::mutex> lock(history.mutex());
  append_segments(device, {0, 0}, segments);
  history.reconcile(segments);
  if (include_traces) trace = history.entries();
  history.tell_snapshot(active_bytes(segments));
  if (only != Pool{0, 0})
    std::erase_if(segments, [&](const SegmentInfo& one) { return one.owner_private_pool_id != only; });
  return segments;
}

// include_traces: with what happened before this snapshot.
inline SnapshotInfo take_snapshot(Pool only, bool include_traces) {
  SnapshotInfo snapshot{};  // value-initialised: torch exports every field
  fill_settings(snapshot.config_metadata);
  const int devices = device_count.load();
  snapshot.device_traces.resize(static_cast<size_t>(devices));
  for (int device = 0; device < devices; ++device) {
    if (watches(kHistory | kTrackers)) {
      auto told = told_segments(device, only, include_traces, snapshot.device_traces[static_cast<size_t>(device)]);
      std::move(told.begin(), told.end(), std::back_inserter(snapshot.segments));
    } else {
      append_segments(device, only, snapshot.segments);
    }
  }
  if (watches(kSamples)) add_sampled_stacks(snapshot.segments);
  add_foreign_segments(snapshot.segments, only);
  if (!watches(kHistory) || !include_traces) return snapshot;
  snapshot.external_annotations = History::instance().stages.in_order();
  History::instance().set_unix_times(snapshot.device_traces, snapshot.external_annotations);
  return snapshot;
}

}  // namespace pyalloc_bridge
