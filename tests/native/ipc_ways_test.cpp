// Memory shared where a container forbids a way from one process to the other: every way that is left works, and where none is, the error
// says what to allow.
#include <functional>
#include <string>
#include <vector>

#include "producer.h"

using namespace test;

namespace {

// Runs `body` in a process of its own where the calls are forbidden.
void where_forbidden(const std::vector<int>& calls, const std::string& simulation, const std::function<void()>& body) {
  std::fflush(nullptr);
  pid_t child = fork();
  if (child == 0) {
    int before = failures();
    simgpu_reset((simulation).c_str());
    forbid(calls);
    CHECK_EQ(pyalloc_configure("maintenance:off,lora_reserve:0", "test"), PYALLOC_OK);
    CHECK_EQ(pyalloc_init(1), PYALLOC_OK);
    Gpu::use(0);
    body();
    CHECK_EQ(simgpu_violations(), int64_t{0});
    std::fflush(nullptr);
    _exit(failures() == before ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace

TEST(every_way_that_is_left_works) {
  simgpu_reset("memory:2MiB");
  std::string simulation = "memory:256MiB,session:ipc-ways-" + std::to_string(getpid());
  struct Case {
    const char* producer;
    std::vector<int> receiver;
  };
  for (const Case& one : std::vector<Case>{{"", {SYS_connect}},         // through the door
                                           {"bind", {}},                // no socket, only the door
                                           {"sendmsg", {}},             // descriptors by number
                                           {"", {SYS_pidfd_getfd}}}) {  // as in most containers
    Producer producer(simulation, one.producer);
    Handle small = producer.shared(1000, 1), large = producer.shared(100 * kMiB, 2);
    where_forbidden(one.receiver, simulation, [&] {
      void *first = open_shared(small), *second = open_shared(large);
      if (first == nullptr || second == nullptr) std::fprintf(stderr, "refused: %s\n", pyalloc_last_error());
      CHECK(first != nullptr && holds(first, 1000, 1));
      CHECK(second != nullptr && holds(second, 100 * kMiB, 2));
      CHECK_EQ(close_shared(first, small), PYALLOC_OK);
      CHECK_EQ(close_shared(second, large), PYALLOC_OK);
    });
  }
}

TEST(where_no_way_is_left_the_error_says_what_to_do) {
  simgpu_reset("memory:2MiB");
  std::string simulation = "memory:256MiB,session:ipc-none-" + std::to_string(getpid());
  {
    Producer producer(simulation);
    Handle handle = producer.shared(1000, 1);
    where_forbidden({SYS_connect, SYS_pidfd_getfd}, simulation, [&] {
      CHECK(open_shared(handle) == nullptr);
      CHECK(std::strstr(pyalloc_last_error(), "cannot be reached") != nullptr);
      CHECK(std::strstr(pyalloc_last_error(), "SYS_PTRACE") != nullptr);
      void* block = allocate(3 * kMiB);  // all else works
      CHECK(block != nullptr);
      CHECK_EQ(deallocate(block), PYALLOC_OK);
    });
  }
  {
    Producer producer(simulation, "sendmsg");
    Handle handle = producer.shared(1000, 1);
    where_forbidden({SYS_pidfd_getfd}, simulation, [&] {
      CHECK(open_shared(handle) == nullptr);
      CHECK(std::strstr(pyalloc_last_error(), "may not be sent over a socket") != nullptr);
    });
  }
  where_forbidden({SYS_socket, SYS_socketpair}, simulation, [&] {
    void* block = allocate(1000);
    Handle handle{};
    handle.size = sizeof handle;
    CHECK_EQ(pyalloc_ipc_share(block, &handle), PYALLOC_DRIVER_ERROR);
    CHECK(std::strstr(pyalloc_last_error(), "AF_UNIX") != nullptr);
    CHECK_EQ(deallocate(block), PYALLOC_OK);
  });
}
