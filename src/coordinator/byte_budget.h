// A bound on the bytes that many hold together.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace switchyard::coordinator {

// Threads: any.
class ByteBudget {
 public:
  explicit ByteBudget(size_t num_bytes) : num_bytes_(num_bytes) {}

  // Room for so many bytes, given back when the result dies; null if there is none. The result may
  // outlive the budget.
  std::shared_ptr<const void> Take(size_t num_bytes) {
    if (num_taken_->fetch_add(num_bytes) + num_bytes > num_bytes_) {
      *num_taken_ -= num_bytes;
      return nullptr;
    }
    return {num_taken_.get(),
            [counter = num_taken_, num_bytes](const void*) { *counter -= num_bytes; }};
  }

 private:
  const size_t num_bytes_;
  const std::shared_ptr<std::atomic<size_t>> num_taken_ = std::make_shared<std::atomic<size_t>>(0);
};

}  // namespace switchyard::coordinator
