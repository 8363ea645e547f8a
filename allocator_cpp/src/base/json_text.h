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
    if (static_cast<unsigned char>(c) < ' ') {
      constexpr const char* kHex = "0123456789abcdef";
      out += std::string("\\u00") + kHex[c >> 4] + kHex[c & 15];
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

// One more row of a table of figures (*.def), after a comma.
inline void add_field(std::string& rows, const char* name, const char* unit, const char* help) {
  rows += std::string(rows.empty() ? "" : ",\n ") + "{\"name\": " + quoted(name) + ", \"unit\": " + quoted(unit) +
          ", \"help\": " + quoted(help) + "}";
}

}  // namespace pyalloc
