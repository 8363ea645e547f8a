// For tests of memory shared between two processes of one simulation: a Producer is this program run again, as the process that shares
// its memory, and obeys in messages. What a container forbids is forbidden here by seccomp.
#pragma once
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

#include "gpu.h"

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

namespace test {

using Handle = pyalloc_ipc_handle;

// From now on the calls fail with EPERM in this process, as in a container that forbids them.
inline void forbid(const std::vector<int>& calls) {
  std::vector<sock_filter> program = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (int call : calls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  CHECK_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

inline Handle share(const void* address) {
  Handle handle{};
  handle.size = sizeof handle;
  if (pyalloc_ipc_share(address, &handle) != PYALLOC_OK) std::fprintf(stderr, "share: %s\n", pyalloc_last_error());
  return handle;
}

inline void* open_shared(const Handle& handle, int device = 0) {
  void* base = nullptr;
  if (pyalloc_ipc_open(device, handle.bytes, sizeof handle.bytes, &base) != PYALLOC_OK) return nullptr;
  return static_cast<char*>(base) + handle.offset;
}

inline pyalloc_status close_shared(void* address, const Handle& handle) {
  return pyalloc_ipc_close(static_cast<char*>(address) - handle.offset);
}

inline bool same_bytes(const Handle& one, const Handle& other) {
  return std::memcmp(one.bytes, other.bytes, sizeof one.bytes) == 0;
}

// What the other process is told to do, and answers.
struct Order {
  char what[16];
  uint64_t bytes;
  uint64_t value;
};
struct Reply {
  uint64_t pointer;
  int64_t number;
  Handle handle;
};

// Another process of the same simulation, with pyalloc, that does as it is told.
class Producer {
 public:
  explicit Producer(const std::string& simulation, const std::string& forbidden = "") {
    CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_), 0);
    std::fflush(nullptr);
    process_ = fork();
    if (process_ != 0) {
      close(ends_[1]);
      return;
    }
    dup2(ends_[1], 100);
    setenv("PYALLOC_TEST_CHILD", forbidden.empty() ? "nothing" : forbidden.c_str(), 1);
    setenv("PYALLOC_SIMGPU", simulation.c_str(), 1);
    execl("/proc/self/exe", "producer", "a_process_that_shares", nullptr);
    _exit(99);
  }
  ~Producer() { CHECK_EQ(end(), 0); }

  Reply tell(const char* what, uint64_t bytes = 0, uint64_t value = 0) {
    Order order{};
    std::snprintf(order.what, sizeof order.what, "%s", what);
    order.bytes = bytes;
    order.value = value;
    Reply reply{};
    CHECK_EQ(send(ends_[0], &order, sizeof order, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof order));
    CHECK_EQ(recv(ends_[0], &reply, sizeof reply, 0), static_cast<ssize_t>(sizeof reply));
    return reply;
  }
  // A block of `bytes` that holds `value`.
  Handle shared(uint64_t bytes, uint8_t value) {
    Reply reply = tell("allocate", bytes, value);
    return tell("share", reply.pointer).handle;
  }
  // Its exit code, or 100 and the signal that ended it.
  int end(int signal = 0) {
    if (process_ < 0) return 0;
    if (signal != 0) kill(process_, signal);
    close(ends_[0]);
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
  }
  pid_t process() const { return process_; }

 private:
  int ends_[2];
  pid_t process_ = -1;
};

inline Reply obey(const Order& order) {
  Reply reply{};
  std::string what = order.what;
  auto* pointer = reinterpret_cast<void*>(order.bytes);
  if (what == "allocate") {
    void* block = allocate(order.bytes);
    CHECK(block != nullptr);
    CHECK(fill(nullptr, block, order.bytes, static_cast<uint8_t>(order.value)));
    cuCtxSynchronize();
    reply.pointer = address(block);
  } else if (what == "share") {
    reply.handle = share(pointer);
  } else if (what == "free") {
    CHECK_EQ(deallocate(pointer), PYALLOC_OK);
  } else if (what == "trim") {
    reply.number = static_cast<int64_t>(trim());
  } else if (what == "exported") {
    reply.number = stats().exported_bytes;
  } else if (what == "byte") {
    uint8_t byte = 0;
    CHECK_EQ(simgpu_read(order.bytes, &byte, 1), 0);
    reply.number = byte;
  } else if (what == "files") {
    rlimit limit{order.bytes, order.bytes};
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  } else if (what == "fail") {  // every export from now on
    CHECK_EQ(simgpu_fail("cuMemExportToShareableHandle", 1, 0, pyalloc::cuda::kOutOfMemory), 0);
  }
  CHECK(valid());
  return reply;
}

// One simulation of this process and its producers.
class Session {
 public:
  explicit Session(const std::string& memory = "256MiB", int devices = 1, const std::string& configuration = "")
      : simulation("memory:" + memory + ",devices:" + std::to_string(devices) + ",session:ipc-test-" +
                   std::to_string(getpid())),
        gpu(simulation, configuration, devices) {}
  ~Session() {
    gpu.end();
    simgpu_reset("memory:2MiB");  // leaves the session
  }
  const std::string simulation;
  Gpu gpu;
};

inline bool in_producer() { return std::getenv("PYALLOC_TEST_CHILD") != nullptr; }

}  // namespace test

// Not a test by itself: what Producer runs.
TEST(a_process_that_shares) {
  using namespace test;
  if (!in_producer()) return;
  std::string forbidden = std::getenv("PYALLOC_TEST_CHILD");
  if (forbidden == "sendmsg") forbid({SYS_sendmsg});
  if (forbidden == "bind") forbid({SYS_bind});
  if (forbidden == "sockets") forbid({SYS_socket, SYS_socketpair});
  CHECK_EQ(pyalloc_configure("maintenance:off,lora_reserve:0", "test"), PYALLOC_OK);
  CHECK_EQ(pyalloc_init(1), PYALLOC_OK);
  Gpu::use(0);
  Order order;
  while (recv(100, &order, sizeof order, 0) == static_cast<ssize_t>(sizeof order)) {
    Reply reply = obey(order);
    CHECK_EQ(send(100, &reply, sizeof reply, 0), static_cast<ssize_t>(sizeof reply));
  }
  CHECK_EQ(simgpu_violations(), int64_t{0});
}
