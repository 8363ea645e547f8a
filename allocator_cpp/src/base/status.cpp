#include "base/status.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace pyalloc {
namespace {
constexpr size_t kErrorBytes = 4096;
thread_local char error_text[kErrorBytes];
}  // namespace

Status fail(Status status, const char* format, ...) {
  char text[kErrorBytes];  // formatted aside: an argument may be the old error text
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::memcpy(error_text, text, sizeof text);
  return status;
}

const char* last_error() { return error_text; }

size_t copy_text(const char* text, size_t length, char* buffer, size_t capacity) {
  if (buffer != nullptr && capacity > 0) {
    size_t copied = length < capacity ? length : capacity - 1;
    std::memcpy(buffer, text, copied);
    buffer[copied] = 0;
  }
  return length;
}

}  // namespace pyalloc
