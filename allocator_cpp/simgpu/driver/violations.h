// The rules of the driver that this process broke, as texts, oldest first. Locked by the simulation's mutex.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace simgpu {

class Violations {
 public:
  // printf-like; kept up to a bound, counted beyond it.
  void add(const char* format, ...) __attribute__((format(printf, 2, 3)));
  int64_t count() const { return count_; }
  const std::string* text(int64_t i) const { return i >= 0 && i < int64_t(texts_.size()) ? &texts_[i] : nullptr; }
  void clear() {
    texts_.clear();
    count_ = 0;
  }

 private:
  std::vector<std::string> texts_;
  int64_t count_ = 0;
};

}  // namespace simgpu
