// Tags: what is charged to whom, peaks, scopes that nobody leaves, and names that are forgotten.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "pools.h"

using namespace pyalloc;
using namespace test;

namespace {

class Tag {
 public:
  explicit Tag(const std::string& name) { CHECK_EQ(pyalloc_push_tag(name.c_str(), &tag_), PYALLOC_OK); }
  ~Tag() { CHECK_EQ(pyalloc_pop_tag(tag_), PYALLOC_OK); }

 private:
  uint32_t tag_ = 0;
};

pyalloc_bill bill(const char* name) {
  pyalloc_bill now{};
  now.size = sizeof now;
  CHECK_EQ(pyalloc_get_bill(name, &now), PYALLOC_OK);
  return now;
}

bool known(const char* name) {
  pyalloc_bill now{};
  now.size = sizeof now;
  return pyalloc_get_bill(name, &now) == PYALLOC_OK;
}

const std::vector<size_t> kSizes = {1, 700, 15000, 40 * kKiB, 900 * kKiB, 3 * kMiB, 5 * kMiB, 40 * kMiB};

}  // namespace

TEST(every_pool_and_size_is_charged_and_discharged_exactly) {
  Gpu gpu("memory:8GiB");
  std::vector<void*> blocks;
  int64_t bytes = 0;
  {
    Tag tag("request-1");
    for (int pool = 0; pool < 5; ++pool)
      for (size_t size : kSizes) {
        blocks.push_back(in_pool(pool, size));
        bytes += static_cast<int64_t>(size);
        CHECK_EQ(bill("request-1").bytes, bytes);
      }
  }
  void* other = allocate(3 * kMiB);  // in no scope
  pyalloc_bill now = bill("request-1");
  auto count = static_cast<int64_t>(blocks.size());
  CHECK_EQ(now.blocks, count);
  CHECK_EQ(now.allocations, count);
  CHECK_EQ(now.open_scopes, int64_t{0});
  for (void* block : blocks) CHECK_EQ(deallocate(block), PYALLOC_OK);
  now = bill("request-1");
  CHECK_EQ(now.bytes, int64_t{0});
  CHECK_EQ(now.blocks, int64_t{0});
  CHECK_EQ(now.peak_bytes, bytes);
  CHECK_EQ(now.peak_blocks, count);
  // What takes their places pays nothing.
  std::vector<void*> again;
  for (size_t size : kSizes) again.push_back(allocate(size));
  CHECK_EQ(bill("request-1").allocations, count);
  for (void* block : again) deallocate(block);
  deallocate(other);
  CHECK_EQ(bill("request-1").bytes, int64_t{0});
  CHECK(valid());
}

TEST(the_innermost_tag_pays_and_recorded_blocks_pay_until_they_are_freed) {
  Gpu gpu("memory:1GiB");
  void* stream = gpu.stream();
  std::vector<void*> blocks;
  {
    Tag outer("outer");
    {
      Tag inner("inner");
      for (size_t size : kSizes) blocks.push_back(allocate(size));
    }
    blocks.push_back(allocate(1000));
  }
  CHECK_EQ(bill("outer").bytes, int64_t{1000});
  CHECK_EQ(bill("inner").blocks, static_cast<int64_t>(kSizes.size()));
  for (void* block : blocks) {
    CHECK_EQ(pyalloc_record_stream(block, stream, PYALLOC_STREAM_OWNED), PYALLOC_OK);
    CHECK_EQ(deallocate(block), PYALLOC_OK);
  }
  CHECK_EQ(bill("outer").blocks + bill("inner").blocks, int64_t{0});
}

TEST(threads_share_a_tag_and_its_peak_is_exact) {
  Gpu gpu("memory:1GiB");
  constexpr int kThreads = 4, kRounds = 2000 / kSlowdown;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([] {
      Gpu::use(0);
      void* stream = Gpu::stream();
      Tag tag("shared");
      for (int round = 0; round < kRounds; ++round) {
        void *small = allocate(500, stream), *large = allocate(2 * kMiB, stream);
        deallocate(small);
        deallocate(large);
      }
    });
  for (std::thread& one : threads) one.join();
  pyalloc_bill now = bill("shared");
  CHECK_EQ(now.bytes, int64_t{0});
  CHECK_EQ(now.allocations, int64_t{2} * kThreads * kRounds);
  CHECK(now.peak_bytes >= 500 + 2 * 1024 * 1024 && now.peak_bytes <= kThreads * (500 + 2 * 1024 * 1024));
}

