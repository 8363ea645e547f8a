// The ends of processes: exit with blocks alive, fork before and after CUDA is used. Each case runs this program again as a child.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "api/registry.h"
#include "gpu.h"
#include "heap/address_map.h"
#include "page_reader.h"

using namespace test;

namespace {

// Runs this test once more in a fresh process; its exit code.
int run_child(const char* name) {
  std::fflush(nullptr);
  pid_t child = fork();
  if (child == 0) {
    setenv("PYALLOC_TEST_CHILD", "1", 1);
    setenv("PYALLOC_SIMGPU", "memory:64MiB", 1);
    execl("/proc/self/exe", "process_test", name, nullptr);
    _exit(99);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status)) return 100 + WTERMSIG(status);
  return WEXITSTATUS(status);
}

bool is_child() { return std::getenv("PYALLOC_TEST_CHILD") != nullptr; }

int exit_code_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

void* block_at_exit = nullptr;

int64_t all_calls() {
  int64_t sum = 0;
#define DRIVER_CALL(field, symbol, version, arguments) sum += simgpu_calls(#symbol);
#define OPTIONAL_CALL DRIVER_CALL
#define ORACLE_CALL(field, symbol, arguments)
#include "driver/driver_calls.def"
#undef DRIVER_CALL
#undef OPTIONAL_CALL
#undef ORACLE_CALL
  return sum;
}

// Runs after the library's own handler, as destructors of static tensors may: nothing reaches the driver, nothing fails loudly.
void after_the_end() {
  int64_t before = all_calls();
  int wrong = 0;
  void* pointer = nullptr;
  wrong += pyalloc_deallocate(block_at_exit, nullptr) != PYALLOC_OK;
  wrong += pyalloc_record_stream(block_at_exit, nullptr, 0) != PYALLOC_OK;
  wrong += pyalloc_allocate(0, nullptr, 0, 512, &pointer) != PYALLOC_WRONG_STATE;
  wrong += pyalloc_trim(-1, nullptr) != PYALLOC_WRONG_STATE;
  wrong += pyalloc_maintain(0) != PYALLOC_WRONG_STATE;
  wrong += pyalloc_init(1) != PYALLOC_WRONG_STATE;
  wrong += pyalloc_shutdown() != PYALLOC_WRONG_STATE;
  wrong += pyalloc_set_memory_fraction(0, 0.5) != PYALLOC_WRONG_STATE;
  std::thread([] { pyalloc_deallocate(block_at_exit, nullptr); }).join();
  if (all_calls() != before) wrong += 32;
  if (wrong != 0) _exit(40 + wrong);
}

std::atomic<int> threads_inside{0}, threads_out{0};
std::atomic<bool> go_on{false};
constexpr int kThreads = 4;

// A function of the user that is still running when the process goes down.
void linger(const std::atomic<bool>& until) {
  ++threads_inside;
  while (!until) std::this_thread::yield();
}
uint64_t lingering_reclaimer(void*, int, size_t) { return linger(go_on), 0; }
void lingering_observer(void*, const pyalloc_mapping_event*) { linger(go_on); }

// Runs after the library's own handler: threads that it found in the middle of a call go on with it.
void after_the_end_of_others() {
  int64_t before = all_calls();
  go_on = true;
  while (threads_out < kThreads) std::this_thread::yield();
  if (all_calls() != before) _exit(90);
}

// In a forked child of a process that used CUDA: clear errors, no driver call, no hang.
int forked_child_errors(void* block) {
  int64_t before = all_calls();
  void* pointer = nullptr;
  double fraction = 0;
  int wrong = 0;
  auto refused = [&](pyalloc_status status) {
    wrong += !(status == PYALLOC_WRONG_STATE && std::strstr(pyalloc_last_error(), "spawn") != nullptr);
  };
  refused(pyalloc_allocate(0, nullptr, 0, 512, &pointer));
  refused(pyalloc_allocate(0, nullptr, 0, 0, &pointer));
  refused(pyalloc_configure("limit:1GiB", "test"));
  refused(pyalloc_init(1));
  refused(pyalloc_trim(-1, nullptr));
  refused(pyalloc_maintain(0));
  refused(pyalloc_shutdown());
  refused(pyalloc_validate(0));
  refused(pyalloc_set_memory_fraction(0, 0.5));
  refused(pyalloc_get_memory_fraction(0, &fraction));
  refused(pyalloc_set_limit(0, 1));
  refused(pyalloc_enable_peer_access(0, 0));
  wrong += pyalloc_deallocate(block, nullptr) != PYALLOC_OK;
  wrong += pyalloc_record_stream(block, nullptr, 0) != PYALLOC_OK;
  wrong += pyalloc_malloc(512, 0, nullptr) != nullptr;
  pyalloc_free(block, 512, 0, nullptr);
  if (all_calls() != before) wrong += 32;
  return wrong;
}

}  // namespace

