// The stats page: what it says agrees with the C ABI, and it is read whole while it is written.
#include <sys/file.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "gpu.h"
#include "page_reader.h"

using namespace test;

namespace {

// Every figure of the page that the C ABI also gives, but for what a moment changes.
void check_agrees(const Page& page) {
  int count = pyalloc_pool_count();
  pyalloc_ledger ledger{};
  ledger.size = sizeof ledger;
  std::vector<pyalloc_pool_stats> pools(static_cast<size_t>(count));
  for (pyalloc_pool_stats& pool : pools) pool.size = sizeof pool;
  CHECK_EQ(pyalloc_get_ledger(0, &ledger, pools.data(), count, nullptr), PYALLOC_OK);
  pyalloc_device_stats now = stats();
  const pyalloc_page_device& device = page.device();
#define PYALLOC_LEDGER_FIELD(name, unit, help) CHECK_EQ(device.name, ledger.name);
#include "pyalloc/ledger_fields.def"
#undef PYALLOC_LEDGER_FIELD
#define PYALLOC_STAT_GROUP(name, unit, help) CHECK(std::memcmp(device.name, now.name, sizeof device.name) == 0);
#define PYALLOC_STAT_VALUE(name, kind, unit, help) CHECK_EQ(device.name, now.name);
#include "pyalloc/stat_fields.def"
#undef PYALLOC_STAT_GROUP
#undef PYALLOC_STAT_VALUE
  CHECK_EQ(page.process().pools, int64_t{count});
  for (size_t i = 0; i < pools.size(); ++i) {
    const pyalloc_page_pool& pool = page.pool(i);
    CHECK_EQ(pool.device, int64_t{0});
    CHECK_EQ(pool.pool, static_cast<int64_t>(i));
    CHECK(std::strcmp(pool.name, pyalloc_pool_name(static_cast<int>(i))) == 0);
#define PYALLOC_POOL_FIELD(name, kind, unit, help) CHECK_EQ(pool.name, pools[i].name);
#include "pyalloc/pool_fields.def"
#undef PYALLOC_POOL_FIELD
    // The cells are the pool's segments, and what is live in them is at least what blocks take.
    CHECK(pool.cells * pool.cell_bytes >= pool.reserved);
    CHECK((pool.cells - 1) * pool.cell_bytes < pool.reserved || pool.cells == 0);
    double live = 0, idle = 0;
    for (int64_t cell = 0; cell < pool.cells; ++cell) {
      int64_t bytes = std::min(pool.cell_bytes, pool.reserved - cell * pool.cell_bytes);
      live += static_cast<double>(bytes) * pool.live_cells[cell] / 255;
      idle += static_cast<double>(bytes) * pool.idle_cells[cell] / 255;
    }
    double rounding = static_cast<double>(pool.reserved) / 255 + 1;
    CHECK(live >= static_cast<double>(pool.allocated) - 1);
    CHECK(live <= static_cast<double>(pool.allocated) * 1.02 + rounding);
    CHECK(idle <= static_cast<double>(pool.reserved - pool.used) + rounding);
  }
}

}  // namespace

TEST(the_page_agrees_with_the_c_abi) {
  PageFolder folder;
  Gpu gpu("memory:1GiB", "lora_reserve:16MiB,kv_limit:512MiB");
  Random random(7);
  void* streams[] = {nullptr, Gpu::stream(), Gpu::stream()};
  struct Block {
    void* pointer;
  };
  std::vector<Block> live;
  const int pools[] = {PYALLOC_POOL_GENERAL, PYALLOC_POOL_WEIGHTS, PYALLOC_POOL_KV, PYALLOC_POOL_WORKSPACE,
                       PYALLOC_POOL_LORA};
  for (int i = 0; i < 1200 / kSlowdown; ++i) {
    int pool = pools[random.below(5)];
    CHECK_EQ(pyalloc_push_pool(pool), PYALLOC_OK);
    void* pointer = allocate(random.bytes(12 * kMiB), streams[random.below(3)]);
    CHECK_EQ(pyalloc_pop_pool(pool), PYALLOC_OK);
    if (pointer != nullptr) live.push_back({pointer});
    while (live.size() > 60 || (!live.empty() && random.below(3) == 0)) {
      size_t which = random.below(live.size());
      CHECK_EQ(deallocate(live[which].pointer), PYALLOC_OK);
      live[which] = live.back();
      live.pop_back();
    }
    if (i % 100 == 99) {
      Page page = published();
      CHECK(!page.content.empty());
      if (!page.content.empty()) check_agrees(page);
    }
  }
  for (const Block& block : live) deallocate(block.pointer);
  CHECK(valid());
}

