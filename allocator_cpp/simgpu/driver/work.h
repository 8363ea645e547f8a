// What a stream or a graph node can be asked to do, as data: checked when it runs, copied from a captured graph into each launch.
#pragma once
#include <memory>
#include <variant>
#include <vector>

#include "abi.h"

namespace simgpu {

struct Span {
  uint64_t address, bytes;
};

struct KernelWork {
  KernelNodeParams params = {};
};

// rows x width bytes, each side advancing by its pitch. A host side is the caller's memory, or bytes staged at the call.
struct CopyWork {
  uint64_t target = 0, source = 0;
  bool target_host = false, source_host = false;
  uint64_t width = 0, rows = 1, target_pitch = 0, source_pitch = 0;
  bool peer = false;  // a peer copy: each side is reached by its own device
  std::shared_ptr<std::vector<char>> staged;
};

struct FillWork {
  uint64_t target = 0;
  uint32_t value = 0;
  unsigned element = 1;                     // bytes: 1, 2 or 4
  uint64_t width = 0, rows = 1, pitch = 0;  // width in bytes
  bool target_host = false;
};

struct HostWork {
  HostFunction function = nullptr;
  StreamCallback callback = nullptr;
  uint64_t stream = 0;  // of the callback
  void* user_data = nullptr;
};

struct RecordWork {
  uint64_t event = 0;
  uint64_t record = 0;  // which of the event's records: a later one moves it
};

struct WaitWork {
  uint64_t event = 0;  // of a graph node; a stream's wait is in the operation's `after`
};

// A kernel of simgpu_launch: says what it touches.
struct SpanWork {
  std::vector<Span> reads, writes;
  uint8_t value = 0;
};

struct FreeWork {
  uint64_t address = 0;  // cuMemFreeAsync
};

struct EmptyWork {};

using Work =
    std::variant<EmptyWork, KernelWork, CopyWork, FillWork, HostWork, RecordWork, WaitWork, SpanWork, FreeWork>;

// The device addresses the work touches, for the check that memory in use is not unmapped.
void touched_spans(const Work& work, std::vector<Span>* out);

}  // namespace simgpu
