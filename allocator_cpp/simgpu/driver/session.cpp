#include "session.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

namespace simgpu {
namespace {

constexpr uint32_t kMagic = 0x51699002;
constexpr int kProcesses = 128;
constexpr int kMemories = 4096;
constexpr int kEvents = 4096;
constexpr char kPrefix[] = "pyalloc-simgpu-";

// Field 22 of /proc/PID/stat: tells a process from a later one with the same number. 0 when there is no such process.
uint64_t start_time(int pid) {
  char path[64], text[1024];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t n = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (n <= 0) return 0;
  text[n] = '\0';
  const char* at = std::strrchr(text, ')');
  if (at == nullptr) return 0;
  if (at[1] == ' ' && (at[2] == 'Z' || at[2] == 'X')) return 0;  // a zombie holds nothing
  unsigned long long start = 0;
  int field = 2;
  for (++at; *at != '\0' && field < 22; ++at) {
    if (*at == ' ') ++field;
  }
  std::sscanf(at, "%llu", &start);
  return start;
}

bool alive(int pid, uint64_t start) {
  uint64_t now = pid > 0 ? start_time(pid) : 0;
  return now != 0 && now == start;
}

}  // namespace

struct SharedState {
  std::atomic<uint32_t> magic;
  std::atomic<uint64_t> capacity[kMaxDevices];
  std::atomic<uint64_t> limit[kMaxDevices];  // 0: none
  std::atomic<bool> limit_told[kMaxDevices];
  std::atomic<uint64_t> used[kMaxDevices];
  struct Process {
    std::atomic<int> pid;
    uint64_t start;
    std::atomic<uint64_t> used[kMaxDevices];
  } processes[kProcesses];
  struct Memory {
    uint64_t inode, bytes;
    int device;
    uint64_t holders[kProcesses / 64];
  } memories[kMemories];
  struct SharedEvent {
    std::atomic<int> holders;
    std::atomic<uint64_t> recorded, completed;
  } events[kEvents];
};

class Session::FileLock {
 public:
  explicit FileLock(int fd) : fd_(fd) {
    while (fd_ >= 0 && flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~FileLock() {
    if (fd_ >= 0) flock(fd_, LOCK_UN);
  }

 private:
  int fd_;
};

bool Session::join(const Configuration& configuration, std::string* error) {
  pid_ = getpid();
  if (configuration.session.empty()) {
    void* memory = mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return *error = "simgpu: no memory for the session's state", false;
    state_ = static_cast<SharedState*>(memory);
  } else {
    path_ = std::string("/dev/shm/") + kPrefix + configuration.session;
    for (;;) {
      fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      if (fd_ < 0) return *error = "simgpu: cannot open " + path_ + ": " + std::strerror(errno), false;
      while (flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
      }
      struct stat status;
      if (fstat(fd_, &status) == 0 && status.st_nlink > 0) break;
      close(fd_);  // removed by the last process of an older session of this name: make a new one
    }
    void* memory = MAP_FAILED;
    if (ftruncate(fd_, sizeof(SharedState)) == 0) {
      memory = mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    }
    if (memory == MAP_FAILED) {
      *error = "simgpu: cannot use " + path_ + ": " + std::strerror(errno);
      close(fd_);
      fd_ = -1;
      return false;
    }
    state_ = static_cast<SharedState*>(memory);
  }
  bool first = state_->magic.load() != kMagic;
  if (!first) {
    reclaim_dead();
    first = !any_process_lives();
  }
  if (first) {
    std::memset(static_cast<void*>(state_), 0, sizeof(SharedState));
    for (int i = 0; i < kMaxDevices; ++i) state_->capacity[i] = configuration.memory;
    state_->magic = kMagic;
  }
  slot_ = -1;
  for (int i = 0; i < kProcesses && slot_ < 0; ++i) {
    if (state_->processes[i].pid == 0) slot_ = i;
  }
  if (slot_ >= 0) {
    state_->processes[slot_].start = start_time(pid_);
    state_->processes[slot_].pid = pid_;
  }
  if (fd_ >= 0) flock(fd_, LOCK_UN);
  if (slot_ < 0) {
    *error = "simgpu: session " + configuration.session + " already has 128 processes";
    munmap(state_, sizeof(SharedState));
    state_ = nullptr;
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
    return false;
  }
  std::memset(holds_, 0, sizeof(holds_));
  if (first && fd_ >= 0) remove_dead_sessions();
  return true;
}

// Files of sessions whose processes were all killed before they could remove them.
void Session::remove_dead_sessions() {
  DIR* folder = opendir("/dev/shm");
  if (folder == nullptr) return;
  while (dirent* entry = readdir(folder)) {
    if (std::strncmp(entry->d_name, kPrefix, sizeof(kPrefix) - 1) != 0) continue;
    std::string path = std::string("/dev/shm/") + entry->d_name;
    int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct stat status;
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &status) == 0 && status.st_nlink > 0 &&
        status.st_size == sizeof(SharedState)) {
      void* memory = mmap(nullptr, sizeof(SharedState), PROT_READ, MAP_SHARED, fd, 0);
      if (memory != MAP_FAILED) {
        const auto* state = static_cast<const SharedState*>(memory);
        bool lives = state->magic != kMagic;  // of another version: not ours to judge
        for (const SharedState::Process& process : state->processes) lives = lives || alive(process.pid, process.start);
        if (!lives) unlink(path.c_str());
        munmap(memory, sizeof(SharedState));
      }
    }
    close(fd);
  }
  closedir(folder);
}

void Session::leave() {
  if (state_ == nullptr) return;
  if (pid_ == getpid()) {
    FileLock lock(fd_);
    state_->processes[slot_].pid = -1;  // reclaimed as a dead process
    reclaim_dead();
    if (fd_ >= 0 && !any_process_lives()) unlink(path_.c_str());
  }
  abandon();
}

void Session::abandon() {
  if (state_ == nullptr) return;
  munmap(state_, sizeof(SharedState));
  state_ = nullptr;
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  slot_ = -1;
}

bool Session::any_process_lives() const {
  for (const SharedState::Process& process : state_->processes) {
    if (process.pid != 0) return true;
  }
  return false;
}

void Session::reclaim_dead() {
  for (int i = 0; i < kProcesses; ++i) {
    SharedState::Process& process = state_->processes[i];
    int pid = process.pid;
    if (pid == 0 || alive(pid, process.start)) continue;
    for (int device = 0; device < kMaxDevices; ++device) state_->used[device] -= process.used[device].exchange(0);
    for (SharedState::Memory& memory : state_->memories) {
      uint64_t bit = 1ull << (i % 64);
      if (memory.bytes == 0 || (memory.holders[i / 64] & bit) == 0) continue;
      memory.holders[i / 64] &= ~bit;
      if ((memory.holders[0] | memory.holders[1]) == 0) {
        state_->used[memory.device] -= memory.bytes;
        memory.bytes = 0;
      }
    }
    process.pid = 0;
  }
}

bool Session::take(int device, uint64_t bytes) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    uint64_t before = state_->used[device].fetch_add(bytes);
    if (before + bytes <= allowed(device) && before + bytes >= before) {
      state_->processes[slot_].used[device] += bytes;
      return true;
    }
    state_->used[device].fetch_sub(bytes);
    if (fd_ < 0) break;
    FileLock lock(fd_);
    reclaim_dead();
  }
  return false;
}

