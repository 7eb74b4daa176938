// Scratch memory of the reference stages: taken in order, given back when the stage ends.
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

namespace switchyard::kernels::reference {

// A stack of memory of a fixed size.
//
// Call order: Reserve(), then for each stage: a Frame, Take() as often as needed, the Frame's end.
// Threads:    one.
class Workspace {
 public:
  // Gives back at its end what was taken since its start.
  class Frame {
   public:
    explicit Frame(Workspace& workspace) : workspace_(workspace), used_(workspace.used_) {}
    ~Frame() { workspace_.used_ = used_; }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Workspace& workspace_;
    int64_t used_;
  };

  // Pages become resident where they are used, so a generous bound costs nothing.
  //
  // Errors: kResourceExhausted.
  absl::Status Reserve(int64_t bytes) {
    SWITCHYARD_ASSIGN_OR_RETURN(
        Arena arena, Arena::Create(bytes, {.huge_pages = false, .require_available = false}));
    arena_ = std::move(arena);
    data_ = arena_->Allocate(bytes);
    bytes_ = bytes;
    used_ = 0;
    return absl::OkStatus();
  }

  // Returns `count` elements with what an earlier stage left in them.
  template <typename T>
  T* Take(int64_t count) {
    const int64_t bytes = ArenaBytes(count * static_cast<int64_t>(sizeof(T)));
    // A step above the limits given to Prepare() would write past the end.
    SWITCHYARD_CHECK(used_ + bytes <= bytes_);
    T* data = reinterpret_cast<T*>(data_ + used_);
    used_ += bytes;
    return data;
  }
  template <typename T>
  MatrixView<T> TakeMatrix(int64_t rows, int64_t cols) {
    return {Take<T>(rows * cols), rows, cols};
  }

 private:
  std::optional<Arena> arena_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t used_ = 0;
};

// Bytes that Take<T>(count) uses up.
template <typename T>
constexpr int64_t TakenBytes(int64_t count) {
  return ArenaBytes(count * static_cast<int64_t>(sizeof(T)));
}

}  // namespace switchyard::kernels::reference