TEST(exit_with_live_blocks_and_the_maintenance_thread) {
  if (!is_child()) {
    CHECK_EQ(run_child("exit_with_live_blocks_and_the_maintenance_thread"), 0);
    return;
  }
  std::atexit(after_the_end);  // before the library registers its own, so it runs after that
  CHECK_EQ(pyalloc_configure("maintenance:on,decay:1", "test"), PYALLOC_OK);
  CHECK_EQ(pyalloc_init(1), PYALLOC_OK);
  block_at_exit = allocate(6 * kMiB);
  CHECK(block_at_exit != nullptr);
  CHECK(allocate(700) != nullptr);
  deallocate(allocate(20 * kMiB));  // left to the maintenance thread
}

TEST(exit_while_other_threads_are_inside_calls) {
  if (!is_child()) {
    CHECK_EQ(run_child("exit_while_other_threads_are_inside_calls"), 0);
    return;
  }
  std::atexit(after_the_end_of_others);
  CHECK_EQ(pyalloc_configure("maintenance:on,decay:1,lora_reserve:0", "test"), PYALLOC_OK);
  CHECK_EQ(pyalloc_init(1), PYALLOC_OK);
  CHECK(allocate(kMiB) != nullptr);
  void* idle = allocate(20 * kMiB);
  CHECK_EQ(deallocate(idle), PYALLOC_OK);
  CHECK_EQ(pyalloc_add_reclaimer(lingering_reclaimer, nullptr, 0), PYALLOC_OK);
  CHECK_EQ(pyalloc_add_mapping_observer(lingering_observer, nullptr, PYALLOC_UNMAPPING), PYALLOC_OK);
  auto start = [](auto body) {
    int already = threads_inside;
    std::thread([body] {
      body();
      ++threads_out;
    }).detach();
    while (threads_inside == already) std::this_thread::yield();
  };
  start([] { trim(); });
  for (int i = 1; i < kThreads; ++i) start([] { CHECK(allocate(200 * kMiB) == nullptr); });
}

std::string& page_at_exit = *new std::string;

// Run after the library's own handler: what a thread does that had asked just before whether it still may.
void begin_after_the_end() {
  pyalloc::Registry& registry = pyalloc::Registry::instance();
  if (registry.page().publish(registry.open_heaps(), 1, registry.ladder()) != PYALLOC_WRONG_STATE) _exit(70);
  if (exists(page_at_exit)) _exit(71);
  pyalloc::Ticket ticket;
  auto at = reinterpret_cast<uint64_t>(block_at_exit);
  pyalloc::Space& space = *pyalloc::find_space(at);
  pyalloc_status shared = registry.exporter().share([&](int device) { return registry.open_heap(device); },
                                                    space.heap(), space, at, ticket);
  if (shared != PYALLOC_WRONG_STATE) _exit(72);
}

TEST(what_ended_at_exit_does_not_begin_again) {
  if (!is_child()) {
    PageFolder folder;
    CHECK_EQ(run_child("what_ended_at_exit_does_not_begin_again"), 0);
    return;
  }
  std::atexit(begin_after_the_end);
  CHECK_EQ(pyalloc_configure("lora_reserve:0", "test"), PYALLOC_OK);
  CHECK_EQ(pyalloc_init(1), PYALLOC_OK);
  block_at_exit = allocate(kMiB);
  CHECK_EQ(pyalloc_publish_stats_page(), PYALLOC_OK);
  page_at_exit = page_path();
  CHECK(exists(page_at_exit));
}

TEST(a_child_forked_after_use_gets_clear_errors) {
  if (!is_child()) {
    CHECK_EQ(run_child("a_child_forked_after_use_gets_clear_errors"), 0);
    return;
  }
  CHECK_EQ(pyalloc_configure("maintenance:on", "test"), PYALLOC_OK);
  CHECK_EQ(pyalloc_init(1), PYALLOC_OK);
  void *large = allocate(6 * kMiB), *small = allocate(700);
  CHECK(large != nullptr && small != nullptr);
  pid_t child = fork();
  if (child == 0) _exit(forked_child_errors(large) + forked_child_errors(small));
  CHECK_EQ(exit_code_of(child), 0);
  pid_t leaving = fork();
  if (leaving == 0) std::exit(0);  // runs the exit handlers, which must not wait for a thread the child does not have
  CHECK_EQ(exit_code_of(leaving), 0);
  CHECK_EQ(deallocate(large), PYALLOC_OK);  // the parent goes on
  CHECK_EQ(deallocate(small), PYALLOC_OK);
  CHECK(valid());
  CHECK_EQ(pyalloc_shutdown(), PYALLOC_OK);
}

