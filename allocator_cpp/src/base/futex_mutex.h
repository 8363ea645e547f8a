// A mutex of two words for locks that are nearly always free. Taking it is one compare-and-swap, leaving it a plain
// store; the kernel is asked only when threads meet. std::mutex costs a library call each way and a second locked
// instruction, which the hot path would feel.
//
// Leaving stores "free" and then looks for sleepers without a fence in between, so a thread about to sleep may be
// missed in that instant; the kernel's own check of the word catches all but a sliver of that, and a sleep ends by
// itself after kNap.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace pyalloc {

class FutexMutex {
 public:
  void lock() {
    if (!try_lock()) lock_slow();
  }
  void unlock() {
    taken_.store(0, std::memory_order_release);
    if (sleepers_.load(std::memory_order_relaxed) != 0) wake_one();
  }

 private:
  static constexpr int kSpins = 100;  // critical sections are short: most waits end before a sleep would begin
  static constexpr timespec kNap{0, 1000000};

  bool try_lock() {
    uint32_t expected = 0;
    return taken_.compare_exchange_strong(expected, 1, std::memory_order_acquire, std::memory_order_relaxed);
  }
  __attribute__((noinline)) void lock_slow() {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (taken_.load(std::memory_order_relaxed) == 0 && try_lock()) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (!try_lock())
      ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&taken_), FUTEX_WAIT_PRIVATE, 1, &kNap, nullptr, 0);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }
  __attribute__((noinline)) void wake_one() {
    ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&taken_), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }

  std::atomic<uint32_t> taken_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace pyalloc
