#include "view/stats_page.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "base/clock.h"
#include "base/log.h"
#include "facts/event_log.h"
#include "facts/tag_accounts.h"
#include "heap/pool_names.h"
#include "view/process_identity.h"

namespace pyalloc {
namespace {

constexpr int64_t kLeastPause_ns = 100'000'000, kLeastSurveyPause_ns = 2'000'000'000;
// So many times what a publish took passes until the next, and the same for a survey: 0.05 % of a core each.
constexpr int64_t kPausePerCost = 2000;
constexpr size_t kTableAlignment = 64;

int64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Cut between characters where it is too long.
template <size_t kBytes>
void set_text(char (&to)[kBytes], const std::string& text) {
  size_t length = std::min(text.size(), kBytes - 1);
  if (length < text.size())
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) --length;
  std::memcpy(to, text.data(), length);
  std::memset(to + length, 0, kBytes - length);
}

// A part of a whole as 0 to 255; only nothing is 0.
uint8_t share_of(uint64_t part, uint64_t whole) {
  return static_cast<uint8_t>(std::min<uint64_t>(255, (part * 255 + whole - 1) / whole));
}

void set_cells(pyalloc_page_pool& to, const std::vector<SurveyedSlot>& slots, size_t granule_bytes) {
  size_t in_cell = std::max<size_t>(1, (slots.size() + PYALLOC_PAGE_CELL_COUNT - 1) / PYALLOC_PAGE_CELL_COUNT);
  to.cell_bytes = static_cast<int64_t>(in_cell * granule_bytes);
  to.cells = 0;
  for (size_t first = 0; first < slots.size(); first += in_cell) {
    size_t end = std::min(first + in_cell, slots.size());
    uint64_t live = 0, idle = 0;
    for (size_t at = first; at < end; ++at) {
      live += slots[at].live;
      idle += slots[at].idle;
    }
    to.live_cells[to.cells] = share_of(live, (end - first) * granule_bytes);
    to.idle_cells[to.cells] = share_of(idle, end - first);
    ++to.cells;
  }
}

void set_device_names(pyalloc_page_device& to, int ordinal) {
  cuda::Device device = 0;
  if (driver().device_get(&device, ordinal) != cuda::kSuccess) return;
  char name[sizeof to.name] = "";
  if (driver().device_name != nullptr &&
      driver().device_name(name, static_cast<int>(sizeof name), device) == cuda::kSuccess)
    set_text(to.name, name);
  unsigned char uuid[16] = {};
  if (driver().device_uuid == nullptr || driver().device_uuid(uuid, device) != cuda::kSuccess) return;
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    constexpr const char* kHex = "0123456789abcdef";
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += {kHex[uuid[i] >> 4], kHex[uuid[i] & 15]};
  }
  set_text(to.uuid, text);
}

}  // namespace

void StatsPage::publish_when_due(const std::vector<DeviceHeap*>& heaps, int devices, Ladder& ladder) {
  Lock lock(mutex_);
  int64_t now = clock_ns(CLOCK_MONOTONIC);
  if (heaps.empty() || !failure_.empty() || now < next_ns_) return;
  if (tables_.empty()) prepare(devices);
  write(heaps, ladder, now >= next_survey_ns_);
}

Status StatsPage::publish(const std::vector<DeviceHeap*>& heaps, int devices, Ladder& ladder) {
  Lock lock(mutex_);
  if (heaps.empty()) return fail(PYALLOC_WRONG_STATE, "there is no stats page before the first allocation on a device");
  if (tables_.empty()) prepare(devices);
  if (failure_.empty()) write(heaps, ladder, true);
  return file_.is_open() ? kOk : fail(PYALLOC_WRONG_STATE, "there is no stats page: %s", failure_.c_str());
}

std::string StatsPage::path() {
  Lock lock(mutex_);
  return file_.is_open() ? file_.path() : "";
}

void StatsPage::close() {
  Lock lock(mutex_);
  take_away();
}

void StatsPage::end() {
  Lock lock(mutex_);
  take_away();
  failure_ = "the process is exiting";
}

void StatsPage::take_away() {
  file_.remove();
  failure_.clear();
  tables_.clear();
  surveyed_.clear();
  next_ns_ = next_survey_ns_ = 0;
}

void StatsPage::abandon() {
  file_.leave();
  tables_.clear();
  surveyed_.clear();
  next_ns_ = next_survey_ns_ = 0;
}

void StatsPage::give_up(const std::string& why) {
  failure_ = why;
  file_.remove();
  log_line("no stats page for pyalloc-top: %s; stats_page:off says that none is wanted", why.c_str());
}

