// The simulation's configuration, parsed from "memory:80GiB,devices:1,streams:immediate,seed:1,oracle:off,vmm:on,
// session:NAME"
// (environment variable PYALLOC_SIMGPU, or simgpu_reset). Keys not named keep their default.
#pragma once
#include <cstdint>
#include <string>

namespace simgpu {

constexpr int kMaxDevices = 8;
constexpr uint64_t kGranularity = 2ull << 20;  // of device memory: minimum and recommended

enum class StreamMode { kImmediate, kDeferred, kTimed };

struct Configuration {
  uint64_t memory = 80ull << 30;  // bytes per device
  int devices = 1;
  StreamMode streams = StreamMode::kImmediate;
  uint64_t seed = 1;
  bool oracle = false;
  bool vmm = true;      // whether the devices say they have virtual memory management
  std::string session;  // empty: this process alone
};

// False when text is malformed; error then says which key, its value and what was expected.
bool parse_configuration(const std::string& text, Configuration* out, std::string* error);
bool parse_stream_mode(const std::string& text, StreamMode* out);

}  // namespace simgpu
