// torch.cuda.memory._record_memory_history and trace trackers: every device's history, its settings, and the two calls
// that the allocator makes for each block while either is on.
//
// One History exists, made when first asked for and never destroyed: blocks are freed until the process ends. While
// nothing of it is on, nothing here runs (watch.h). When recording is turned off, entries and stacks go.
#pragma once
#include <array>
#include <memory>
#include <string_view>

#include "device_history.h"
#include "snapshot.h"
#include "watch.h"

namespace pyalloc_bridge {

class History {
 public:
  static History& instance() {
    static auto* one = new History;
    return *one;
  }

  void record(bool enabled, c10::CachingDeviceAllocator::CreateContextFn gather, size_t most, RecordContext when,
              bool clear, const std::vector<std::string>& skip) {
    TORCH_CHECK(when == RecordContext::NEVER || gather != nullptr,
                "memory history with stacks needs a function for them");
    uint32_t skipped = 0;
    for (const std::string& name : skip) skipped |= 1u << action_named(name);
    std::lock_guard<std::mutex> changing(changing_);
    if (enabled) listen(true);
    {
      const Locked all(*this);
      begin_unless(settings_.recording || !settings_.trackers.empty() || !enabled);
      settings_.recording = enabled;
      settings_.gather = enabled ? gather : nullptr;
      settings_.when = enabled ? when : RecordContext::NEVER;
      settings_.skipped = skipped;
      for (auto& device : devices_) {
        device->keep(most, !enabled || clear);
        if (!enabled && settings_.trackers.empty()) device->forget();
      }
      watch(kHistory, enabled);
    }
    stages.keep(most, !enabled || clear);
    if (!enabled && settings_.trackers.empty()) listen(false);
  }

  void attach(AllocatorTraceTracker tracker) {
    std::lock_guard<std::mutex> changing(changing_);
    listen(true);
    const Locked all(*this);
    begin_unless(settings_.recording || !settings_.trackers.empty());
    settings_.trackers.push_back(std::move(tracker));
    watch(kTrackers, true);
  }

  bool recording() const { return watches(kHistory); }
  Context context(RecordContext level) const { return settings_.context(level); }
  DeviceHistory& device(int index) { return *devices_.at(static_cast<size_t>(index)); }
  // From the clock of the entries to microseconds since 1970.
  void set_unix_times(std::vector<std::vector<TraceEntry>>& traces, std::vector<AnnotationEntry>& annotations) {
    const auto unix_ns = clock_.makeConverter();
    auto convert = [&](auto& entries) {
      for (auto& entry : entries) entry.time_.t_ = unix_ns(entry.time_.approx_t_) / 1000;
    };
    for (auto& trace : traces) convert(trace);
    convert(annotations);
  }

  Stages stages;

 private:
  History() {
    for (size_t i = 0; i < devices_.size(); ++i)
      devices_[i] = std::make_unique<DeviceHistory>(settings_, static_cast<c10::DeviceIndex>(i));
  }

  struct Locked {
    explicit Locked(History& history) : history(history) {
      for (auto& device : history.devices_) device->mutex().lock();
    }
    ~Locked() {
      for (auto& device : history.devices_) device->mutex().unlock();
    }
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;
    History& history;
  };

  void begin_unless(bool running) {
    for (int device = 0; !running && device < device_count.load(); ++device) {
      std::vector<SegmentInfo> segments;
      append_segments(device, {0, 0}, segments);
      devices_[static_cast<size_t>(device)]->begin(segments);
    }
  }

  // Called with no device's lock held: to stop waits for who is being told.
  void listen(bool on) {
    if (on == listening_) return;
    check(on ? core->add_mapping_observer(&on_mapping, this, PYALLOC_MAPPED | PYALLOC_UNMAPPING)
             : core->remove_mapping_observer(&on_mapping, this));
    listening_ = on;
  }
  static void on_mapping(void* self, const pyalloc_mapping_event* event) {
    try {
      auto* history = static_cast<History*>(self);
      DeviceHistory& device = history->device(event->device);
      const auto begin = reinterpret_cast<uint64_t>(event->address);
      if (event->kind == PYALLOC_MAPPED) {
        device.mapped(begin, begin + event->bytes, history->context(RecordContext::STATE));
      } else {
        device.unmapped(begin, begin + event->bytes, history->context(RecordContext::ALL));
      }
    } catch (const std::exception& error) {
      log_line("recording a mapping failed", error.what());
    }
  }

  // torch's names of what can be left out.
  static int action_named(const std::string& name) {
    static constexpr std::array<std::string_view, 9> kNames = {"alloc",         "free_requested", "free_completed",
                                                               "segment_alloc", "segment_free",   "segment_map",
                                                               "segment_unmap", "snapshot",       "oom"};
    static_assert(TraceEntry::ALLOC == 0 && TraceEntry::FREE_REQUESTED == 1 && TraceEntry::FREE_COMPLETED == 2 &&
                  TraceEntry::SEGMENT_ALLOC == 3 && TraceEntry::SEGMENT_FREE == 4 && TraceEntry::SEGMENT_MAP == 5 &&
                  TraceEntry::SEGMENT_UNMAP == 6 && TraceEntry::SNAPSHOT == 7 && TraceEntry::OOM == 8);
    for (size_t i = 0; i < kNames.size(); ++i)
      if (kNames[i] == name) return static_cast<int>(i);
    if (const std::optional<TraceEntry::Action> annotate = annotate_action<TraceEntry>();
        name == "annotate" && annotate)
      return *annotate;
    TORCH_CHECK(false, "Unknown TraceEntry action: ", name);
  }

  c10::ApproximateClockToUnixTimeConverter clock_;
  std::mutex changing_;  // one change of settings at a time; before every device's lock
  bool listening_ = false;
  HistorySettings settings_;
  std::array<std::unique_ptr<DeviceHistory>, C10_COMPILE_TIME_MAX_GPUS> devices_;
};

}  // namespace pyalloc_bridge