void StatsPage::prepare(int devices) {
  layout_ = PageLayout(static_cast<size_t>(devices));
  auto described = static_cast<uint32_t>(layout_.description().size());
  header_ = {};
  std::memcpy(header_.magic, PYALLOC_PAGE_MAGIC, sizeof header_.magic);
  header_.version = PYALLOC_PAGE_VERSION;
  header_.header_bytes = sizeof header_;
  header_.layout_offset = sizeof header_;
  header_.layout_bytes = described;
  header_.tables_offset = static_cast<uint32_t>(align_up(sizeof header_ + described, kTableAlignment));
  header_.tables_bytes = static_cast<uint32_t>(layout_.bytes);
  header_.page_bytes = uint64_t{header_.tables_offset} + header_.tables_bytes;
  tables_.assign(layout_.bytes, 0);
  surveyed_.assign(static_cast<size_t>(devices), {});
  ProcessIdentity self = process_identity();
  process().pid = static_cast<int64_t>(self.pid);
  process().pid_namespace = static_cast<int64_t>(self.pid_namespace);
  process().start_time = static_cast<int64_t>(self.start_time);
  process().opened_ms = unix_ms();
  set_text(process().program, command_line());
  set_text(process().version, pyalloc_version());
}

// The first time, the file with all that it holds; later the tables alone.
void StatsPage::copy_to_file() {
  if (!file_.is_open()) {
    std::string content(header_.page_bytes, '\0'), description = layout_.description(), why;
    std::memcpy(content.data(), &header_, sizeof header_);
    std::memcpy(content.data() + header_.layout_offset, description.data(), description.size());
    std::memcpy(content.data() + header_.tables_offset, tables_.data(), tables_.size());
    if (!file_.create(content, why)) give_up(why);
    return;
  }
  auto write_sequence = [&] {
    ++header_.sequence;
    return file_.write(offsetof(pyalloc_page_header, sequence), &header_.sequence, sizeof header_.sequence);
  };
  size_t used = layout_.pool.offset + static_cast<size_t>(process().pools) * layout_.pool.stride;
  bool written = write_sequence() && file_.write(header_.tables_offset, tables_.data(), used) && write_sequence();
  if (!written) give_up("cannot write " + file_.path() + ": " + std::strerror(errno));
}

void StatsPage::write(const std::vector<DeviceHeap*>& heaps, Ladder& ladder, bool with_survey) {
  int64_t began = clock_ns(CLOCK_THREAD_CPUTIME_ID);
  if (with_survey) {
    for (DeviceHeap* heap : heaps) survey(*heap);
    add_tags();
  }
  int64_t surveyed = clock_ns(CLOCK_THREAD_CPUTIME_ID);
  process().devices = process().pools = 0;
  for (DeviceHeap* heap : heaps) add_device(*heap);
  add_events();
  add_process(ladder, with_survey);
  copy_to_file();
  int64_t done = clock_ns(CLOCK_THREAD_CPUTIME_ID), now = clock_ns(CLOCK_MONOTONIC);
  process().publishes += 1;  // seen with the next
  process().publish_ns += done - began;
  next_ns_ = now + std::max(kLeastPause_ns, (done - surveyed) * kPausePerCost);
  if (with_survey) next_survey_ns_ = now + std::max(kLeastSurveyPause_ns, (surveyed - began) * kPausePerCost);
}

void StatsPage::survey(DeviceHeap& heap) {
  auto ordinal = static_cast<size_t>(heap.device());
  if (ordinal >= surveyed_.size()) return;
  Surveyed& known = surveyed_[ordinal];
  if (known.pools.empty()) {
    known.pools.resize(kPagePools);
    set_device_names(known.device, heap.device());
  }
  auto found = std::make_unique<DeviceSurvey>();
  pyalloc_ledger ledger{};
  std::vector<pyalloc_pool_stats> pools(pool_count());
  pyalloc_pool_stats private_pools{};
  heap.get_figures(ledger, pools, private_pools);
  heap.survey(*found);
  known.device.surveyed_free = ledger.reserved - ledger.allocated - ledger.set_aside;
  known.device.largest_free = found->largest_free;
  known.device.largest_remapped = found->largest_remapped;
  auto set = [&](pyalloc_page_pool& to, const PoolSurvey& pool, const pyalloc_pool_stats& stats) {
    to.largest_free = pool.largest_free;
    to.largest_remapped = pool.largest_remapped;
    to.surveyed_free = stats.reserved - stats.allocated;
    to.segments = pool.segments;
    set_cells(to, pool.slots, found->granule_bytes);
  };
  for (PoolId id = 0; id < pools.size(); ++id) set(known.pools[id], found->pools[id], pools[id]);
  set(known.pools[kPrivatePoolsOnPage], found->private_pools, private_pools);
  std::map<uint64_t, int64_t> sizes;
  heap.add_escapes(sizes);
  known.device.escapes = 0;
  for (const auto& size : sizes) known.device.escapes += size.second;
  if (heap.outside_bytes(known.device.outside) != kOk) known.device.outside = PYALLOC_PAGE_UNKNOWN;
}

