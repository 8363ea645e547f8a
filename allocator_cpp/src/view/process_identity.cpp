#include "view/process_identity.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace pyalloc {
namespace {

constexpr int kStartTimeAfterName = 20;  // it is field 22 of /proc/self/stat, the program's name the second

std::string read_all(const char* path) {
  std::string text;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  char part[1024];
  for (ssize_t got; (got = read(file, part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(got));
  close(file);
  return text;
}

}  // namespace

std::string ProcessIdentity::file_name() const {
  return std::to_string(pid_namespace) + "-" + std::to_string(pid) + "-" + std::to_string(start_time);
}

ProcessIdentity process_identity() {
  ProcessIdentity one;
  one.pid = static_cast<uint64_t>(getpid());
  char link[64] = "";
  if (readlink("/proc/self/ns/pid", link, sizeof link - 1) > 0)  // "pid:[4026531836]"
    if (const char* number = std::strchr(link, '[')) one.pid_namespace = std::strtoull(number + 1, nullptr, 10);
  std::string stat = read_all("/proc/self/stat");
  size_t at = stat.rfind(')');  // the name may hold anything
  for (int field = 0; field < kStartTimeAfterName && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  if (at != std::string::npos) one.start_time = std::strtoull(stat.c_str() + at, nullptr, 10);
  return one;
}

std::string command_line() {
  std::string line = read_all("/proc/self/cmdline");
  while (!line.empty() && line.back() == '\0') line.pop_back();
  std::replace(line.begin(), line.end(), '\0', ' ');
  return line;
}

}  // namespace pyalloc