TEST(who_it_is_of) {
  PageFolder folder;
  Gpu gpu("memory:64MiB");
  CHECK(page_path().empty());
  CHECK_EQ(pyalloc_publish_stats_page(), PYALLOC_WRONG_STATE);  // no allocation yet
  void* block = allocate(3 * kMiB);
  Page page = published();
  CHECK(!page.content.empty());
  if (page.content.empty()) return;
  CHECK(std::memcmp(page.header().magic, PYALLOC_PAGE_MAGIC, 8) == 0);
  CHECK_EQ(page.header().version, uint32_t{PYALLOC_PAGE_VERSION});
  CHECK_EQ(page.process().pid, int64_t{getpid()});
  CHECK(page_path() == folder.folder() + "/" + std::to_string(page.process().pid_namespace) + "-" +
                           std::to_string(getpid()) + "-" + std::to_string(page.process().start_time));
  CHECK(std::strstr(page.process().program, "stats_page_test") != nullptr);
  CHECK(std::strcmp(page.process().version, pyalloc_version()) == 0);
  CHECK(page.device().name[0] != 0);
  CHECK(std::strncmp(page.device().uuid, "GPU-", 4) == 0 && std::strlen(page.device().uuid) == 40);
  CHECK(page.description().front() == '{' && page.description().back() == '}');
  struct stat facts{};
  CHECK_EQ(stat(page_path().c_str(), &facts), 0);
  CHECK_EQ(facts.st_mode & 0777, mode_t{0600});
  CHECK_EQ(stat(folder.folder().c_str(), &facts), 0);
  CHECK_EQ(facts.st_mode & 0777, mode_t{0700});
  int reader = open(page_path().c_str(), O_RDONLY);
  CHECK(flock(reader, LOCK_SH | LOCK_NB) != 0);  // its owner lives
  close(reader);
  std::string path = page_path();
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  gpu.end();
  CHECK(!exists(path));
}