TEST(a_child_waits_for_no_function_that_threads_of_its_parent_are_in) {
  if (!is_child()) {
    CHECK_EQ(run_child("a_child_waits_for_no_function_that_threads_of_its_parent_are_in"), 0);
    return;
  }
  CHECK_EQ(pyalloc_configure("maintenance:off,lora_reserve:0", "test"), PYALLOC_OK);
  CHECK_EQ(pyalloc_init(1), PYALLOC_OK);
  void* block = allocate(20 * kMiB);
  CHECK_EQ(pyalloc_add_reclaimer(lingering_reclaimer, nullptr, 0), PYALLOC_OK);
  CHECK_EQ(pyalloc_add_mapping_observer(lingering_observer, nullptr, PYALLOC_UNMAPPING), PYALLOC_OK);
  std::thread asking([] { CHECK(allocate(200 * kMiB) == nullptr); });
  while (threads_inside < 1) std::this_thread::yield();
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  std::thread trimming([] { trim(); });
  while (threads_inside < 2) std::this_thread::yield();
  pid_t child = fork();
  if (child == 0) {
    alarm(20);  // instead of waiting for ever
    int wrong = pyalloc_remove_mapping_observer(lingering_observer, nullptr) != PYALLOC_OK;
    wrong += pyalloc_remove_reclaimer(lingering_reclaimer, nullptr) != PYALLOC_OK;
    wrong += pyalloc_await_reclaimers(0) != PYALLOC_OK;
    _exit(wrong);
  }
  CHECK_EQ(exit_code_of(child), 0);
  CHECK_EQ(pyalloc_await_reclaimers(0), PYALLOC_WRONG_STATE);  // the parent still has them
  go_on = true;
  asking.join();
  trimming.join();
  CHECK_EQ(pyalloc_await_reclaimers(0), PYALLOC_OK);
  CHECK_EQ(pyalloc_shutdown(), PYALLOC_OK);
}

TEST(a_child_forked_before_use_works) {
  if (!is_child()) {
    CHECK_EQ(run_child("a_child_forked_before_use_works"), 0);
    return;
  }
  PageFolder folder;
  CHECK_EQ(pyalloc_configure("limit:32MiB", "test"), PYALLOC_OK);
  CHECK_EQ(pyalloc_init(1), PYALLOC_OK);
  pid_t child = fork();
  if (child == 0) {
    void* block = allocate(6 * kMiB);
    if (block == nullptr) _exit(1);
    if (allocate(40 * kMiB) != nullptr) _exit(2);  // the configuration came along
    Page page = published();                       // one of its own
    if (page.content.empty() || page.process().pid != getpid()) _exit(5);
    if (deallocate(block) != PYALLOC_OK) _exit(3);
    if (pyalloc_shutdown() != PYALLOC_OK) _exit(4);
    _exit(0);
  }
  CHECK_EQ(exit_code_of(child), 0);
  void* block = allocate(6 * kMiB);
  CHECK(block != nullptr);
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  CHECK_EQ(pyalloc_shutdown(), PYALLOC_OK);
}

TEST(shutdown_with_live_blocks_returns_all_memory) {
  Gpu gpu("memory:64MiB,oracle:off", "maintenance:on");
  void* block = allocate(6 * kMiB);
  void* small = allocate(100);
  CHECK_EQ(pyalloc_shutdown(), PYALLOC_OK);
  CHECK_EQ(simgpu_used(0), uint64_t{0});
  CHECK_EQ(deallocate(block), PYALLOC_UNKNOWN_POINTER);
  CHECK_EQ(deallocate(small), PYALLOC_UNKNOWN_POINTER);
  CHECK_EQ(pyalloc_init(1), PYALLOC_OK);
  void* again = allocate(6 * kMiB);
  CHECK(again != nullptr);
  CHECK_EQ(deallocate(again), PYALLOC_OK);
}

TEST(threads_come_and_go) {
  Gpu gpu("memory:64MiB", "maintenance:on");
  for (int i = 0; i < 200 / kSlowdown; ++i) {
    void* block = nullptr;
    std::thread([&] {
      Gpu::use(0);
      block = allocate(700);
    }).join();
    CHECK_EQ(deallocate(block), PYALLOC_OK);
  }
  CHECK(valid());
}
