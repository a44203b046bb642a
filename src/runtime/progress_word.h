// A counter that threads sleep on: one writer, any number of waiters.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

namespace spillway {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Never goes back. Allocates nothing. (std::atomic<uint64_t>::wait shares a table of proxies
// between unrelated counters and would wake lanes for each other's progress.)
class ProgressWord {
 public:
  uint64_t value() const { return value_.load(std::memory_order_acquire); }

  void advance(uint64_t to) {
    value_.store(to);
    word_.store(static_cast<uint32_t>(to));
    if (sleepers_.load() != 0)
      syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }

  // True if the caller had to wait. Spins for a short while first: most waits are short, but a lane
  // that spins takes a core from the kernels.
  bool wait_until(uint64_t target) const {
    if (value() >= target) return false;
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(kSpinUs);
    do {
      for (int i = 0; i < 32; ++i) cpu_relax();
      if (value() >= target) return true;
    } while (std::chrono::steady_clock::now() < until);
    sleepers_.fetch_add(1);
    while (value_.load() < target) {
      const uint32_t seen = word_.load();
      if (value_.load() >= target) break;
      syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    }
    sleepers_.fetch_sub(1);
    return true;
  }

 private:
  static constexpr int kSpinUs = 10;
  std::atomic<uint64_t> value_{0};
  std::atomic<uint32_t> word_{0};  // the low half: what a futex compares
  mutable std::atomic<uint32_t> sleepers_{0};
};

}  // namespace spillway