void StatsPage::add_device(DeviceHeap& heap) {
  auto ordinal = static_cast<size_t>(heap.device());
  if (ordinal >= surveyed_.size()) return;  // init came later, with fewer devices
  if (surveyed_[ordinal].pools.empty()) survey(heap);
  const Surveyed& known = surveyed_[ordinal];
  pyalloc_ledger ledger{};
  std::vector<pyalloc_pool_stats> pools(pool_count());
  pyalloc_pool_stats private_pools{};
  heap.get_figures(ledger, pools, private_pools);
  ledger.largest_free = known.device.largest_free;
  ledger.largest_remapped = known.device.largest_remapped;
  // Who else holds memory changes slowly: what is free now follows from it.
  if (known.device.outside == PYALLOC_PAGE_UNKNOWN) {
    ledger.outside = ledger.free = ledger.margin = PYALLOC_PAGE_UNKNOWN;
  } else {
    int64_t others = ledger.total - ledger.reserved - ledger.shelf;
    ledger.outside = std::min(known.device.outside, others);
    ledger.free = others - ledger.outside;
    ledger.margin = DeviceHeap::margin_of(ledger);
  }
  pyalloc_device_stats stats{};
  heap.get_stats(stats);

  auto& device = record<pyalloc_page_device>(layout_.device, static_cast<size_t>(process().devices++));
  device = known.device;
  device.device = heap.device();
#define PYALLOC_STAT_GROUP(name, unit, help) std::memcpy(device.name, stats.name, sizeof device.name);
#define PYALLOC_STAT_VALUE(name, kind, unit, help) device.name = stats.name;
#include "pyalloc/stat_fields.def"
#undef PYALLOC_STAT_GROUP
#undef PYALLOC_STAT_VALUE
#define PYALLOC_LEDGER_FIELD(name, unit, help) device.name = ledger.name;
#include "pyalloc/ledger_fields.def"
#undef PYALLOC_LEDGER_FIELD
  for (PoolId id = 0; id < pools.size(); ++id) add_pool(heap.device(), id, pool_name(id), pools[id]);
  if (private_pools.reserved > 0 || private_pools.asleep > 0)
    add_pool(heap.device(), kPrivatePoolsOnPage, "private", private_pools);
}

void StatsPage::add_pool(int device, size_t number, const char* name, const pyalloc_pool_stats& stats) {
  const pyalloc_page_pool& known = surveyed_[static_cast<size_t>(device)].pools[number];
  auto& pool = record<pyalloc_page_pool>(layout_.pool, static_cast<size_t>(process().pools++));
  pool = known;
  pool.device = device;
  pool.pool = static_cast<int64_t>(number);
  set_text(pool.name, name);
#define PYALLOC_POOL_FIELD(field, kind, unit, help) pool.field = stats.field;
#include "pyalloc/pool_fields.def"
#undef PYALLOC_POOL_FIELD
  pool.largest_free = known.largest_free;
  pool.largest_remapped = known.largest_remapped;
}

void StatsPage::add_tags() {
  process().tags = 0;
  for (const NamedBill& one : largest_bills(layout_.tag.capacity)) {
    auto& tag = record<pyalloc_page_tag>(layout_.tag, static_cast<size_t>(process().tags++));
    set_text(tag.name, one.name);
#define PYALLOC_TAG_FIELD(name, unit, help) tag.name = one.bill.name;
#include "pyalloc/tag_fields.def"
#undef PYALLOC_TAG_FIELD
  }
}

void StatsPage::add_events() {
  process().events = 0;
  for (const MemoryEvent& one : last_events(process().events_noted)) {
    auto& event = record<pyalloc_page_event>(layout_.event, static_cast<size_t>(process().events++));
    event.unix_ms = one.unix_ms;
    set_text(event.kind, event_name(one.kind));
    event.device = one.device;
    set_text(event.pool, one.pool == kNoEventPool ? "" : pool_name(static_cast<PoolId>(one.pool)));
    event.bytes = one.bytes;
    event.times = one.times;
  }
}

void StatsPage::add_process(Ladder& ladder, bool with_survey) {
  int64_t counts[kReasons];
  set_text(process().last_oom, ladder.summary(counts));
  process().oom_capacity = counts[kCapacity];
  process().oom_limit = counts[kLimit];
  process().oom_fragmentation = counts[kFragmentation];
  process().oom_pinned = counts[kPinned];
  process().published_ms = unix_ms();
  process().published_ns = clock_ns(CLOCK_MONOTONIC);
  if (with_survey) process().surveyed_ns = process().published_ns;
}

}  // namespace pyalloc
