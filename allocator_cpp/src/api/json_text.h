// Text that leaves through the C ABI.
#pragma once
#include <string>

#include "base/status.h"

namespace pyalloc {

inline size_t copy(const std::string& text, char* buffer, size_t capacity) {
  return copy_text(text.data(), text.size(), buffer, capacity);
}

inline std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace pyalloc
