// Who this process is to others on the machine: the name that its files in the shared folder begin with.
#pragma once
#include <cstdint>
#include <string>

namespace pyalloc {

struct ProcessIdentity {
  uint64_t pid = 0, pid_namespace = 0, start_time = 0;  // start time in clock ticks since boot
  // Of no two processes alike, also where containers share the folder, and pids come again.
  std::string file_name() const;
};
ProcessIdentity process_identity();
std::string command_line();  // words apart by spaces; empty where /proc is not there

}  // namespace pyalloc
