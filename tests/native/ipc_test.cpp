// Memory shared between two processes: its bytes, its handles, how long it stays, and the ends of either process.
#include <string>
#include <thread>
#include <vector>

#include "producer.h"

using namespace test;

TEST(both_processes_see_one_memory) {
  Session session;
  Producer producer(session.simulation);
  for (size_t bytes : {200 * 200 * size_t{4}, 8 * kMiB, size_t{100}, 3 * kMiB + 512}) {
    Reply block = producer.tell("allocate", bytes, 7);
    Handle handle = producer.tell("share", block.pointer).handle;
    void* here = open_shared(handle);
    CHECK(here != nullptr);
    CHECK(holds(here, bytes, 7));
    CHECK(fill(nullptr, here, bytes, 9));
    cuCtxSynchronize();
    CHECK_EQ(producer.tell("byte", block.pointer).number, int64_t{9});
    CHECK_EQ(producer.tell("byte", block.pointer + bytes - 1).number, int64_t{9});
    CHECK(stats().imported_bytes > 0);
    CHECK_EQ(stats().reserved_bytes[0].current, int64_t{0});
    CHECK_EQ(close_shared(here, handle), PYALLOC_OK);
    CHECK_EQ(stats().imported_bytes, int64_t{0});
    producer.tell("free", block.pointer);
  }
  producer.tell("trim");  // an empty slab is kept until then
  CHECK_EQ(producer.tell("exported").number, int64_t{0});
}

TEST(handles_of_one_range_are_the_same_bytes_and_are_mapped_once) {
  Session session;
  Producer producer(session.simulation);
  Reply one = producer.tell("allocate", 4000, 1), other = producer.tell("allocate", 4000, 2);
  Handle first = producer.tell("share", one.pointer).handle, second = producer.tell("share", other.pointer).handle;
  CHECK(same_bytes(first, second));
  CHECK_EQ(second.offset - first.offset, other.pointer - one.pointer);
  CHECK(same_bytes(first, producer.tell("share", one.pointer).handle));
  simgpu_reset_calls();
  void *here = open_shared(first), *there = open_shared(second);
  CHECK_EQ(simgpu_calls("cuMemMap"), int64_t{1});
  CHECK_EQ(address(there) - address(here), other.pointer - one.pointer);
  CHECK(holds(here, 4000, 1) && holds(there, 4000, 2));
  CHECK_EQ(close_shared(here, first), PYALLOC_OK);
  CHECK(holds(there, 4000, 2));
  CHECK_EQ(simgpu_calls("cuMemUnmap"), int64_t{0});
  CHECK_EQ(close_shared(there, second), PYALLOC_OK);
  CHECK_EQ(simgpu_calls("cuMemUnmap"), int64_t{1});
  CHECK_EQ(close_shared(there, second), PYALLOC_UNKNOWN_POINTER);
}

TEST(a_range_whose_memory_has_changed_is_another_handle) {
  Session session;
  Producer producer(session.simulation);
  Reply block = producer.tell("allocate", 6 * kMiB, 1);
  Handle old = producer.tell("share", block.pointer).handle;
  producer.tell("free", block.pointer);
  CHECK_EQ(producer.tell("exported").number, int64_t{0});
  CHECK(open_shared(old) == nullptr);
  CHECK(std::strstr(pyalloc_last_error(), "was freed by the process that shared it") != nullptr);
  CHECK(producer.tell("trim").number > 0);
  CHECK(open_shared(old) == nullptr);
  Reply again = producer.tell("allocate", 6 * kMiB, 2);
  CHECK_EQ(again.pointer, block.pointer);
  Handle fresh = producer.tell("share", again.pointer).handle;
  CHECK(!same_bytes(old, fresh));
  CHECK(open_shared(old) == nullptr);
  void* here = open_shared(fresh);
  CHECK(here != nullptr);
  CHECK(holds(here, 6 * kMiB, 2));
  CHECK_EQ(close_shared(here, fresh), PYALLOC_OK);
}

TEST(what_is_shared_is_neither_moved_nor_returned) {
  Session session("64MiB", 1, "slack:0");
  void* block = allocate(6 * kMiB);
  Handle handle = share(block);
  CHECK_EQ(stats().exported_bytes, static_cast<int64_t>(6 * kMiB));
  std::vector<void*> others;
  for (int round = 0; round < 4; ++round) {  // moves all that may be moved
    for (size_t bytes : {20 * kMiB, 30 * kMiB, 14 * kMiB}) {
      if (void* other = allocate(bytes)) others.push_back(other);
    }
    for (void* other : others) CHECK_EQ(deallocate(other), PYALLOC_OK);
    others.clear();
    trim();
    pyalloc_maintain(0);
    CHECK(same_bytes(handle, share(block)));
    CHECK_EQ(stats().exported_bytes, static_cast<int64_t>(6 * kMiB));
    CHECK(valid());
  }
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  CHECK_EQ(stats().exported_bytes, int64_t{0});
  CHECK_EQ(trim(), uint64_t{6 * kMiB});
  CHECK(valid());
}

