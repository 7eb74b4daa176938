// Waiting for the change of a 32-bit word in the kernel (Linux futex), private to this process.
#pragma once

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace switchyard {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

// Sleeps while `word` holds `expected`. Returns at a FutexWakeAll() on the word, at once if the
// value differs, and now and then for no reason: callers look at the word again.
inline void FutexWait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}

// The same, and returns after `most` too.
inline void FutexWaitFor(std::atomic<uint32_t>& word, uint32_t expected,
                         std::chrono::nanoseconds most) {
  constexpr int64_t kNanoseconds = 1'000'000'000;
  const timespec limit = {most.count() / kNanoseconds, most.count() % kNanoseconds};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, &limit,
          nullptr, 0);
}

// Wakes at most `num_threads` threads that sleep on `word`; returns how many.
inline int FutexWake(std::atomic<uint32_t>& word, int num_threads) {
  const long num_woken = syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE,
                                 num_threads, nullptr, nullptr, 0);
  return num_woken > 0 ? static_cast<int>(num_woken) : 0;
}

inline int FutexWakeAll(std::atomic<uint32_t>& word) { return FutexWake(word, INT_MAX); }

}  // namespace switchyard
