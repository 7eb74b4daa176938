// Waiting for the change of a 32-bit word that several processes have mapped (Linux futex).
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace switchyard::comm {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Sleeps while `word` holds `expected`, `most_ns` at most. Returns at a wake, at once if the value
// differs, and now and then for no reason: callers look at the word again.
inline void SharedFutexWait(std::atomic<uint32_t>& word, uint32_t expected, int64_t most_ns) {
  constexpr int64_t kNanoseconds = 1'000'000'000;
  const timespec limit = {most_ns / kNanoseconds, most_ns % kNanoseconds};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, expected, &limit, nullptr, 0);
}

// Wakes all who sleep on `word`.
inline void SharedFutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace switchyard::comm
