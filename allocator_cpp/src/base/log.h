// Messages on stderr for what a user must know and no return value can carry. At most kLogLines of them a process: a fault
// in a loop must not fill a disk.
#pragma once

namespace pyalloc {

constexpr int kLogLines = 32;

void log_line(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace pyalloc
