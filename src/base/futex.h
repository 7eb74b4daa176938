// Waiting for the change of a 32-bit word in the kernel (Linux futex), private to this process.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace switchyard {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

// Sleeps while `word` holds `expected`. Returns at a FutexWakeAll() on the word, at once if the
// value differs, and now and then for no reason: callers look at the word again.
inline void FutexWait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}

// Wakes at most `num_threads` threads that sleep on `word`.
inline void FutexWake(std::atomic<uint32_t>& word, int num_threads) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, num_threads, nullptr,
          nullptr, 0);
}

inline void FutexWakeAll(std::atomic<uint32_t>& word) { FutexWake(word, INT_MAX); }

}  // namespace switchyard
