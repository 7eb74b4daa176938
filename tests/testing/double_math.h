// Formulas in double, one element after the other, for expected values in tests.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "testing/tensor_data.h"

namespace switchyard::fixtures {

using Doubles = std::vector<double>;

inline double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double Silu(double x) { return x / (1 + std::exp(-x)); }

inline Doubles ToDoubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

inline Doubles Slice(const Doubles& x, int64_t first, int64_t size) {
  return {x.begin() + first, x.begin() + first + size};
}

// The values of a tensor, decoded once.
class DoubleMatrix {
 public:
  explicit DoubleMatrix(const TensorData& tensor)
      : rows_(tensor.rows), cols_(tensor.cols), values_(ToDoubles(Decode(tensor))) {}

  double at(int64_t row, int64_t col) const {
    return values_[static_cast<size_t>(row * cols_ + col)];
  }
  const Doubles& values() const { return values_; }

  // Product of slab `slab` with x.
  Doubles operator()(const Doubles& x, int64_t slab = 0) const {
    Doubles y(static_cast<size_t>(rows_), 0.0);
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) {
        y[static_cast<size_t>(r)] += at(slab * rows_ + r, c) * x[static_cast<size_t>(c)];
      }
    }
    return y;
  }

 private:
  int64_t rows_, cols_;
  Doubles values_;
};

// x / sqrt(mean(x^2) + epsilon) * weight in groups of `group` elements.
inline Doubles GroupedRms(const Doubles& x, const Doubles& weight, double epsilon, int64_t group) {
  Doubles y(x.size());
  for (size_t first = 0; first < x.size(); first += static_cast<size_t>(group)) {
    double sum = 0;
    for (size_t i = first; i < first + static_cast<size_t>(group); ++i) sum += x[i] * x[i];
    for (size_t i = first; i < first + static_cast<size_t>(group); ++i) {
      y[i] =
          x[i] / std::sqrt(sum / static_cast<double>(group) + epsilon) * weight[i % weight.size()];
    }
  }
  return y;
}

inline double DotProduct(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace switchyard::fixtures
