#include "violations.h"

#include <cstdarg>
#include <cstdio>

namespace simgpu {

void Violations::add(const char* format, ...) {
  constexpr size_t kKept = 10000;
  ++count_;
  if (texts_.size() >= kKept) return;
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  texts_.emplace_back(text);
}

}  // namespace simgpu
