#include "facts/tag_accounts.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "base/ranked_mutex.h"

namespace pyalloc {
namespace {

constexpr size_t kLongestName = 255, kKeptFinished = 4096;
constexpr TagId kChunk = 1024, kChunks = 1024;  // so many accounts at a time, at most so many times

struct Entry {
  TagAccount account;
  std::string name;
  int64_t open = 0;
  bool listed = false;  // in `finished`
  uint64_t order = 0;   // in which tags were made
};

struct Tags {
  RankedMutex mutex{Rank::kTags};
  std::atomic<Entry*> chunks[kChunks] = {};
  std::unordered_map<std::string, TagId> by_name;
  std::vector<TagId> unused;
  std::vector<TagId> finished;  // tags whose last scope was left, in order; some have been entered again since
  TagId next = 1;
  uint64_t made = 0;
};

Tags& tags() {
  static Tags* all = new Tags;  // frees may come while the process goes down
  return *all;
}

Entry& entry(TagId id) { return tags().chunks[id / kChunk].load(std::memory_order_acquire)[id % kChunk]; }

void forget(Tags& all, TagId id) {
  Entry& one = entry(id);
  all.by_name.erase(one.name);
  one.name.clear();
  one.listed = false;
  one.account.clear();
  all.unused.push_back(id);
}

// Of the finished tags only the last are kept. Those that have live blocks, or an open scope again, stay.
void forget_finished(Tags& all, size_t kept) {
  std::vector<TagId> done, others;
  for (TagId id : all.finished) {
    Entry& one = entry(id);
    one.listed = one.open == 0;
    if (one.listed) (one.account.idle() ? done : others).push_back(id);
  }
  size_t gone = done.size() > kept ? done.size() - kept : 0;
  for (size_t i = 0; i < gone; ++i) forget(all, done[i]);
  all.finished = std::move(others);
  all.finished.insert(all.finished.end(), done.begin() + static_cast<ptrdiff_t>(gone), done.end());
}

Status make(Tags& all, const char* name, TagId& id) {
  if (all.by_name.size() >= 2 * kKeptFinished && all.made % kKeptFinished == 0) forget_finished(all, kKeptFinished);
  if (all.unused.empty() && all.next == kChunk * kChunks) {
    forget_finished(all, 0);
    if (all.unused.empty())
      return fail(PYALLOC_WRONG_STATE,
                  "%u tags have an open scope or live blocks; leave their scopes and free their blocks first",
                  all.next - 1);
  }
  if (!all.unused.empty()) {
    id = all.unused.back();
    all.unused.pop_back();
  } else {
    id = all.next++;
    std::atomic<Entry*>& chunk = all.chunks[id / kChunk];
    if (chunk.load(std::memory_order_relaxed) == nullptr) chunk.store(new Entry[kChunk], std::memory_order_release);
  }
  Entry& one = entry(id);
  one.name = name;
  one.open = 0;
  one.order = ++all.made;
  all.by_name.emplace(one.name, id);
  return kOk;
}

void read(const Entry& one, pyalloc_bill& bill) {
  one.account.read(bill);
  bill.open_scopes = one.open;
}

}  // namespace

RankedMutex& tags_mutex() { return tags().mutex; }

TagAccount& tag_account(TagId id) { return entry(id).account; }

Status open_tag(const char* name, TagId& id) {
  size_t length = std::strlen(name);
  if (length == 0 || length > kLongestName)
    return fail(PYALLOC_INVALID_ARGUMENT, "a tag of %zu bytes; expected 1 to %zu", length, kLongestName);
  Tags& all = tags();
  Lock lock(all.mutex);
  auto found = all.by_name.find(name);
  Status status = kOk;
  if (found != all.by_name.end()) {
    id = found->second;
  } else {
    status = make(all, name, id);
  }
  if (status == kOk) ++entry(id).open;
  return status;
}

void close_tag(TagId id) {
  Tags& all = tags();
  Lock lock(all.mutex);
  Entry& one = entry(id);
  if (--one.open > 0 || one.listed) return;
  one.listed = true;
  all.finished.push_back(id);
}

Status get_bill(const char* name, pyalloc_bill& bill) {
  Tags& all = tags();
  Lock lock(all.mutex);
  auto found = all.by_name.find(name);
  if (found == all.by_name.end())
    return fail(PYALLOC_INVALID_ARGUMENT,
                "no tag is named '%s': it has had no scope yet, or thousands of others have finished after it", name);
  read(entry(found->second), bill);
  return kOk;
}

std::string tag_name(TagId id) {
  Tags& all = tags();
  Lock lock(all.mutex);
  return id != kNoTag && id < all.next ? entry(id).name : std::string();
}

std::vector<NamedBill> all_bills() {
  Tags& all = tags();
  Lock lock(all.mutex);
  std::vector<TagId> ids;
  for (const auto& one : all.by_name) ids.push_back(one.second);
  std::sort(ids.begin(), ids.end(), [](TagId a, TagId b) { return entry(a).order < entry(b).order; });
  std::vector<NamedBill> found;
  for (TagId id : ids) {
    found.push_back({entry(id).name, {}});
    read(entry(id), found.back().bill);
  }
  return found;
}

std::vector<NamedBill> largest_bills(size_t most) {
  Tags& all = tags();
  Lock lock(all.mutex);
  std::vector<std::pair<int64_t, TagId>> holders;
  for (const auto& one : all.by_name) {
    pyalloc_bill bill{};
    entry(one.second).account.read(bill);
    if (bill.blocks > 0) holders.emplace_back(bill.bytes, one.second);
  }
  size_t kept = std::min(most, holders.size());
  std::partial_sort(holders.begin(), holders.begin() + static_cast<ptrdiff_t>(kept), holders.end(),
                    [](const auto& a, const auto& b) { return a > b; });
  std::vector<NamedBill> found;
  for (size_t i = 0; i < kept; ++i) {
    found.push_back({entry(holders[i].second).name, {}});
    read(entry(holders[i].second), found.back().bill);
  }
  return found;
}

void clear_tags() {
  Tags& all = tags();
  Lock lock(all.mutex);
  for (const auto& one : all.by_name) entry(one.second).account.clear();
  forget_finished(all, 0);
}

}  // namespace pyalloc
