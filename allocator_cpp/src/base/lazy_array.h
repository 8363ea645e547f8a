// A large array of plain, zero-initialised records whose memory the kernel provides as it is touched. The books of an
// address space are sized for all of it, while only the part in use costs memory. Not thread-safe; its owner's lock
// guards it.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <type_traits>

#include "base/check.h"

namespace pyalloc {

template <class T>
class LazyArray {
  static_assert(std::is_trivially_copyable_v<T>, "records are zero-filled by the kernel");

 public:
  LazyArray() = default;
  ~LazyArray() {
    if (data_ != nullptr) ::munmap(data_, count_ * sizeof(T));
  }
  LazyArray(const LazyArray&) = delete;
  LazyArray& operator=(const LazyArray&) = delete;

  // False when the host has no address space left.
  bool create(size_t count) {
    PYALLOC_ASSERT(data_ == nullptr);
    void* memory =
        ::mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    // Large books in full use are read at random: huge pages spare the address translation. The first part stays in
    // small pages, so that books in little use cost little.
    if (count * sizeof(T) > kSmallPart)
      ::madvise(static_cast<char*>(memory) + kSmallPart, count * sizeof(T) - kSmallPart, MADV_HUGEPAGE);
    data_ = static_cast<T*>(memory);
    count_ = count;
    return true;
  }

  T& operator[](size_t index) {
    PYALLOC_ASSERT(index < count_);
    return data_[index];
  }
  const T& operator[](size_t index) const {
    PYALLOC_ASSERT(index < count_);
    return data_[index];
  }
  size_t size() const { return count_; }

 private:
  static constexpr size_t kSmallPart = size_t{2} << 20;

  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace pyalloc
