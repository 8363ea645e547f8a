// What loads of LoRA adapters need: a load is all that a thread allocates in one outermost scope of the lora pool. How
// much that will be is not known when it begins, but adapters come again: loads that begin with a block of one size are
// of one kind. A kind that overflowed lately, and whose smallest load of late is more than the reserve has free, goes
// elsewhere whole, so that it leaves the reserve to those who fit and no pieces when it goes. A kind of which little is
// known, or that once needed less, is tried as if nothing were known.
//
// A load needs the most that it holds at a time, as far as that is seen: what it gives back to the reserve is taken off,
// what it frees elsewhere is not. So a load that goes elsewhere may teach that its kind needs less, never more.
//
// Of kinds only the last kRemembered loads count. Guarded by the heap's lock; used by DeviceHeap (reserve.cpp).
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pyalloc {

class AdapterLoads {
 public:
  struct Load {
    uint64_t thread = 0, first = 0;
    uint64_t bytes = 0, most = 0;  // held now, and the most of that
    uint64_t known = UINT64_MAX;   // what its kind was known to need, of one that goes elsewhere
    bool overflowed = false;
    bool elsewhere() const { return known != UINT64_MAX; }
  };
  // The one that the calling thread is at, or null.
  Load* current() {
    auto found = std::find_if(open_.begin(), open_.end(), of_this_thread);
    return found == open_.end() ? nullptr : &*found;
  }
  Load& begin(uint64_t first) {
    if (open_.size() == kMostOpen) open_.erase(open_.begin());  // of threads that ended in their scopes
    open_.push_back({this_thread(), first});
    return open_.back();
  }
  void end(bool teaches = true) {
    Load* load = current();
    if (load == nullptr) return;
    if (teaches && load->most > 0) remember(*load);
    open_.erase(open_.begin() + (load - open_.data()));
  }
  // The calling thread got a block of the pool; it gave one back to the reserve.
  void took(uint64_t bytes, bool overflowed = false) {
    Load* load = current();
    if (load == nullptr) return;
    load->most = std::max(load->most, load->bytes += bytes);
    load->overflowed = load->overflowed || overflowed;
  }
  void gave_back(uint64_t bytes) {
    if (Load* load = current()) load->bytes -= std::min(load->bytes, bytes);
  }
  // What loads beginning with such a block need at least, once one has overflowed; 0: nothing is known.
  uint64_t need(uint64_t first) const {
    for (const Kind& kind : kinds_) {
      if (kind.first != first) continue;
      uint64_t least = UINT64_MAX;
      bool overflowed = false;
      for (size_t i = 0; i < std::min(kind.loads, kRemembered); ++i) {
        least = std::min(least, kind.bytes[i]);
        overflowed = overflowed || kind.overflowed[i];
      }
      return overflowed ? least : 0;
    }
    return 0;
  }
  bool validate(std::string& reason) const {
    for (auto one = open_.begin(); one != open_.end(); ++one)
      for (auto other = open_.begin(); other != one; ++other)
        if (one->thread == other->thread) return reason = "adapter loads: two of one thread", false;
    for (auto one = kinds_.begin(); one != kinds_.end(); ++one) {
      if (one->loads == 0) return reason = "adapter loads: a kind without a load", false;
      for (auto other = kinds_.begin(); other != one; ++other)
        if (one->first == other->first) return reason = "adapter loads: a kind twice", false;
    }
    if (open_.size() > kMostOpen || kinds_.size() > kMostKinds) return reason = "adapter loads: too many", false;
    return true;
  }

 private:
  static constexpr size_t kMostOpen = 64, kMostKinds = 64, kRemembered = 4;
  struct Kind {
    uint64_t first = 0;
    size_t loads = 0;  // ever
    uint64_t bytes[kRemembered] = {};
    bool overflowed[kRemembered] = {};
  };
  // A number that no other thread had, as std::thread::id may be of one that ended in its scope.
  static uint64_t this_thread() {
    static std::atomic<uint64_t> threads{0};
    thread_local const uint64_t number = ++threads;
    return number;
  }
  static bool of_this_thread(const Load& load) { return load.thread == this_thread(); }

  void remember(const Load& load) {
    auto kind = std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& one) { return one.first == load.first; });
    if (kind == kinds_.end()) {
      if (kinds_.size() == kMostKinds) kinds_.erase(kinds_.begin());
      kind = kinds_.insert(kinds_.end(), Kind{load.first});
    }
    kind->bytes[kind->loads % kRemembered] = std::min(load.most, load.known);
    kind->overflowed[kind->loads % kRemembered] = load.overflowed;
    ++kind->loads;
  }

  std::vector<Load> open_;
  std::vector<Kind> kinds_;
};

}  // namespace pyalloc
