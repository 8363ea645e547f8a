// Sharing memory with what is no handle, damaged handles, driver calls that fail one after the other, and receivers that fall silent.
#include <ctime>
#include <string>
#include <vector>

#include "producer.h"

using namespace test;
namespace cuda = pyalloc::cuda;

TEST(what_is_no_handle_of_ours_is_refused) {
  Session session;
  void* base = nullptr;
  std::string native(
      "\x01"
      "c" +
      std::string(64, 'x'));
  CHECK_EQ(pyalloc_ipc_open(0, native.data(), native.size(), &base), PYALLOC_INVALID_ARGUMENT);
  CHECK(std::strstr(pyalloc_last_error(), "does not use pyalloc") != nullptr);
  CHECK_EQ(pyalloc_ipc_open(0, nullptr, 0, &base), PYALLOC_INVALID_ARGUMENT);
  void* block = allocate(1000);
  Handle handle = share(block);
  for (size_t bytes = 0; bytes < sizeof handle.bytes; ++bytes)
    CHECK_EQ(pyalloc_ipc_open(0, handle.bytes, bytes, &base), PYALLOC_INVALID_ARGUMENT);
  Handle other = handle;
  other.bytes[7] = 9;
  CHECK_EQ(pyalloc_ipc_open(0, other.bytes, sizeof other.bytes, &base), PYALLOC_INVALID_ARGUMENT);
  CHECK(std::strstr(pyalloc_last_error(), "another version of pyalloc") != nullptr);
  other = handle;
  other.bytes[20] = 8;  // fabric
  CHECK_EQ(pyalloc_ipc_open(0, other.bytes, sizeof other.bytes, &base), PYALLOC_INVALID_ARGUMENT);
  CHECK(std::strstr(pyalloc_last_error(), "handles of type 8") != nullptr);
  CHECK_EQ(pyalloc_ipc_open(0, handle.bytes, sizeof handle.bytes, nullptr), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(pyalloc_ipc_open(7, handle.bytes, sizeof handle.bytes, &base), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(pyalloc_ipc_share(reinterpret_cast<void*>(0x1234), &handle), PYALLOC_UNKNOWN_POINTER);
  CHECK_EQ(pyalloc_ipc_share(block, nullptr), PYALLOC_INVALID_ARGUMENT);
  CHECK_EQ(pyalloc_ipc_close(reinterpret_cast<void*>(0x1234)), PYALLOC_UNKNOWN_POINTER);
  CHECK_EQ(pyalloc_ipc_close(nullptr), PYALLOC_OK);
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  CHECK_EQ(pyalloc_ipc_share(block, &handle), PYALLOC_UNKNOWN_POINTER);
  CHECK(valid());
}

// Every bit of a ticket turned, by somebody who can reach the process: an error, or the same memory; never a crash.
TEST(a_damaged_handle_is_refused) {
  Session session;
  Producer producer(session.simulation);
  Handle handle = producer.shared(1000, 1);
  for (size_t byte = 0; byte < sizeof handle.bytes; ++byte) {
    if (byte >= 8 && byte < 12) continue;  // another process, which does not answer
    Handle damaged = handle;
    damaged.bytes[byte] ^= 0x40;
    void* here = open_shared(damaged);
    if (here != nullptr) CHECK_EQ(close_shared(here, damaged), PYALLOC_OK);
    CHECK(valid());
  }
  void* here = open_shared(handle);
  CHECK(here != nullptr && holds(here, 1000, 1));
  CHECK_EQ(close_shared(here, handle), PYALLOC_OK);
}

TEST(memory_without_a_cache_is_not_shared) {
  setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", 1);
  {
    Session session;
    void* block = allocate(kMiB);
    Handle handle{};
    handle.size = sizeof handle;
    CHECK_EQ(pyalloc_ipc_share(block, &handle), PYALLOC_WRONG_STATE);
    CHECK(std::strstr(pyalloc_last_error(), "PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr);
    CHECK_EQ(deallocate(block), PYALLOC_OK);
  }
  unsetenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
}

namespace {

const char* const kEntryPoints[] = {
#define DRIVER_CALL(field, symbol, version, arguments) #symbol,
#define OPTIONAL_CALL DRIVER_CALL
#define ORACLE_CALL(field, symbol, arguments)
#include "driver/driver_calls.def"
#undef DRIVER_CALL
#undef OPTIONAL_CALL
#undef ORACLE_CALL
};

// The n-th call of an entry point fails while blocks are opened and closed; true while that call was still reached.
bool survives(Producer& producer, const std::vector<Handle>& handles, const char* call, int64_t nth, int64_t times) {
  simgpu_reset_calls();
  CHECK_EQ(simgpu_fail(call, nth, times, cuda::kUnknown), 0);
  std::vector<void*> here;
  for (const Handle& handle : handles) {
    here.push_back(open_shared(handle));
    CHECK(here.back() != nullptr || pyalloc_last_error()[0] != 0);
    CHECK(valid());
  }
  for (size_t i = 0; i < handles.size(); ++i) {
    if (here[i] != nullptr) close_shared(here[i], handles[i]);  // after a refusal it is left over, and tried again
  }
  int64_t calls = simgpu_calls(call);
  simgpu_clear_faults();
  for (size_t i = 0; i < handles.size(); ++i) {  // all of it works now
    void* again = open_shared(handles[i]);
    CHECK(again != nullptr && holds(again, 5 * kMiB, static_cast<uint8_t>(i)));
    if (again != nullptr) CHECK_EQ(close_shared(again, handles[i]), PYALLOC_OK);
  }
  CHECK_EQ(stats().imported_bytes, int64_t{0});
  CHECK_EQ(producer.tell("exported").number > 0, true);
  return calls >= nth;
}

}  // namespace

TEST(every_driver_call_may_fail_while_memory_is_received) {
  Session session;
  Producer producer(session.simulation);
  std::vector<Handle> handles;
  for (uint8_t i = 0; i < 3; ++i) handles.push_back(producer.shared(5 * kMiB, i));
  int planned = 0;
  for (const char* call : kEntryPoints) {
    for (int64_t times : {1, 0}) {
      for (int64_t nth = 1; survives(producer, handles, call, nth, times) && failures() < 20; ++nth) ++planned;
    }
  }
  CHECK(planned > 20);
}

// Nobody may ever open another: the other process's memory would stay until this one ends.
TEST(what_could_not_be_closed_is_tried_again_by_itself) {
  Session session;
  Producer producer(session.simulation);
  Handle handle = producer.shared(5 * kMiB, 1);
  for (const char* call : {"cuMemUnmap", "cuMemAddressFree", "cuMemRelease"}) {
    for (bool trims : {false, true}) {
      auto again = [&] {
        simgpu_reset_calls();
        trims ? (void)trim() : (void)pyalloc_maintain(0);
        return simgpu_calls(call);
      };
      CHECK_EQ(simgpu_fail(call, 1, 3, cuda::kUnknown), 0);
      void* here = open_shared(handle);
      CHECK(here != nullptr);
      close_shared(here, handle);
      int64_t tries = 0;
      for (int round = 0; round < 5; ++round) tries += again();
      CHECK(tries >= 1);
      CHECK_EQ(again(), int64_t{0});  // it is undone
      simgpu_clear_faults();
    }
  }
}

TEST(the_driver_refuses_to_export) {
  Session session;
  Producer producer(session.simulation);
  Handle handle = producer.shared(5 * kMiB, 1);
  producer.tell("fail");
  CHECK(open_shared(handle) == nullptr);
  CHECK(std::strstr(pyalloc_last_error(), "cuMemExportToShareableHandle") != nullptr);
}

namespace {

// A receiver that says nothing.
class Silent {
 public:
  Silent() : socket_(socket(AF_UNIX, SOCK_SEQPACKET, 0)) {}
  ~Silent() { close(socket_); }
  void connect_to(const Handle& handle) {
    uint64_t name = 0;
    std::memcpy(&name, handle.bytes + 24, sizeof name);
    sockaddr_storage storage{};
    storage.ss_family = AF_UNIX;
    auto* path = reinterpret_cast<char*>(&storage) + sizeof(sa_family_t);
    int length = std::snprintf(path + 1, 60, "pyalloc-%016llx", static_cast<unsigned long long>(name));
    CHECK_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&storage),
                     static_cast<socklen_t>(sizeof(sa_family_t) + 1 + static_cast<size_t>(length))),
             0);
  }
  // Whether the other side ends the connection, once this one has.
  bool is_left() {
    shutdown(socket_, SHUT_WR);
    char byte = 0;
    return recv(socket_, &byte, 1, 0) == 0;
  }

 private:
  int socket_;
};

int64_t processor_ms() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

}  // namespace

TEST(a_receiver_that_falls_silent_does_not_hold_up_the_end) {
  Session session;
  void* block = allocate(kMiB);
  Handle handle = share(block);
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  Silent receiver;
  receiver.connect_to(handle);  // the thread waits for its request when the process wants to end
  usleep(50000);
  CHECK_EQ(pyalloc_shutdown(), PYALLOC_OK);
}

TEST(without_descriptors_receivers_wait_and_the_thread_sleeps) {
  Session session;
  void* block = allocate(kMiB);
  Handle handle = share(block);
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  Silent early, late;
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit none{3, before.rlim_max};  // 0 to 2 are in use
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  early.connect_to(handle);
  int64_t used = processor_ms();
  usleep(500000);
  CHECK(processor_ms() - used < 200);
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  CHECK(early.is_left());
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  late.connect_to(handle);
  usleep(20000);
  CHECK_EQ(pyalloc_shutdown(), PYALLOC_OK);  // does not wait for descriptors
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}
