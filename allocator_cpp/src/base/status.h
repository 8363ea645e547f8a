// How the core reports failure: the ABI's status code, and a text kept per thread.
// Nothing in the core throws. fail() is the only way to make a failing status, so every failure has its text.
#pragma once
#include <cstddef>

#include "pyalloc/pyalloc.h"

namespace pyalloc {

using Status = pyalloc_status;
constexpr Status kOk = PYALLOC_OK;

// Stores the formatted text, one line but for out-of-memory, as this thread's last error and returns `status`.
Status fail(Status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// This thread's last error; empty before the first.
const char* last_error();

// Copies `text` as an API returns it: returns the length it needs without the final 0, writes at most `capacity` bytes
// with one.
size_t copy_text(const char* text, size_t length, char* buffer, size_t capacity);

}  // namespace pyalloc
