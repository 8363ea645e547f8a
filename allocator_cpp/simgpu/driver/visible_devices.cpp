#include "visible_devices.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "device_identity.h"

namespace simgpu {
namespace {

int find_entry(const std::string& entry, int devices) {
  if (entry.rfind("GPU-", 0) == 0) {
    for (int device = 0; device < devices; ++device) {
      char uuid[kUuidTextBytes];
      write_uuid_text(device, uuid);
      if (std::strncmp(uuid, entry.c_str(), entry.size()) == 0) return device;
    }
    return -1;
  }
  char* end = nullptr;
  long number = std::strtol(entry.c_str(), &end, 10);
  return end != entry.c_str() && *end == '\0' && number >= 0 && number < devices ? static_cast<int>(number) : -1;
}

}  // namespace

std::vector<int> visible_devices(const char* text, int devices) {
  std::vector<int> visible;
  if (text == nullptr) {
    for (int device = 0; device < devices; ++device) visible.push_back(device);
    return visible;
  }
  std::string rest = text;
  while (!rest.empty()) {
    size_t comma = rest.find(',');
    std::string entry = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    entry.erase(0, entry.find_first_not_of(" \t"));
    entry.erase(entry.find_last_not_of(" \t") + 1);
    int device = find_entry(entry, devices);
    if (device < 0) break;
    if (std::find(visible.begin(), visible.end(), device) != visible.end())
      return {};  // named twice: none, as NVIDIA's
    visible.push_back(device);
  }
  return visible;
}

}  // namespace simgpu
