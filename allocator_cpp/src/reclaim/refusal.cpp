#include "reclaim/refusal.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/bits.h"
#include "heap/pool_names.h"

namespace pyalloc {
namespace {

std::string human(int64_t bytes) {
  char text[32];
  if (bytes >= static_cast<int64_t>(kGiB)) {
    std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / static_cast<double>(kGiB));
  } else if (bytes >= static_cast<int64_t>(kMiB)) {
    std::snprintf(text, sizeof text, "%.2f MiB", static_cast<double>(bytes) / static_cast<double>(kMiB));
  } else {
    std::snprintf(text, sizeof text, "%lld bytes", static_cast<long long>(bytes));
  }
  return text;
}

std::string share(int64_t part, int64_t whole) {
  char text[16];
  std::snprintf(text, sizeof text, "%.3f", whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0);
  return text;
}

struct Snapshot {
  pyalloc_ledger whole{};
  std::vector<pyalloc_pool_stats> pools;
  pyalloc_pool_stats private_pools{};
};

// Of what is allocated, what lies in memory: granules sleep, so that a pool's are more than its blocks.
int64_t awake(const pyalloc_pool_stats& pool) { return std::max<int64_t>(0, pool.allocated - pool.asleep); }
int64_t awake(const Snapshot& now) {
  int64_t sum = awake(now.private_pools);
  for (const pyalloc_pool_stats& pool : now.pools) sum += awake(pool);
  return sum;
}

// What a limit refuses although what is set aside would do is pinned too: the limit was meant, the reserve perhaps not.
Reason reason_of(DeviceHeap& heap, const std::string& why, const Refusal& one, const Snapshot& now) {
  if (heap.refused_by_pool() != kNoPool || why == DeviceHeap::kReserveFull) return kLimit;
  const pyalloc_ledger& whole = now.whole;
  auto wanted = static_cast<int64_t>(one.bytes);
  int64_t to_create = std::min(whole.free, std::max<int64_t>(0, whole.limit - whole.reserved - whole.shelf));
  int64_t there_is = to_create + whole.shelf + whole.reserved - awake(now);
  bool may_use_reserve = one.pool == PYALLOC_POOL_LORA && one.asked != Asked::kReserve;
  bool in_pieces = there_is - (may_use_reserve ? 0 : whole.set_aside) >= wanted;
  if (!in_pieces && there_is >= wanted) return kPinned;
  if (heap.refused_by_limit()) return kLimit;
  return in_pieces ? kFragmentation : kCapacity;
}

std::string padded(const std::string& text, size_t width, bool right = false) {
  std::string blanks(width > text.size() ? width - text.size() : 0, ' ');
  return right ? blanks + text : text + blanks;
}

// A line for each pool that has memory or a limit, of many those with most: the error text has an end.
std::string of_pools(const Snapshot& now) {
  constexpr size_t kMostLines = 16;
  std::vector<std::pair<std::string, pyalloc_pool_stats>> pools;
  for (size_t id = 0; id < now.pools.size(); ++id) {
    const pyalloc_pool_stats& pool = now.pools[id];
    if (pool.blocks != 0 || pool.reserved != 0 || pool.asleep != 0 || pool.limit != 0)
      pools.emplace_back(pool_name(static_cast<PoolId>(id)), pool);
  }
  if (now.private_pools.reserved > 0 || now.private_pools.asleep > 0)
    pools.emplace_back("private (MemPool, CUDA graphs)", now.private_pools);
  size_t left_out = pools.size() > kMostLines ? pools.size() - kMostLines : 0;
  if (left_out > 0) {
    auto holds = [](const auto& one) { return one.second.reserved + one.second.asleep; };
    std::stable_sort(pools.begin(), pools.end(),
                     [&](const auto& one, const auto& other) { return holds(one) > holds(other); });
    pools.resize(kMostLines);
  }
  size_t width = 0;
  for (const auto& [name, pool] : pools) width = std::max(width, name.size());
  std::string text;
  for (const auto& [name, pool] : pools) {
    text += "\n  " + padded(name, width) + padded(human(awake(pool)), 12, true) + " allocated," +
            padded(human(pool.reserved), 12, true) + " reserved";
    if (pool.limit != 0) text += ", limit " + human(pool.limit);
    if (pool.asleep > 0) text += ", " + human(pool.asleep) + " asleep";
    if (pool.reserve > 0 && name == pool_name(PYALLOC_POOL_LORA))
      text += ", " + human(pool.reserve) + " for adapters alone";
  }
  if (left_out > 0) text += "\n  and " + std::to_string(left_out) + " more with less";
  return text.empty() ? "" : "\nPools:" + text;
}

std::string of_fragmentation(const Snapshot& now) {
  const pyalloc_ledger& whole = now.whole;
  int64_t free = whole.reserved - awake(now) - whole.set_aside;
  if (free <= 0) return "";
  return "\nFragmentation: external " + share(free - whole.largest_free, free) + ", after moving what is idle " +
         share(free - whole.largest_remapped, free) + ", in partly used granules " +
         share(std::max<int64_t>(0, whole.used - awake(now) - whole.set_aside), whole.reserved) + " of reserved.";
}

std::string of_rungs(const Refusal& one) {
  static const char* const what[] = {
#define RUNG(name, text) text,
#include "reclaim/rungs.def"
#undef RUNG
  };
  std::string gave, nothing;
  for (int rung = 0; rung < kRungs; ++rung) {
    std::string& text = one.freed[rung] > 0 ? gave : nothing;
    text += (text.empty() ? "" : ", ") + std::string(what[rung]);
    if (one.freed[rung] > 0) text += " " + human(static_cast<int64_t>(one.freed[rung]));
  }
  if (!gave.empty() && !nothing.empty()) gave += "; ";
  return "\nTried, and got: " + gave + (nothing.empty() ? "" : "nothing from " + nothing) + ".";
}

constexpr const char* kRaiseTheLimit =
    "raise the limit (PYALLOC_CONF limit or memory_fraction, torch.cuda.set_per_process_memory_fraction)";

std::string next_step(DeviceHeap& heap, const std::string& why, const Refusal& one, const Snapshot& now) {
  if (PoolId pool = heap.refused_by_pool(); pool != kNoPool) {
    std::string name = pool_name(pool);
    return "raise the limit of the pool '" + name + "' (" +
           (pool <= PYALLOC_POOL_LORA ? "PYALLOC_CONF " + name + "_limit, or " : std::string()) +
           "pyalloc.create_pool), or free memory in it" +
           (one.asked == Asked::kReserve ? "; or prepare for less." : ".");
  }
  if (why == DeviceHeap::kReserveFull)
    return "raise lora_reserve, call pyalloc.lora_prepare before the load, or let it overflow "
           "(lora_overflow:general).";
  if (one.asked == Asked::kReserve && one.reason != kPinned)
    return "pyalloc.lora_prepare wants it before the load: prepare for less, or free memory first" +
           (one.reason == kLimit ? "; or " + std::string(kRaiseTheLimit) + "." : ".");
  if (one.reason == kLimit) return std::string(kRaiseTheLimit) + ", or free memory.";
  if (one.reason == kPinned) {
    const pyalloc_pool_stats& lora = now.pools[PYALLOC_POOL_LORA];
    std::string or_more = heap.refused_by_limit() ? "; or " + std::string(kRaiseTheLimit) + "." : ".";
    int64_t of_private = now.whole.set_aside - std::max<int64_t>(0, lora.reserve - lora.allocated);
    if (of_private > now.whole.set_aside / 2)
      return human(of_private) +
             " are free in private pools: delete each torch.cuda.MemPool and CUDA graph that is no longer used, or "
             "give a MemPool use_on_oom=True" +
             or_more;
    return human(now.whole.set_aside) +
           " are set aside for LoRA adapters: lower lora_reserve, or end what pyalloc.lora_prepare set aside "
           "(pyalloc.lora_prepare(0))" +
           or_more;
  }
  if (one.asked == Asked::kWake) return "free memory.";
  if (one.reason == kFragmentation)
    return "memory that lives long keeps pieces of it in use: keep it apart (pyalloc.pool), or free some of it.";
  if (awake(now) + static_cast<int64_t>(one.bytes) > now.whole.total)
    return "the program needs more than the device has: use smaller batches or shorter caches.";
  return "free tensors that are no longer needed, or stop other processes that use this GPU.";
}

}  // namespace

