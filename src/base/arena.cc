#include "base/arena.h"

#include <fmt/format.h>
#include <limits>
#include <optional>
#include <sys/mman.h>
#include <utility>

#include "base/check.h"
#include "base/process_memory.h"
#include "base/status.h"

namespace switchyard {
namespace {

absl::Status TooMuch(int64_t bytes, std::optional<int64_t> available) {
  return ResourceExhausted("not enough memory, wanted bytes: {}, free: {}", bytes,
                           available.has_value() ? fmt::format("{}", *available) : "unknown");
}

}  // namespace

absl::StatusOr<Arena> Arena::Create(int64_t bytes, const Options& options) {
  SWITCHYARD_CHECK(bytes >= 0);
  if (bytes == 0) return Arena(nullptr, 0);
  const std::optional<int64_t> available = AvailableHostBytes();
  if (options.require_available && available.has_value() && bytes > *available) {
    return TooMuch(bytes, available);
  }
  // mmap aligns to 4 KiB: map more, then give back what lies before and behind.
  constexpr int64_t kPageBytes = 4096;
  if (bytes > std::numeric_limits<int64_t>::max() - 2 * kBaseAlignment) {
    return TooMuch(bytes, available);
  }
  const int64_t length = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const int64_t mapped_length = length + kBaseAlignment;
  // MAP_NORESERVE: the slack is given back at once, and what is asked for was compared above.
  void* const mapped = mmap(nullptr, static_cast<size_t>(mapped_length), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return TooMuch(bytes, available);
  const auto address = reinterpret_cast<uintptr_t>(mapped);
  const auto lead = static_cast<int64_t>(-address & (kBaseAlignment - 1));
  std::byte* const data = static_cast<std::byte*>(mapped) + lead;
  if (lead > 0) munmap(mapped, static_cast<size_t>(lead));
  const int64_t tail = mapped_length - lead - length;
  if (tail > 0) munmap(data + length, static_cast<size_t>(tail));
  // A wish; kernels without huge pages refuse it and everything works all the same.
  if (options.huge_pages) madvise(data, static_cast<size_t>(length), MADV_HUGEPAGE);
  return Arena(data, length);
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      capacity_bytes_(std::exchange(other.capacity_bytes_, 0)),
      used_bytes_(std::exchange(other.used_bytes_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this == &other) return *this;
  Unmap();
  data_ = std::exchange(other.data_, nullptr);
  capacity_bytes_ = std::exchange(other.capacity_bytes_, 0);
  used_bytes_ = std::exchange(other.used_bytes_, 0);
  return *this;
}

Arena::~Arena() { Unmap(); }

void Arena::Unmap() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(capacity_bytes_));
}

std::byte* Arena::Allocate(int64_t bytes) {
  SWITCHYARD_CHECK(bytes >= 0 && bytes <= capacity_bytes_);
  const int64_t rounded = ArenaBytes(bytes);
  SWITCHYARD_CHECK(rounded <= capacity_bytes_ - used_bytes_);
  std::byte* const result = data_ + used_bytes_;
  used_bytes_ += rounded;
  return result;
}

}  // namespace switchyard
