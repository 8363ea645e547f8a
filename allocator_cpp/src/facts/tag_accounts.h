// Who pays for what: for each tag, the bytes and blocks of what was allocated in its scopes and is not freed yet, and
// their peaks, on all devices together.
//
// A tag is a name that the program chooses, such as a request's. It exists from its first scope on; once all its scopes
// are left and its blocks freed it is finished; the last 4,096 of the finished are kept at least. Blocks carry the tag's
// id, which is given to another tag only once the tag is forgotten.
//
// Charging and discharging take no lock (the block's own lock is held, or nobody else knows the block yet); names and
// scopes have one of their own, taken inside no other but the registry's.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/status.h"

namespace pyalloc {

using TagId = uint32_t;
constexpr TagId kNoTag = 0;

class TagAccount {
 public:
  void charge(int64_t requested) {
    allocations_.fetch_add(1, std::memory_order_relaxed);
    raise(peak_bytes_, bytes_.fetch_add(requested, std::memory_order_relaxed) + requested);
    raise(peak_blocks_, blocks_.fetch_add(1, std::memory_order_relaxed) + 1);
  }
  void discharge(int64_t requested) {
    bytes_.fetch_sub(requested, std::memory_order_relaxed);
    blocks_.fetch_sub(1, std::memory_order_relaxed);
  }
  bool idle() const { return blocks_.load(std::memory_order_relaxed) == 0; }
  void clear() {
    for (auto* one : {&bytes_, &peak_bytes_, &blocks_, &peak_blocks_, &allocations_}) one->store(0);
  }
  void read(pyalloc_bill& bill) const {
    bill.bytes = bytes_.load(std::memory_order_relaxed);
    bill.peak_bytes = peak_bytes_.load(std::memory_order_relaxed);
    bill.blocks = blocks_.load(std::memory_order_relaxed);
    bill.peak_blocks = peak_blocks_.load(std::memory_order_relaxed);
    bill.allocations = allocations_.load(std::memory_order_relaxed);
  }

 private:
  static void raise(std::atomic<int64_t>& peak, int64_t now) {
    int64_t seen = peak.load(std::memory_order_relaxed);
    while (now > seen && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
    }
  }
  std::atomic<int64_t> bytes_{0}, peak_bytes_{0}, blocks_{0}, peak_blocks_{0}, allocations_{0};
};

// The account of a tag that has a scope open or a block live.
TagAccount& tag_account(TagId id);

// A scope of `name` begins; the tag is made if there is none.
Status open_tag(const char* name, TagId& id);
void close_tag(TagId id);
// Refused for a name that is not, or no longer, known.
Status get_bill(const char* name, pyalloc_bill& bill);
std::string tag_name(TagId id);  // empty: not, or no longer, known
struct NamedBill {
  std::string name;
  pyalloc_bill bill;
};
std::vector<NamedBill> all_bills();  // oldest first
// At most `most` tags, of those with live blocks the ones that hold the most bytes, largest first.
std::vector<NamedBill> largest_bills(size_t most);
// Every block is gone (shutdown): the accounts begin again, tags without a scope are forgotten.
void clear_tags();
RankedMutex& tags_mutex();  // for a fork

}  // namespace pyalloc
