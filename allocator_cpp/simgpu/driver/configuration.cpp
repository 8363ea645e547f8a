#include "configuration.h"

#include <cctype>
#include <cmath>
#include <cstdlib>

namespace simgpu {
namespace {

bool parse_bytes(const std::string& text, uint64_t* out) {
  char* end = nullptr;
  double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !(number > 0) || !std::isfinite(number)) return false;
  std::string unit = end;
  double scale = 0;
  if (unit.empty() || unit == "B") scale = 1;
  if (unit == "KiB" || unit == "K") scale = 1024.0;
  if (unit == "MiB" || unit == "M") scale = 1024.0 * 1024;
  if (unit == "GiB" || unit == "G") scale = 1024.0 * 1024 * 1024;
  if (unit == "TiB" || unit == "T") scale = 1024.0 * 1024 * 1024 * 1024;
  if (unit == "KB") scale = 1e3;
  if (unit == "MB") scale = 1e6;
  if (unit == "GB") scale = 1e9;
  double bytes = number * scale;
  if (bytes < static_cast<double>(kGranularity) || bytes > 9e15) return false;
  *out = static_cast<uint64_t>(bytes) / kGranularity * kGranularity;
  return true;
}

bool parse_integer(const std::string& text, uint64_t low, uint64_t high, uint64_t* out) {
  if (text.empty() || !std::isdigit(static_cast<unsigned char>(text[0]))) return false;
  char* end = nullptr;
  unsigned long long number = std::strtoull(text.c_str(), &end, 10);
  if (*end != '\0' || number < low || number > high) return false;
  *out = number;
  return true;
}

bool parse_switch(const std::string& text, bool* out) {
  if (text == "on" || text == "True" || text == "true" || text == "1") return *out = true, true;
  if (text == "off" || text == "False" || text == "false" || text == "0") return *out = false, true;
  return false;
}

bool valid_session(const std::string& text) {
  if (text.empty() || text.size() > 64) return false;
  for (char c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.') return false;
  }
  return true;
}

// Sets one key; returns what was expected when the value is wrong, "key" when the key is unknown.
const char* set_value(Configuration* out, const std::string& key, const std::string& value) {
  uint64_t number = 0;
  if (key == "memory") return parse_bytes(value, &out->memory) ? nullptr : "a size of at least 2MiB such as 80GiB";
  if (key == "devices") {
    if (!parse_integer(value, 1, kMaxDevices, &number)) return "1 to 8";
    out->devices = static_cast<int>(number);
    return nullptr;
  }
  if (key == "streams") return parse_stream_mode(value, &out->streams) ? nullptr : "immediate, deferred or timed";
  if (key == "seed") return parse_integer(value, 0, UINT64_MAX, &out->seed) ? nullptr : "a whole number";
  if (key == "oracle") return parse_switch(value, &out->oracle) ? nullptr : "on or off";
  if (key == "vmm") return parse_switch(value, &out->vmm) ? nullptr : "on or off";
  if (key == "session") {
    if (!valid_session(value)) return "1 to 64 letters, digits, '-', '_' or '.'";
    out->session = value;
    return nullptr;
  }
  return "key";
}

}  // namespace

bool parse_stream_mode(const std::string& text, StreamMode* out) {
  if (text == "immediate") return *out = StreamMode::kImmediate, true;
  if (text == "deferred") return *out = StreamMode::kDeferred, true;
  if (text == "timed") return *out = StreamMode::kTimed, true;
  return false;
}

bool parse_configuration(const std::string& text, Configuration* out, std::string* error) {
  Configuration parsed;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = text.find(',', begin);
    if (end == std::string::npos) end = text.size();
    std::string pair = text.substr(begin, end - begin);
    begin = end + 1;
    if (pair.empty()) continue;
    size_t colon = pair.find(':');
    std::string key = pair.substr(0, colon);
    std::string value = colon == std::string::npos ? "" : pair.substr(colon + 1);
    const char* expected = set_value(&parsed, key, value);
    if (expected == nullptr) continue;
    if (std::string(expected) == "key") {
      *error =
          "PYALLOC_SIMGPU: unknown key '" + key + "'; expected memory, devices, streams, seed, oracle, vmm or session";
    } else {
      *error = "PYALLOC_SIMGPU: " + key + ":" + value + " is not valid; expected " + expected;
    }
    return false;
  }
  *out = parsed;
  return true;
}

}  // namespace simgpu