const char* rung_name(int rung) {
  static const char* const names[] = {
#define RUNG(name, what) #name,
#include "reclaim/rungs.def"
#undef RUNG
  };
  return names[rung];
}

const char* reason_name(int reason) {
  static const char* const names[kReasons] = {"capacity", "limit", "fragmentation", "pinned"};
  return names[reason];
}

// A few lines to be scanned: what was asked, why not, who has what, what was tried, and last, where a traceback ends,
// what to do. The first is torch's own, word for word, for retry handlers and whatever else looks for it.
void explain(DeviceHeap& heap, const std::string& why, Refusal& one) {
  Snapshot now;
  now.pools.resize(pool_count());
  // Should the driver refuse to say, all is zero.
  heap.get_ledger(now.whole, now.pools.data(), pool_count(), now.private_pools);
  const pyalloc_ledger& whole = now.whole;
  one.device_free = static_cast<uint64_t>(whole.free);
  one.reason = reason_of(heap, why, one, now);
  std::string text = "CUDA out of memory. Tried to allocate " + human(static_cast<int64_t>(one.bytes)) + ". GPU " +
                     std::to_string(heap.device()) + " has a total capacity of " +
                     human(static_cast<int64_t>(heap.total_bytes())) + " of which " + human(whole.free) +
                     " is free.\nReason: " + reason_name(one.reason) + ", " + why + ".\npyalloc has " +
                     human(awake(now)) + " allocated and " + human(whole.reserved) + " reserved";
  if (whole.limit < whole.total) text += " of the " + human(whole.limit) + " it is limited to";
  if (whole.asleep > 0) text += ", " + human(whole.asleep) + " are asleep (pyalloc.sleep)";
  text += ", " + human(whole.outside) + " are outside it; the largest free piece of what is reserved is " +
          human(whole.largest_free) + ".";
  one.message =
      text + of_pools(now) + of_fragmentation(now) + of_rungs(one) + "\nNext step: " + next_step(heap, why, one, now);
  if (one.asked == Asked::kWake)
    one.message += " Then call pyalloc.wake() again; until then the pools sleep on, and nothing is lost.";
}

}  // namespace pyalloc