TEST(what_is_shared_does_not_sleep_and_what_sleeps_is_not_shared) {
  Session session;
  void* block = allocate(6 * kMiB);
  Handle handle = share(block);
  const int general = PYALLOC_POOL_GENERAL, offload = 1;
  CHECK_EQ(pyalloc_sleep(&general, &offload, 1, nullptr, nullptr, nullptr), PYALLOC_WRONG_STATE);
  CHECK(std::strstr(pyalloc_last_error(), "are shared with other processes") != nullptr);
  CHECK(same_bytes(handle, share(block)));
  CHECK(valid());
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  block = allocate(6 * kMiB);
  CHECK_EQ(pyalloc_sleep(&general, &offload, 1, nullptr, nullptr, nullptr), PYALLOC_OK);
  CHECK_EQ(pyalloc_ipc_share(block, &handle), PYALLOC_WRONG_STATE);
  CHECK(std::strstr(pyalloc_last_error(), "sleeps") != nullptr);
  CHECK_EQ(pyalloc_wake(&general, 1, nullptr, nullptr), PYALLOC_OK);
  CHECK_EQ(pyalloc_ipc_share(block, &handle), PYALLOC_OK);
  CHECK(valid());
  CHECK_EQ(deallocate(block), PYALLOC_OK);
}

TEST(the_process_that_shared_it_opens_its_own) {
  Session session;
  void* block = allocate(3 * kMiB);
  Handle handle = share(static_cast<char*>(block) + 512);
  simgpu_reset_calls();
  void* here = open_shared(handle);
  CHECK_EQ(address(here), address(block) + 512);
  CHECK_EQ(close_shared(here, handle), PYALLOC_OK);
  CHECK_EQ(simgpu_calls(nullptr), int64_t{0});
  CHECK_EQ(deallocate(block), PYALLOC_OK);
}

TEST(a_thousand_handles_and_two_gigabytes) {
  constexpr int kBlocks = 1000 / kSlowdown;
  constexpr size_t kBlock = 2 * kMiB;
  Session session("6GiB", 1);
  Producer producer(session.simulation);
  std::vector<Handle> handles;
  std::vector<void*> here;
  producer.tell("files", 1400);  // the simulated driver keeps one for each handle; no more than a batch come on top
  simgpu_reset_calls();
  for (int i = 0; i < kBlocks; ++i) {
    handles.push_back(producer.shared(kBlock, static_cast<uint8_t>(i)));
    here.push_back(open_shared(handles.back()));
    CHECK(here.back() != nullptr && holds(here.back(), kBlock, static_cast<uint8_t>(i)));
  }
  for (int i = 0; i < kBlocks; ++i) CHECK(holds(here[static_cast<size_t>(i)], kBlock, static_cast<uint8_t>(i)));
  for (size_t i = 0; i < here.size(); ++i) CHECK_EQ(close_shared(here[i], handles[i]), PYALLOC_OK);
  CHECK_EQ(stats().imported_bytes, int64_t{0});

  Reply large = producer.tell("allocate", 2 * kGiB, 3);
  Handle handle = producer.tell("share", large.pointer).handle;
  void* base = open_shared(handle);
  CHECK(base != nullptr);
  CHECK(holds(base, 2 * kGiB, 3));
  // Exactly as many addresses as are mapped.
  CHECK(stats().imported_bytes >= static_cast<int64_t>(2 * kGiB) &&
        stats().imported_bytes <= static_cast<int64_t>(2 * kGiB + 64 * kMiB));
  CHECK_EQ(close_shared(base, handle), PYALLOC_OK);
}

// In pieces of 2 MiB, a thousand handles for one block, in batches.
TEST(one_block_of_a_thousand_granules) {
  Session session("2100MiB");
  Producer producer(session.simulation);
  std::vector<Reply> filler;
  for (int i = 0; i < 2; ++i) filler.push_back(producer.tell("allocate", 1000 * kMiB, 1));
  for (const Reply& one : filler) producer.tell("free", one.pointer);
  Reply large = producer.tell("allocate", 2 * kGiB - 64 * kMiB, 5);
  Handle handle = producer.tell("share", large.pointer).handle;
  simgpu_reset_calls();
  void* here = open_shared(handle);
  CHECK(here != nullptr);
  CHECK(simgpu_calls("cuMemImportFromShareableHandle") > 64);
  CHECK_EQ(simgpu_calls("cuMemSetAccess"), int64_t{1});
  CHECK(holds(here, 2 * kGiB - 64 * kMiB, 5));
  CHECK_EQ(close_shared(here, handle), PYALLOC_OK);
}

