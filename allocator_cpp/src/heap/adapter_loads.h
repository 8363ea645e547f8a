// What loads of LoRA adapters need: a load is all that a thread allocates in one outermost scope of the lora pool. How
// much that will be is not known when it begins, but adapters come again: loads that begin with a block of one size are
// of one kind. A kind that overflowed lately, and whose smallest load of late is more than the reserve has free, goes
// elsewhere whole, so that it leaves the reserve to those who fit and no pieces when it goes. A kind of which little is
// known, or that once needed less, is tried as if nothing were known.
//
// Of kinds only the last kRemembered loads count. Guarded by the heap's lock; used by DeviceHeap (reserve.cpp).
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace pyalloc {

class AdapterLoads {
 public:
  struct Load {
    std::thread::id thread;
    uint64_t first = 0, bytes = 0;
    bool overflowed = false, elsewhere = false;
  };
  // The one that the calling thread is at, or null.
  Load* current() {
    auto found = std::find_if(open_.begin(), open_.end(), of_this_thread);
    return found == open_.end() ? nullptr : &*found;
  }
  Load& begin(uint64_t first) {
    if (open_.size() == kMostOpen) open_.erase(open_.begin());  // of threads that ended in their scopes
    open_.push_back({std::this_thread::get_id(), first});
    return open_.back();
  }
  void end() {
    Load* load = current();
    if (load == nullptr) return;
    if (load->bytes > 0) remember(*load);
    open_.erase(open_.begin() + (load - open_.data()));
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
  static bool of_this_thread(const Load& load) { return load.thread == std::this_thread::get_id(); }

  void remember(const Load& load) {
    auto kind = std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& one) { return one.first == load.first; });
    if (kind == kinds_.end()) {
      if (kinds_.size() == kMostKinds) kinds_.erase(kinds_.begin());
      kind = kinds_.insert(kinds_.end(), Kind{load.first});
    }
    kind->bytes[kind->loads % kRemembered] = load.bytes;
    kind->overflowed[kind->loads % kRemembered] = load.overflowed;
    ++kind->loads;
  }

  std::vector<Load> open_;
  std::vector<Kind> kinds_;
};

}  // namespace pyalloc
