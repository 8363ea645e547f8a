#include "base/log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace pyalloc {

void log_line(const char* format, ...) {
  static std::atomic<int> written{0};
  int line = written.fetch_add(1, std::memory_order_relaxed);
  if (line >= kLogLines) return;
  char text[4096];  // an error's whole text (status.cpp)
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "pyalloc: %s%s\n", text, line + 1 == kLogLines ? " (further lines are not shown)" : "");
}

}  // namespace pyalloc