TEST(the_maintenance_thread_writes_it_and_says_what_it_costs) {
  PageFolder folder;
  Gpu gpu("memory:64MiB", "maintenance:on");
  void* block = allocate(3 * kMiB);
  Page page;
  for (int i = 0; i < 3000 && (page_path().empty() || !page.load(page_path()) || page.process().publishes < 2); ++i)
    usleep(20'000);
  CHECK(page.process().publishes >= 2);
  CHECK(page.process().publish_ns > 0);
  CHECK(page.process().published_ns >= page.process().surveyed_ns);
  CHECK_EQ(page.device().allocation[PYALLOC_KIND_ALL].current, int64_t{1});
  CHECK_EQ(deallocate(block), PYALLOC_OK);
}

TEST(events_and_refusals) {
  PageFolder folder;
  Gpu gpu("memory:64MiB");
  void* block = allocate(20 * kMiB);
  CHECK(allocate(100 * kMiB) == nullptr);
  CHECK(allocate(100 * kMiB) == nullptr);  // the same again: one event
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  trim();
  CHECK_EQ(pyalloc_set_limit(0, 2 * kMiB), PYALLOC_OK);
  CHECK(allocate(30 * kMiB) == nullptr);
  Page page = published();
  CHECK_EQ(page.process().oom_capacity, int64_t{2});
  CHECK_EQ(page.process().oom_limit, int64_t{1});
  CHECK(std::strstr(page.process().last_oom, "30.00 MiB") != nullptr);
  CHECK_EQ(page.process().events, int64_t{2});
  CHECK_EQ(page.process().events_noted, int64_t{2});
  CHECK(std::strcmp(page.event(0).kind, "trim") == 0 && page.event(0).pool[0] == 0);
  CHECK(page.event(0).bytes >= static_cast<int64_t>(20 * kMiB));
  CHECK(std::strcmp(page.event(1).kind, "oom") == 0 && std::strcmp(page.event(1).pool, "general") == 0);
  CHECK_EQ(page.event(1).times, int64_t{3});
  CHECK_EQ(page.event(1).bytes, static_cast<int64_t>(230 * kMiB));
}

TEST(the_tags_that_hold_most) {
  PageFolder folder;
  Gpu gpu("memory:256MiB");
  std::vector<void*> blocks;
  for (int i = 0; i < 30; ++i) {
    uint32_t tag = 0;
    CHECK_EQ(pyalloc_push_tag((i == 29 ? std::string(200, 'x') : "request-" + std::to_string(i)).c_str(), &tag),
             PYALLOC_OK);
    blocks.push_back(allocate(static_cast<size_t>(i + 1) * 10 * kKiB));
    CHECK_EQ(pyalloc_pop_tag(tag), PYALLOC_OK);
  }
  Page page = published();
  CHECK_EQ(page.process().tags, int64_t{PYALLOC_PAGE_TAGS});
  CHECK_EQ(std::strlen(page.tag(0).name), size_t{127});  // cut
  CHECK(std::strcmp(page.tag(1).name, "request-28") == 0);
  CHECK_EQ(page.tag(1).bytes, static_cast<int64_t>(29 * 10 * kKiB));
  for (void* block : blocks) CHECK_EQ(deallocate(block), PYALLOC_OK);
  CHECK_EQ(published().process().tags, int64_t{0});
}

TEST(it_is_read_whole_while_it_is_written) {
  PageFolder folder;
  Gpu gpu("memory:256MiB", "maintenance:on");
  CHECK_EQ(deallocate(allocate(700)), PYALLOC_OK);
  CHECK_EQ(pyalloc_publish_stats_page(), PYALLOC_OK);
  std::string path = page_path();
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop) CHECK_EQ(pyalloc_publish_stats_page(), PYALLOC_OK);
  });
  std::thread user([&] {
    Gpu::use(0);
    Random random(3);
    while (!stop) CHECK_EQ(deallocate(allocate(random.bytes(8 * kMiB))), PYALLOC_OK);
  });
  int good = 0;
  int file = open(path.c_str(), O_RDONLY);
  std::vector<char> tables;
  for (int i = 0; i < 200'000 / kSlowdown && good < 500 / kSlowdown; ++i) {
    pyalloc_page_header before{}, after{};
    CHECK_EQ(pread(file, &before, sizeof before, 0), static_cast<ssize_t>(sizeof before));
    tables.resize(before.tables_bytes);
    CHECK_EQ(pread(file, tables.data(), tables.size(), before.tables_offset), static_cast<ssize_t>(tables.size()));
    CHECK_EQ(pread(file, &after, sizeof after, 0), static_cast<ssize_t>(sizeof after));
    if (before.sequence % 2 != 0 || before.sequence != after.sequence) continue;
    ++good;
    auto& device = *reinterpret_cast<pyalloc_page_device*>(tables.data() + sizeof(pyalloc_page_process));
    CHECK_EQ(device.reserved + device.shelf + device.outside + device.free, device.total);
    CHECK(device.largest_remapped >= device.largest_free);
  }
  CHECK(good > 20);
  close(file);
  stop = true;
  writer.join();
  user.join();
  CHECK(valid());
}