TEST(scopes_are_left_in_order_and_one_never_left_ends_with_its_thread) {
  Gpu gpu("memory:64MiB");
  uint32_t first = 0, second = 0;
  CHECK_EQ(pyalloc_pop_tag(1), PYALLOC_WRONG_STATE);
  CHECK_EQ(pyalloc_push_tag("first", &first), PYALLOC_OK);
  CHECK_EQ(pyalloc_push_tag("second", &second), PYALLOC_OK);
  CHECK(pyalloc_pop_tag(first) == PYALLOC_WRONG_STATE && says("opposite order"));
  CHECK_EQ(bill("first").open_scopes, int64_t{0});  // left all the same
  CHECK_EQ(bill("second").open_scopes, int64_t{1});
  CHECK_EQ(pyalloc_pop_tag(second), PYALLOC_OK);
  CHECK_EQ(bill("second").open_scopes, int64_t{0});
  void* nobodys = allocate(1000);
  CHECK_EQ(bill("first").bytes + bill("second").bytes, int64_t{0});
  deallocate(nobodys);
  std::thread([] {
    uint32_t tag = 0;
    CHECK_EQ(pyalloc_push_tag("left open", &tag), PYALLOC_OK);
    CHECK_EQ(bill("left open").open_scopes, int64_t{1});
  }).join();
  CHECK_EQ(bill("left open").open_scopes, int64_t{0});
  CHECK(pyalloc_push_tag("", &first) == PYALLOC_INVALID_ARGUMENT && says("expected 1 to 255"));
  CHECK_EQ(pyalloc_push_tag(std::string(256, 'x').c_str(), &first), PYALLOC_INVALID_ARGUMENT);
  CHECK(!known("nobody") && says("no tag is named 'nobody'"));
}

TEST(finished_tags_are_forgotten_and_those_in_use_are_not) {
  Gpu gpu("memory:64MiB");
  void* kept = nullptr;
  {
    Tag tag("kept");
    kept = allocate(1000);
  }
  Tag open("open");
  for (int i = 0; i < 30000; ++i) {
    Tag tag("request-" + std::to_string(i));
    deallocate(allocate(2000));
  }
  CHECK(!known("request-0"));
  CHECK(known("request-29999") && known("request-25904"));
  CHECK_EQ(bill("kept").bytes, int64_t{1000});
  CHECK_EQ(bill("request-29999").peak_bytes, int64_t{2000});
  CHECK(known("open"));
  deallocate(kept);
  CHECK_EQ(bill("kept").bytes, int64_t{0});
}

TEST(a_heap_that_closes_leaves_no_charge) {
  {
    Gpu gpu("memory:64MiB,oracle:off");
    Tag tag("before");
    allocate(1000);
    allocate(3 * kMiB);
  }
  Gpu gpu("memory:64MiB,oracle:off");
  CHECK(!known("before"));
  Tag tag("before");
  CHECK_EQ(bill("before").bytes, int64_t{0});
}

TEST(a_forked_child_never_waits_for_a_lock_of_a_thread_it_does_not_have) {
  Gpu gpu("memory:64MiB");
  deallocate(allocate(1000));
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    for (int i = 0; !stop.load(); ++i) {
      Tag tag("busy-" + std::to_string(i));
      int pool = 0;
      pyalloc_find_pool("kv", 1, &pool);
      char text[64];
      pyalloc_oom_json(text, sizeof text);
    }
  });
  for (int round = 0; round < 200 / kSlowdown; ++round) {
    pid_t child = fork();
    if (child == 0) {
      alarm(60);  // a hang ends the child by a signal
      uint32_t tag = 0;
      int pool = 0;
      char text[64];
      pyalloc_push_tag("child", &tag);
      pyalloc_pop_tag(tag);
      pyalloc_find_pool("childs", 1, &pool);
      pyalloc_oom_json(text, sizeof text);
      _exit(0);
    }
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
  }
  stop.store(true);
  busy.join();
}
