// One large block of anonymous memory that is handed out from front to back and freed as a whole.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace switchyard {

// Owns a mapping of zeroed memory, aligned to 2 MiB.
//
// No page is touched here: each becomes resident, on the memory node of the thread that writes it
// first, when it is written. Whoever fills an arena chooses that thread.
//
// Threads: Allocate() from one thread at a time; the memory is the callers' business.
class Arena {
 public:
  struct Options {
    // Ask the kernel for 2 MiB pages: fewer address translations while weights stream by.
    bool huge_pages = false;
    // Refuse what the host cannot hold now, instead of being killed halfway through filling it.
    bool require_available = true;
  };

  static constexpr int64_t kBaseAlignment = 2 << 20;  // a huge page of x86-64
  static constexpr int64_t kAlignment = 64;           // of each allocation: a cache line

  // Maps `bytes`. Use ArenaBytes() on each allocation to find the sum.
  //
  // REQUIRES: bytes >= 0.
  // Errors: kResourceExhausted with wanted and free bytes.
  static absl::StatusOr<Arena> Create(int64_t bytes, const Options& options);

  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  // Returns the next `bytes`, zeroed, aligned to kAlignment; valid until the arena goes. Taking
  // more than the arena holds is a mistake in the caller's sum and aborts.
  std::byte* Allocate(int64_t bytes);

  // All that was handed out so far.
  const std::byte* data() const { return data_; }
  int64_t used_bytes() const { return used_bytes_; }  // padding included
  int64_t capacity_bytes() const { return capacity_bytes_; }

 private:
  Arena(std::byte* data, int64_t bytes) : data_(data), capacity_bytes_(bytes) {}

  void Unmap();

  std::byte* data_ = nullptr;
  int64_t capacity_bytes_ = 0;
  int64_t used_bytes_ = 0;
};

// Bytes that an allocation takes out of an arena: rounded up to the alignment.
constexpr int64_t ArenaBytes(int64_t bytes) {
  return (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
}

}  // namespace switchyard