TEST(a_driver_that_does_not_answer) {
  for (const char* call : {"cuMemGetInfo", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid"}) {
    PageFolder folder;
    Gpu gpu("memory:64MiB");
    void* block = allocate(3 * kMiB);
    CHECK_EQ(simgpu_fail(call, 1, 0, pyalloc::cuda::kUnknown), 0);
    Page page = published();
    CHECK(simgpu_calls(call) > 0);
    simgpu_clear_faults();
    CHECK(!page.content.empty());
    if (page.content.empty()) continue;
    const pyalloc_page_device& device = page.device();
    bool info = std::strcmp(call, "cuMemGetInfo") == 0;
    for (int64_t figure : {device.free, device.outside, device.margin}) CHECK_EQ(figure == PYALLOC_PAGE_UNKNOWN, info);
    CHECK_EQ(device.name[0] != 0, info || std::strcmp(call, "cuDeviceGetUuid") == 0);
    CHECK_EQ(device.uuid[0] != 0, info || std::strcmp(call, "cuDeviceGetName") == 0);
    CHECK_EQ(device.allocation[PYALLOC_KIND_ALL].current, int64_t{1});
    if (info) CHECK(published().device().free >= 0);  // it answers again
    CHECK_EQ(deallocate(block), PYALLOC_OK);
    CHECK(valid());
  }
}

TEST(private_pools_are_one_row) {
  PageFolder folder;
  Gpu gpu("memory:256MiB");
  void* block = allocate(3 * kMiB);
  std::vector<void*> blocks;
  for (uint64_t number : {1, 2}) {
    int pool = 0;
    void* made = nullptr;
    CHECK_EQ(pyalloc_private_pool_retain(0, {0, number}, &pool), PYALLOC_OK);
    CHECK_EQ(pyalloc_allocate_in(0, pool, nullptr, PYALLOC_STREAM_OWNED, 5 * kMiB, &made), PYALLOC_OK);
    blocks.push_back(made);
  }
  Page page = published();
  auto last = static_cast<size_t>(pyalloc_pool_count());
  CHECK_EQ(page.process().pools, static_cast<int64_t>(last + 1));
  const pyalloc_page_pool& row = page.pool(last);
  CHECK(std::strcmp(row.name, "private") == 0);
  CHECK_EQ(row.blocks, int64_t{2});
  CHECK_EQ(row.allocated, static_cast<int64_t>(10 * kMiB));
  CHECK_EQ(row.peak, PYALLOC_PAGE_UNKNOWN);
  CHECK(row.cells > 0);
  int64_t reserved = 0;
  for (size_t i = 0; i <= last; ++i) reserved += page.pool(i).reserved;
  CHECK_EQ(reserved, page.device().reserved);
  for (void* one : blocks) CHECK_EQ(deallocate(one), PYALLOC_OK);
  for (uint64_t number : {1, 2}) CHECK_EQ(pyalloc_private_pool_release(0, {0, number}), PYALLOC_OK);
  trim();
  CHECK_EQ(published().process().pools, static_cast<int64_t>(last));
  CHECK_EQ(deallocate(block), PYALLOC_OK);
}

TEST(several_devices) {
  PageFolder folder;
  Gpu gpu("memory:64MiB", "", 3);
  void *first = allocate(3 * kMiB), *third = allocate(5 * kMiB, nullptr, 2);
  Page page = published();
  CHECK_EQ(page.process().devices, int64_t{2});  // those in use
  CHECK_EQ(page.process().pools, int64_t{2 * pyalloc_pool_count()});
  CHECK_EQ(page.device().device, int64_t{0});
  CHECK_EQ((&page.device())[1].device, int64_t{2});
  CHECK_EQ((&page.device())[1].allocated, static_cast<int64_t>(5 * kMiB));
  CHECK(std::strcmp((&page.device())[0].uuid, (&page.device())[1].uuid) != 0);
  void* second = allocate(700, nullptr, 1);
  CHECK_EQ(published().process().devices, int64_t{3});
  for (void* block : {first, second, third}) CHECK_EQ(deallocate(block), PYALLOC_OK);
}
