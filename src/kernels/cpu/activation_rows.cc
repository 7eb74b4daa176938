#include "kernels/cpu/activation_rows.h"

#include "base/check.h"

namespace switchyard::kernels::cpu {
namespace {

// Vector code may read up to 64 bytes past the last element of each array.
constexpr int64_t kMarginBytes = 64;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int64_t ArrayBytes(int64_t num_elements, int64_t element_bytes) {
  return RoundUp(num_elements * element_bytes + kMarginBytes, 64);
}

}  // namespace

int64_t QuantizedRows::Bytes(int64_t rows, int64_t cols) {
  const int64_t n = rows * RoundUp(cols, 64);
  return ArrayBytes(n, 1) + 2 * ArrayBytes(n / 32, 4) + 2 * ArrayBytes(n / 16, 4);
}

QuantizedRows QuantizedRows::Place(std::byte* memory, int64_t rows, int64_t cols) {
  SWITCHYARD_DCHECK(reinterpret_cast<uintptr_t>(memory) % 64 == 0);
  QuantizedRows view;
  view.rows = rows;
  view.cols = cols;
  view.padded_cols = RoundUp(cols, 64);
  const int64_t n = rows * view.padded_cols;
  view.quants = reinterpret_cast<int8_t*>(memory);
  memory += ArrayBytes(n, 1);
  view.scales = reinterpret_cast<float*>(memory);
  memory += ArrayBytes(n / 32, 4);
  view.half_offsets = reinterpret_cast<int32_t*>(memory);
  memory += ArrayBytes(n / 16, 4);
  view.half_sums = reinterpret_cast<float*>(memory);
  memory += ArrayBytes(n / 16, 4);
  view.group_sums = reinterpret_cast<float*>(memory);
  return view;
}

QuantizedRows QuantizedRows::Rows(int64_t first, int64_t count) const {
  SWITCHYARD_DCHECK(first >= 0 && count >= 0 && first + count <= rows);
  QuantizedRows view = *this;
  view.rows = count;
  view.quants += first * padded_cols;
  view.scales += first * (padded_cols / 32);
  view.half_offsets += first * (padded_cols / 16);
  view.half_sums += first * (padded_cols / 16);
  view.group_sums += first * (padded_cols / 32);
  return view;
}

QuantizedRows QuantizedRows::Columns(int64_t row, int64_t begin, int64_t end) const {
  SWITCHYARD_DCHECK(begin % kGroupLength == 0 && begin <= end);
  SWITCHYARD_DCHECK(end == cols || (end < cols && end % kGroupLength == 0));
  QuantizedRows view = Rows(row, 1);
  view.cols = end - begin;
  view.padded_cols = (end == cols ? padded_cols : end) - begin;
  view.quants += begin;
  view.scales += begin / 32;
  view.half_offsets += begin / 16;
  view.half_sums += begin / 16;
  view.group_sums += begin / 32;
  return view;
}

}  // namespace switchyard::kernels::cpu