void Session::give(int device, uint64_t bytes) {
  state_->processes[slot_].used[device] -= bytes;
  state_->used[device] -= bytes;
}

uint64_t Session::used(int device) {
  if (state_ == nullptr) return 0;
  if (fd_ >= 0) {
    FileLock lock(fd_);
    reclaim_dead();
  }
  return state_->used[device];
}

uint64_t Session::capacity(int device) const { return state_->capacity[device]; }
void Session::set_capacity(int device, uint64_t bytes) { state_->capacity[device] = bytes; }
uint64_t Session::allowed(int device) const {
  uint64_t limit = state_->limit[device];
  return limit != 0 ? std::min(limit, capacity(device)) : capacity(device);
}
uint64_t Session::told(int device) const { return state_->limit_told[device] ? allowed(device) : capacity(device); }
void Session::set_limit(int device, uint64_t bytes, bool told) {
  state_->limit[device] = bytes;
  state_->limit_told[device] = told;
}

size_t Session::processes(int device, int* pids, uint64_t* bytes, size_t capacity) {
  FileLock lock(fd_);
  reclaim_dead();
  size_t count = 0;
  for (int i = 0; i < kProcesses; ++i) {
    uint64_t held = state_->processes[i].used[device];
    for (const SharedState::Memory& memory : state_->memories) {
      bool holds = (memory.holders[i / 64] >> (i % 64) & 1) != 0;
      if (memory.bytes != 0 && memory.device == device && holds) held += memory.bytes;
    }
    if (held == 0) continue;
    if (count < capacity) {
      pids[count] = state_->processes[i].pid;
      bytes[count] = held;
    }
    ++count;
  }
  return count;
}

int Session::share(uint64_t inode, int device, uint64_t bytes) {
  FileLock lock(fd_);
  for (int i = 0; i < kMemories; ++i) {
    SharedState::Memory& memory = state_->memories[i];
    if (memory.bytes != 0) continue;
    memory.inode = inode;
    memory.device = device;
    memory.holders[0] = memory.holders[1] = 0;
    memory.holders[slot_ / 64] = 1ull << (slot_ % 64);
    memory.bytes = bytes;
    state_->processes[slot_].used[device] -= bytes;
    holds_[i] = 1;
    return i;
  }
  return -1;
}

int Session::adopt(uint64_t inode, int device, uint64_t bytes) {
  {
    FileLock lock(fd_);
    for (int i = 0; i < kMemories; ++i) {
      SharedState::Memory& memory = state_->memories[i];
      if (memory.bytes == 0 || memory.inode != inode) continue;
      memory.holders[slot_ / 64] |= 1ull << (slot_ % 64);
      ++holds_[i];
      return i;
    }
  }
  if (!take(device, bytes)) return -1;
  int entry = share(inode, device, bytes);
  if (entry < 0) give(device, bytes);
  return entry;
}

void Session::unshare(int entry) {
  FileLock lock(fd_);
  if (--holds_[entry] > 0) return;
  SharedState::Memory& memory = state_->memories[entry];
  memory.holders[slot_ / 64] &= ~(1ull << (slot_ % 64));
  if ((memory.holders[0] | memory.holders[1]) != 0) return;
  state_->used[memory.device] -= memory.bytes;
  memory.bytes = 0;
}

int Session::event_create() {
  FileLock lock(fd_);
  for (int i = 0; i < kEvents; ++i) {
    if (state_->events[i].holders != 0) continue;
    state_->events[i].holders = 1;
    state_->events[i].recorded = state_->events[i].completed = 0;
    return i;
  }
  return -1;
}

void Session::event_retain(int slot) { ++state_->events[slot].holders; }
void Session::event_release(int slot) { --state_->events[slot].holders; }
std::atomic<uint64_t>* Session::event_recorded(int slot) {
  return slot >= 0 && slot < kEvents ? &state_->events[slot].recorded : nullptr;
}
std::atomic<uint64_t>* Session::event_completed(int slot) {
  return slot >= 0 && slot < kEvents ? &state_->events[slot].completed : nullptr;
}

}  // namespace simgpu
