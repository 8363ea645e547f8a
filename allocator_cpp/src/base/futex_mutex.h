// A mutex of one word for locks that are nearly always free: one compare-and-swap to take it, one exchange to leave it, the kernel only
// when threads meet. std::mutex costs a library call each way, which the hot path would feel.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace pyalloc {

class FutexMutex {
 public:
  void lock() {
    uint32_t expected = kFree;
    if (!state_.compare_exchange_strong(expected, kTaken, std::memory_order_acquire, std::memory_order_relaxed)) lock_slow();
  }
  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kWanted) wake_one();
  }

 private:
  enum : uint32_t { kFree = 0, kTaken = 1, kWanted = 2 };  // wanted: taken, and somebody may sleep
  static constexpr int kSpins = 100;

  __attribute__((noinline)) void lock_slow() {
    for (int spin = 0; spin < kSpins; ++spin) {  // critical sections are short: most waits end before a sleep would begin
      uint32_t expected = kFree;
      if (state_.load(std::memory_order_relaxed) == kFree && state_.compare_exchange_weak(expected, kTaken, std::memory_order_acquire, std::memory_order_relaxed)) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    while (state_.exchange(kWanted, std::memory_order_acquire) != kFree) {
      ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&state_), FUTEX_WAIT_PRIVATE, kWanted, nullptr, nullptr, 0);
    }
  }
  __attribute__((noinline)) void wake_one() { ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&state_), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }

  std::atomic<uint32_t> state_{kFree};
};

}  // namespace pyalloc
