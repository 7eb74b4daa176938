// Working memory of the stages, taken in order and given back when a stage ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"

#include "base/arena.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/tensor_view.h"

namespace switchyard::kernels::cpu {

// A stack of memory. Without memory it only measures: Take() returns null and the peak says how
// much a later run of the same code needs. So each stage has one function that takes its buffers,
// called with the limits of a step in Prepare() and with a step's own sizes in the stage.
//
// Call order: Frame and Take() while measuring -> Reserve() -> for each stage Frame and Take().
// Threads:    the step thread.
class Scratch {
 public:
  // Gives back at its end what was taken since its start.
  class Frame {
   public:
    explicit Frame(Scratch& scratch) : scratch_(scratch), used_(scratch.used_) {}
    ~Frame() { scratch_.used_ = used_; }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Scratch& scratch_;
    int64_t used_;
  };

  int64_t peak_bytes() const { return peak_; }

  // Pages become resident where they are first used.
  //
  // Errors: kResourceExhausted.
  absl::Status Reserve() {
    SWITCHYARD_ASSIGN_OR_RETURN(
        Arena arena, Arena::Create(peak_, {.huge_pages = false, .require_available = false}));
    arena_ = std::move(arena);
    data_ = arena_->Allocate(peak_);
    return absl::OkStatus();
  }

  // `count` elements, aligned to a cache line, with what an earlier stage left in them.
  template <typename T>
  T* Take(int64_t count) {
    const int64_t begin = used_;
    used_ += ArenaBytes(count * static_cast<int64_t>(sizeof(T)));
    if (data_ == nullptr) {
      if (used_ > peak_) peak_ = used_;
      return nullptr;
    }
    // A step above the limits given to Prepare() would write past the end.
    SWITCHYARD_CHECK(used_ <= peak_);
    return reinterpret_cast<T*>(data_ + begin);
  }

  // One row per thread, its start on a cache line of its own.
  template <typename T>
  MatrixView<T> TakePerThread(int num_threads, int64_t count) {
    const int64_t stride =
        ArenaBytes(count * static_cast<int64_t>(sizeof(T))) / static_cast<int64_t>(sizeof(T));
    return {Take<T>(num_threads * stride), num_threads, count, stride};
  }

  template <typename T>
  MatrixView<T> TakeMatrix(int64_t rows, int64_t cols) {
    return {Take<T>(rows * cols), rows, cols};
  }

 private:
  std::optional<Arena> arena_;
  std::byte* data_ = nullptr;
  int64_t used_ = 0;
  int64_t peak_ = 0;
};

}  // namespace switchyard::kernels::cpu