TEST(the_end_of_the_process_that_shared_it) {
  Session session;
  Producer producer(session.simulation);
  Handle opened = producer.shared(6 * kMiB, 4), late = producer.shared(40 * kMiB, 5);
  void* here = open_shared(opened);
  CHECK(here != nullptr);
  CHECK_EQ(producer.end(SIGKILL), 100 + SIGKILL);
  CHECK(holds(here, 6 * kMiB, 4));  // the mapping keeps the memory
  CHECK(fill(nullptr, here, 6 * kMiB, 6));
  CHECK(open_shared(late) == nullptr);
  CHECK(std::strstr(pyalloc_last_error(), "has ended; keep it alive") != nullptr);
  CHECK_EQ(close_shared(here, opened), PYALLOC_OK);
  CHECK_EQ(simgpu_used(0), uint64_t{0});
}

TEST(the_end_of_the_process_that_received_it) {
  Session session;
  void* block = allocate(6 * kMiB);
  CHECK(fill(nullptr, block, 6 * kMiB, 1));
  cuCtxSynchronize();
  Handle handle = share(block);
  for (bool killed : {true, false}) {
    std::fflush(nullptr);
    pid_t receiver = fork();
    if (receiver == 0) {
      setenv("PYALLOC_TEST_CHILD", killed ? "killed" : "exits", 1);
      setenv("PYALLOC_SIMGPU", session.simulation.c_str(), 1);
      std::string text;
      for (unsigned char byte : handle.bytes) {
        char hex[3];
        std::snprintf(hex, sizeof hex, "%02x", byte);
        text += hex;
      }
      setenv("PYALLOC_TEST_HANDLE", text.c_str(), 1);
      execl("/proc/self/exe", "ipc_test", "a_process_that_receives", nullptr);
      _exit(99);
    }
    int status = 0;
    waitpid(receiver, &status, 0);
    CHECK(killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(valid());
    CHECK(holds(block, 6 * kMiB, 8));
    CHECK(fill(nullptr, block, 6 * kMiB, 1));
  }
  CHECK_EQ(deallocate(block), PYALLOC_OK);
}

// What the test above runs.
TEST(a_process_that_receives) {
  if (!in_producer()) return;
  Handle handle{};
  std::string text = std::getenv("PYALLOC_TEST_HANDLE");
  for (size_t i = 0; i < sizeof handle.bytes; ++i)
    handle.bytes[i] = static_cast<unsigned char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  CHECK_EQ(pyalloc_init(1), PYALLOC_OK);
  Gpu::use(0);
  void* here = open_shared(handle);
  CHECK(here != nullptr && holds(here, 6 * kMiB, 1) && fill(nullptr, here, 6 * kMiB, 8));
  cuCtxSynchronize();
  if (std::string(std::getenv("PYALLOC_TEST_CHILD")) == "killed") kill(getpid(), SIGKILL);
}

TEST(two_receivers_and_several_threads) {
  Session session;
  Producer producer(session.simulation);
  std::vector<Handle> handles;
  for (int i = 0; i < 8; ++i) handles.push_back(producer.shared(3 * kMiB, static_cast<uint8_t>(i)));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      Gpu::use(0);
      for (int turn = 0; turn < 40 / kSlowdown + 1; ++turn) {
        for (size_t i = 0; i < handles.size(); ++i) {
          void* here = open_shared(handles[i]);
          CHECK(here != nullptr && holds(here, 3 * kMiB, static_cast<uint8_t>(i)));
          CHECK_EQ(close_shared(here, handles[i]), PYALLOC_OK);
        }
      }
    });
  }
  for (std::thread& one : threads) one.join();
  CHECK_EQ(stats().imported_bytes, int64_t{0});
  CHECK(valid());
}

TEST(peers_reach_what_was_received_before_and_after) {
  Session session("256MiB", 2);
  Producer producer(session.simulation);
  Handle one = producer.shared(6 * kMiB, 1), other = producer.shared(8 * kMiB, 2);
  void* before = open_shared(one);
  void* stream = Gpu::stream(1);
  CHECK_EQ(pyalloc_enable_peer_access(1, 0), PYALLOC_OK);
  void* after = open_shared(other);
  Gpu::use(1);
  CHECK(fill(stream, before, 6 * kMiB, 3) && fill(stream, after, 8 * kMiB, 4));
  CHECK_EQ(deallocate(allocate(kMiB, nullptr, 1)), PYALLOC_OK);  // its heap is open: it is waited for
  Gpu::use(0);
  CHECK_EQ(close_shared(before, one), PYALLOC_OK);  // waits for device 1 too
  CHECK_EQ(close_shared(after, other), PYALLOC_OK);
}

TEST(work_that_uses_it_is_finished_before_it_is_unmapped) {
  Session session;
  Producer producer(session.simulation);
  Handle handle = producer.shared(6 * kMiB, 1);
  void* stream = Gpu::stream();
  CHECK_EQ(simgpu_set_stream_mode("deferred", 3), 0);
  void* here = open_shared(handle);
  CHECK(fill(stream, here, 6 * kMiB, 2));
  CHECK_EQ(close_shared(here, handle), PYALLOC_OK);
  CHECK_EQ(simgpu_pending(), int64_t{0});
}
