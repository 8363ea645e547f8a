// The last so many of something, oldest first. No lock: its user has one.
#pragma once
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace pyalloc_bridge {

template <class T>
class Ring {
 public:
  // At least 1. What is older than the newest `most` is forgotten.
  void keep(size_t most) {
    std::vector<T> all = in_order();
    most_ = std::max<size_t>(most, 1);
    if (all.size() > most_) all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(most_));
    all_ = std::move(all);
    oldest_ = 0;
  }
  void push(T one) {
    if (all_.size() < most_) {
      all_.push_back(std::move(one));
      return;
    }
    all_[oldest_] = std::move(one);
    oldest_ = (oldest_ + 1) % most_;
  }
  void clear() {
    all_ = {};
    oldest_ = 0;
  }
  std::vector<T> in_order() const {
    std::vector<T> copy(all_.begin() + static_cast<std::ptrdiff_t>(oldest_), all_.end());
    copy.insert(copy.end(), all_.begin(), all_.begin() + static_cast<std::ptrdiff_t>(oldest_));
    return copy;
  }

 private:
  std::vector<T> all_;
  size_t most_ = 1, oldest_ = 0;  // the oldest is not the first only once there are `most_`
};

}  // namespace pyalloc_bridge
