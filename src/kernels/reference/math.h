// Scalar functions of the reference stages, in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace switchyard::kernels::reference {

inline double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double Silu(double x) { return x * Sigmoid(x); }
// Linear above 20, where the difference is below 3e-9.
inline double Softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// Two doubles that the compiler adds and multiplies as one (an extension of GCC and Clang): left to
// itself, GCC 12 makes the sums below three times slower on plain x86-64.
using DoublePair [[gnu::vector_size(16)]] = double;

inline DoublePair LoadPair(const double* x) {
  DoublePair pair;
  std::memcpy(&pair, x, sizeof(pair));
  return pair;
}
inline DoublePair LoadPair(const float* x) {
  return DoublePair{static_cast<double>(x[0]), static_cast<double>(x[1])};
}

// out[r] = sum of a[i] * b[r][i], for kRows rows: four partial sums over i % 4, then
// (0 + 1) + (2 + 3). Every sum over an inner dimension has this order, so that it does not depend
// on how rows are grouped. Shapes: a and each b[r] [size], out [kRows].
template <int kRows, typename A, typename B>
void DotRows(const A* a, const B* const* b, int64_t size, double* out) {
  DoublePair low[kRows] = {}, high[kRows] = {};
  int64_t i = 0;
  for (; i + 4 <= size; i += 4) {
    const DoublePair a_low = LoadPair(a + i), a_high = LoadPair(a + i + 2);
    for (int r = 0; r < kRows; ++r) {
      low[r] += a_low * LoadPair(b[r] + i);
      high[r] += a_high * LoadPair(b[r] + i + 2);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    double sums[4] = {low[r][0], low[r][1], high[r][0], high[r][1]};
    for (int64_t j = 0; i + j < size; ++j) {
      sums[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[r][i + j]);
    }
    out[r] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
}

// DotRows() of one row.
template <typename A, typename B>
double Dot(const A* a, const B* b, int64_t size) {
  double sum;
  DotRows<1>(a, &b, size, &sum);
  return sum;
}

// out[i] = x[i] / sqrt(mean(x^2) + epsilon) * weight[i]; a null weight counts as ones.
// Shapes: x, weight and out [size]; out may be x.
// Source: Zhang and Sennrich, 2019, arXiv:1910.07467, equation 4.
template <typename In>
void RmsNorm(const In* x, const float* weight, double epsilon, int64_t size, double* out) {
  const double scale = 1 / std::sqrt(Dot(x, x, size) / static_cast<double>(size) + epsilon);
  for (int64_t i = 0; i < size; ++i) {
    out[i] = static_cast<double>(x[i]) * scale *
             (weight == nullptr ? 1.0 : static_cast<double>(weight[i]));
  }
}

template <typename From, typename To>
void Convert(const From* from, int64_t size, To* to) {
  std::transform(from, from + size, to, [](From value) { return static_cast<To>(value); });
}

}  // namespace switchyard::kernels::reference
