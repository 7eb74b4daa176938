// Matrix products of every stored type, at every CPU level.
#include "kernels/cpu/matmul.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cpu/panel.h"
#include "kernels/quant/dequantize.h"

namespace switchyard::kernels::cpu {
namespace {

constexpr DType kAllTypes[] = {
    DType::kF32,     DType::kF16,   DType::kBF16,   DType::kQ4_0,    DType::kQ4_1,   DType::kQ5_0,
    DType::kQ5_1,    DType::kQ8_0,  DType::kQ2_K,   DType::kQ3_K,    DType::kQ4_K,   DType::kQ5_K,
    DType::kQ6_K,    DType::kIQ1_S, DType::kIQ1_M,  DType::kIQ2_XXS, DType::kIQ2_XS, DType::kIQ2_S,
    DType::kIQ3_XXS, DType::kIQ3_S, DType::kIQ4_NL, DType::kIQ4_XS};

constexpr CpuLevel kAllLevels[] = {CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvxVnni,
                                   CpuLevel::kAvx512Vnni};

std::vector<CpuLevel> RunnableLevels() {
  std::vector<CpuLevel> levels;
  for (const CpuLevel level : kAllLevels) {
    if (RunsCpuLevel(level)) levels.push_back(level);
  }
  return levels;
}

// A weight matrix of random valid blocks with exactly the 64 bytes behind it that the contract asks
// for, so that a sanitizer sees any load past them.
class RandomWeights {
 public:
  RandomWeights(DType dtype, int64_t rows, int64_t cols, uint32_t seed) : rng_(seed) {
    const int64_t bytes = rows * RowBytes(dtype, cols);
    bytes_.resize(static_cast<size_t>(bytes + 64));
    bytes_.shrink_to_fit();
    const DTypeTraits& traits = Traits(dtype);
    std::vector<float> decoded(static_cast<size_t>(traits.block_length));
    for (int64_t offset = 0; offset < bytes; offset += traits.block_bytes) {
      // Blocks whose scale is infinite or NaN are drawn again.
      do {
        for (int i = 0; i < traits.block_bytes; ++i) {
          bytes_[static_cast<size_t>(offset + i)] = static_cast<std::byte>(rng_());
        }
        DequantizeRow(dtype, &bytes_[static_cast<size_t>(offset)], traits.block_length,
                      decoded.data());
      } while (!std::all_of(decoded.begin(), decoded.end(),
                            [](float x) { return std::fabs(x) < 1e8f; }));
    }
    matrix_ = {dtype, bytes_.data(), rows, cols};
    if (!HasPanels(dtype)) return;
    const int64_t panel_bytes = PanelsBytes(dtype, kPanelRows, cols);
    panels_.reset(static_cast<std::byte*>(::operator new[](
        static_cast<size_t>(PanelsBytes(dtype, rows, cols)), std::align_val_t{64})));
    for (int64_t row = 0; row < rows; row += kPanelRows) {
      PackPanel(dtype, bytes_.data() + row * RowBytes(dtype, cols),
                std::min(kPanelRows, rows - row), cols,
                panels_.get() + row / kPanelRows * panel_bytes);
    }
    panel_matrix_ = {dtype, panels_.get(), rows, cols, /*in_panels=*/true};
  }

  // As the backend keeps it.
  const WeightMatrix& matrix() const { return panels_ != nullptr ? panel_matrix_ : matrix_; }
  const WeightMatrix& stored() const { return matrix_; }

 private:
  std::mt19937 rng_;
  struct Free {
    void operator()(std::byte* data) const { ::operator delete[](data, std::align_val_t{64}); }
  };
  std::vector<std::byte> bytes_;
  WeightMatrix matrix_;
  std::unique_ptr<std::byte[], Free> panels_;  // exactly what is needed
  WeightMatrix panel_matrix_;
};

// Random activation rows in both forms.
class RandomActivations {
 public:
  RandomActivations(CpuLevel level, int64_t rows, int64_t cols, uint32_t seed)
      : values_(static_cast<size_t>(rows * cols)),
        memory_(static_cast<size_t>(QuantizedRows::Bytes(rows, cols)) + 64) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    for (float& value : values_) value = normal(rng);
    auto* aligned =
        reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory_.data()) + 63) / 64 * 64);
    rows_.values = MatrixView<const float>(values_.data(), rows, cols);
    rows_.quantized = QuantizedRows::Place(aligned, rows, cols);
    for (int64_t row = 0; row < rows; ++row) {
      QuantizeActivationRow(level, rows_.values.row(row), rows_.quantized, row);
    }
  }

  const ActivationRows& rows() const { return rows_; }

 private:
  std::vector<float> values_;
  std::vector<std::byte> memory_;
  ActivationRows rows_;
};

// Products of all weight rows with all activation rows: element [partial, activation, weight].
std::vector<float> Products(CpuLevel level, const WeightMatrix& w, const ActivationRows& x,
                            ColumnBorders borders, int64_t num_x_rows) {
  MatMulScratch scratch(w.cols);
  std::vector<float> out(
      static_cast<size_t>((static_cast<int64_t>(borders.size()) - 1) * num_x_rows * w.rows), NAN);
  MatMulRows(level, {w, 0, w.rows, nullptr, num_x_rows}, borders, x,
             {out.data(), w.rows, num_x_rows * w.rows}, scratch);
  return out;
}

std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

struct Exact {
  double value = 0;
  double magnitude = 0;  // sum of the magnitudes of all terms
};

// The product of the same stored numbers in double: exact next to the errors that are tested.
Exact ExactProduct(const WeightMatrix& w, int64_t row, const ActivationRows& x, int64_t x_row,
                   int64_t begin, int64_t end) {
  const std::byte* stored = w.data + row * RowBytes(w.dtype, w.cols);
  const auto n = static_cast<size_t>(w.cols);
  Exact exact;
  if (!IsBlockFormat(w.dtype)) {
    std::vector<float> weights(n);
    DequantizeRow(w.dtype, stored, w.cols, weights.data());
    for (int64_t c = begin; c < end; ++c) {
      const double term = static_cast<double>(weights[static_cast<size_t>(c)]) *
                          static_cast<double>(x.values.row(x_row)[c]);
      exact.value += term;
      exact.magnitude += std::fabs(term);
    }
    return exact;
  }
  std::vector<int8_t> values(n);
  std::vector<float> scales(n / 16), minima(n / 16);
  ExpandRow(w.dtype, stored, w.cols, values.data(), scales.data(), minima.data());
  const int64_t base = x_row * x.quantized.padded_cols;
  for (int64_t c = begin; c < end; ++c) {
    const auto half = static_cast<size_t>(c / 16);
    const double activation = static_cast<double>(x.quantized.scales[(base + c) / 32]) *
                              static_cast<double>(x.quantized.quants[base + c]);
    const double product = static_cast<double>(scales[half]) * values[static_cast<size_t>(c)];
    const double minimum = static_cast<double>(minima[half]);
    exact.value += (product + minimum) * activation;
    exact.magnitude += (std::fabs(product) + std::fabs(minimum)) * std::fabs(activation);
  }
  return exact;
}

// Error of a product over `num_cols` columns, relative to the sum of magnitudes, in units of 2^-24:
// one for each addition to the accumulator (at most num_cols / 16 runs, twice with minima) or to a
// lane (num_cols / 16 for float weights), one for scale * activation scale or scale * sum, at most
// 5 for the final additions of float weights, and one for second-order terms.
double RelativeBound(int64_t num_cols) {
  return static_cast<double>(num_cols / 8 + 1 + 7) * 0x1p-24;
}

// Widths of a type: odd groups, blocks of 32 and 256, the model's real sizes; for the float types
// also widths that are no multiple of anything.
std::vector<int64_t> Widths(DType dtype) {
  std::vector<int64_t> widths;
  for (const int64_t cols : {1, 7, 17, 31, 32, 64, 96, 160, 256, 320, 512, 640, 2560, 5120}) {
    if (cols % Traits(dtype).block_length == 0) widths.push_back(cols);
  }
  return widths;
}

class MatMulTest : public testing::TestWithParam<DType> {};

TEST_P(MatMulTest, EqualsDoubleEvaluation) {
  for (const int64_t cols : Widths(GetParam())) {
    SCOPED_TRACE(cols);
    constexpr int64_t kRows = 5, kXRows = 3;
    const RandomWeights weights(GetParam(), kRows, cols, 11);
    const RandomActivations x(CpuLevel::kScalar, kXRows, cols, 12);
    const std::array<int64_t, 2> borders = {0, cols};
    for (const CpuLevel level : RunnableLevels()) {
      const auto products = Products(level, weights.matrix(), x.rows(), borders, kXRows);
      for (int64_t b = 0; b < kXRows; ++b) {
        for (int64_t r = 0; r < kRows; ++r) {
          const Exact exact = ExactProduct(weights.stored(), r, x.rows(), b, 0, cols);
          EXPECT_NEAR(products[static_cast<size_t>(b * kRows + r)], exact.value,
                      exact.magnitude * RelativeBound(cols))
              << CpuLevelName(level) << ", row " << r << ", activation row " << b;
        }
      }
    }
  }
}

class PanelMatMulTest : public testing::TestWithParam<DType> {};

TEST_P(PanelMatMulTest, StoredRowsGiveTheBitsOfPanels) {
  for (const int64_t cols : Widths(GetParam())) {
    SCOPED_TRACE(cols);
    const RandomWeights weights(GetParam(), 19, cols, 13);
    const RandomActivations x(CpuLevel::kScalar, 9, cols, 14);
    const std::array<int64_t, 2> borders = {0, cols};
    for (const CpuLevel level : RunnableLevels()) {
      for (const int64_t num_x_rows : {1, 9}) {
        EXPECT_EQ(Bits(Products(level, weights.stored(), x.rows(), borders, num_x_rows)),
                  Bits(Products(level, weights.matrix(), x.rows(), borders, num_x_rows)))
            << CpuLevelName(level) << ", " << num_x_rows << " activation rows";
      }
    }
  }
}

TEST_P(MatMulTest, LevelsAgreeBitForBit) {
  for (const int64_t cols : Widths(GetParam())) {
    SCOPED_TRACE(cols);
    constexpr int64_t kRows = 19;  // a full panel, a tile of two and a single row
    const RandomWeights weights(GetParam(), kRows, cols, 21);
    const RandomActivations x(CpuLevel::kScalar, 20, cols, 22);
    const std::array<int64_t, 2> borders = {0, cols};
    for (const int64_t num_x_rows : {1, 7, 9, 20}) {
      const auto scalar =
          Bits(Products(CpuLevel::kScalar, weights.matrix(), x.rows(), borders, num_x_rows));
      for (const CpuLevel level : RunnableLevels()) {
        EXPECT_EQ(Bits(Products(level, weights.matrix(), x.rows(), borders, num_x_rows)), scalar)
            << CpuLevelName(level) << ", " << num_x_rows << " activation rows";
      }
    }
  }
}

TEST_P(MatMulTest, RowsDoNotDependOnEachOther) {
  for (const int64_t cols : Widths(GetParam())) {
    SCOPED_TRACE(cols);
    constexpr int64_t kRows = 21, kXRows = 9;
    const RandomWeights weights(GetParam(), kRows, cols, 31);
    const RandomActivations x(CpuLevel::kScalar, kXRows, cols, 32);
    const std::array<int64_t, 2> borders = {0, cols};
    for (const CpuLevel level : RunnableLevels()) {
      const auto all = Products(level, weights.matrix(), x.rows(), borders, kXRows);
      MatMulScratch scratch(cols);
      // Every weight row alone, with one and with several gathered activation rows.
      const std::vector<int32_t> gathered = {8, 0, 3, 3, 5};
      for (const size_t count : {size_t{1}, size_t{2}, gathered.size()}) {
        for (int64_t r = 0; r < kRows; ++r) {
          std::vector<float> out(count);
          MatMulRows(level,
                     {weights.matrix(), r, r + 1, gathered.data(), static_cast<int64_t>(count)},
                     borders, x.rows(), {out.data(), 1, 0}, scratch);
          for (size_t b = 0; b < count; ++b) {
            ASSERT_EQ(std::bit_cast<uint32_t>(out[b]),
                      std::bit_cast<uint32_t>(all[static_cast<size_t>(gathered[b] * kRows + r)]))
                << CpuLevelName(level) << ", row " << r << ", " << count << " activation rows";
          }
        }
      }
    }
  }
}

// Borders of four shards in units of a block (at least 32 columns), the last ones empty if there
// are few units.
std::array<int64_t, 5> FourShards(DType dtype, int64_t cols) {
  const int64_t unit = IsBlockFormat(dtype) ? Traits(dtype).block_length : 1;
  const int64_t num_units = cols / unit;
  std::array<int64_t, 5> borders{};
  for (int64_t i = 0; i <= 4; ++i) borders[static_cast<size_t>(i)] = i * num_units / 4 * unit;
  return borders;
}

TEST_P(MatMulTest, ShardsSumAsATreeOfIndependentRanges) {
  for (const int64_t cols : Widths(GetParam())) {
    SCOPED_TRACE(cols);
    constexpr int64_t kRows = 18;
    const RandomWeights weights(GetParam(), kRows, cols, 41);
    const RandomActivations x(CpuLevel::kScalar, 3, cols, 42);
    const std::array<int64_t, 5> borders = FourShards(GetParam(), cols);
    for (const CpuLevel level : RunnableLevels()) {
      for (const int64_t num_x_rows : {1, 3}) {
        // Each shard computed alone, at the scalar level, as another rank would.
        std::array<std::vector<float>, 4> alone;
        for (size_t s = 0; s < 4; ++s) {
          const std::array<int64_t, 2> range = {borders[s], borders[s + 1]};
          alone[s] = Products(CpuLevel::kScalar, weights.matrix(), x.rows(), range, num_x_rows);
        }
        std::vector<float> expected(alone[0].size());
        for (size_t i = 0; i < expected.size(); ++i) {
          expected[i] = (alone[0][i] + alone[1][i]) + (alone[2][i] + alone[3][i]);
        }
        MatMulScratch scratch(cols);
        std::vector<float> sharded(expected.size(), NAN);
        ActivationRows some = x.rows();
        MatMulShardedRows(level, weights.matrix(), 0, kRows, {.border = borders}, some,
                          {sharded.data(), num_x_rows, kRows}, scratch);
        EXPECT_EQ(Bits(sharded), Bits(expected))
            << CpuLevelName(level) << ", " << num_x_rows << " activation rows";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(PanelTypes, PanelMatMulTest, testing::ValuesIn([] {
                           std::vector<DType> types(std::begin(kAllTypes), std::end(kAllTypes));
                           std::erase_if(types, [](DType dtype) { return !HasPanels(dtype); });
                           return types;
                         }()),
                         [](const auto& info) { return std::string(Traits(info.param).name); });

INSTANTIATE_TEST_SUITE_P(AllTypes, MatMulTest, testing::ValuesIn(kAllTypes),
                         [](const auto& info) { return std::string(Traits(info.param).name); });

TEST(PooledMatMulTest, ThreadsDoNotChangeBits) {
  constexpr int64_t kRows = 300, kCols = 640;
  for (const DType dtype : {DType::kQ8_0, DType::kIQ4_NL, DType::kF32}) {
    const RandomWeights weights(dtype, kRows, kCols, 51);
    const RandomActivations x(DetectCpuLevel(), 4, kCols, 52);
    const std::array<int64_t, 2> whole = {0, kCols};
    const ShardBorders shards = {.border = FourShards(dtype, kCols)};
    const auto expected = Products(DetectCpuLevel(), weights.matrix(), x.rows(), whole, 4);
    MatMulScratch one(kCols);
    std::vector<float> expected_sharded(expected.size());
    MatMulShardedRows(DetectCpuLevel(), weights.matrix(), 0, kRows, shards, x.rows(),
                      {expected_sharded.data(), 4, kRows}, one);
    for (const int num_threads : {1, 2, 3}) {
      ThreadPool::Options options;
      options.num_threads = num_threads;
      ThreadPool pool(options);
      std::vector<MatMulScratch> scratch;
      for (int i = 0; i < num_threads; ++i) scratch.emplace_back(kCols);
      std::vector<float> y(expected.size(), NAN);
      MatMul(pool, DetectCpuLevel(), weights.matrix(), x.rows(), {y.data(), 4, kRows},
             absl::MakeSpan(scratch));
      EXPECT_EQ(Bits(y), Bits(expected)) << num_threads;
      MatMulSharded(pool, DetectCpuLevel(), weights.matrix(), shards, x.rows(),
                    {y.data(), 4, kRows}, absl::MakeSpan(scratch));
      EXPECT_EQ(Bits(y), Bits(expected_sharded)) << num_threads;
    }
  }
}

// The columns of one shard lie in three strips: the same as the shard's strips computed one by one
// and added in order.
TEST(PooledMatMulTest, ShardsOfSeveralStripsAreSumsOfTheirStrips) {
  constexpr int64_t kRows = 40, kStrip = 256, kStrips = 3, kCols = kStrip * kStrips;
  for (const DType dtype : {DType::kQ8_0, DType::kQ6_K, DType::kF32}) {
    const int64_t unit = Traits(dtype).block_length == 256 ? 256 : 32;
    const ShardBorders shards = {
        .border = {0, unit == 256 ? 0 : 64, unit == 256 ? 0 : 96, unit == 256 ? 0 : 224, kStrip},
        .num_strips = kStrips,
        .strip_columns = kStrip};
    const RandomWeights weights(dtype, kRows, kCols, 53);
    for (const int64_t num_x_rows : {1, 70}) {  // more rows than partial sums are held for
      const RandomActivations x(DetectCpuLevel(), num_x_rows, kCols, 54);
      std::array<std::vector<float>, 4> shard;
      for (int64_t s = 0; s < 4 * kStrips; ++s) {
        const size_t i = static_cast<size_t>(s % 4);
        const std::array<int64_t, 2> range = {s / 4 * kStrip + shards.border[i],
                                              s / 4 * kStrip + shards.border[i + 1]};
        const auto part = Products(DetectCpuLevel(), weights.matrix(), x.rows(), range, num_x_rows);
        if (shard[i].empty()) {
          shard[i] = part;
          continue;
        }
        for (size_t n = 0; n < part.size(); ++n) shard[i][n] += part[n];
      }
      std::vector<float> expected(shard[0].size());
      for (size_t n = 0; n < expected.size(); ++n) {
        expected[n] = (shard[0][n] + shard[1][n]) + (shard[2][n] + shard[3][n]);
      }
      MatMulScratch scratch(kCols);
      std::vector<float> y(expected.size(), NAN);
      MatMulShardedRows(DetectCpuLevel(), weights.matrix(), 0, kRows, shards, x.rows(),
                        {y.data(), num_x_rows, kRows}, scratch);
      EXPECT_EQ(Bits(y), Bits(expected)) << Traits(dtype).name << ", " << num_x_rows;
    }
  }
}

TEST(RowsPerTaskTest, IsWholeCacheLinesAndAtLeastOne) {
  for (const int64_t rows : {1, 16, 300, 100000}) {
    for (const int num_threads : {1, 2, 48}) {
      const int64_t count = RowsPerTask({DType::kQ8_0, nullptr, rows, 2560}, num_threads);
      EXPECT_GT(count, 0);
      EXPECT_EQ(count % 16, 0);
      EXPECT_LE(count * 2720, 64 * 1024 + 16 * 2720);
    }
  }
}

class QuantizeActivationsTest : public testing::TestWithParam<CpuLevel> {
 protected:
  void SetUp() override {
    if (!RunsCpuLevel(GetParam())) GTEST_SKIP() << "this machine cannot run the level";
  }
};

TEST_P(QuantizeActivationsTest, FollowsTheRule) {
  for (const int64_t cols : {1, 31, 32, 33, 64, 100, 640}) {
    const RandomActivations x(GetParam(), 2, cols, 61);
    const QuantizedRows& q = x.rows().quantized;
    for (int64_t row = 0; row < 2; ++row) {
      for (int64_t g = 0; g < q.padded_cols / 32; ++g) {
        const int8_t* quants = q.quants + row * q.padded_cols + 32 * g;
        float largest = 0;
        for (int64_t c = 32 * g; c < std::min(32 * g + 32, cols); ++c) {
          largest = std::max(largest, std::fabs(x.rows().values.row(row)[c]));
        }
        const float scale = q.scales[row * q.padded_cols / 32 + g];
        EXPECT_EQ(scale, largest / 127.0f);
        for (int64_t i = 0; i < 32; ++i) {
          const int64_t c = 32 * g + i;
          const float value = c < cols ? x.rows().values.row(row)[c] : 0.0f;
          EXPECT_GE(quants[i], -127);
          // Half a step, and the rounding of 1 / scale and of the product: 127 * 2 * 2^-24 steps.
          EXPECT_LE(std::fabs(static_cast<double>(quants[i]) * scale - value),
                    scale * (0.5 + 127 * 0x1p-23));
        }
        for (int64_t i = 0; i < 32; i += 16) {
          const int sum = std::accumulate(quants + i, quants + i + 16, 0);
          const int64_t half = (row * q.padded_cols + 32 * g + i) / 16;
          EXPECT_EQ(q.half_offsets[half], -128 * sum);
          EXPECT_EQ(q.half_sums[half], scale * static_cast<float>(sum));
        }
        EXPECT_EQ(q.group_sums[row * q.padded_cols / 32 + g],
                  scale * static_cast<float>(std::accumulate(quants, quants + 32, 0)));
      }
    }
  }
}

TEST_P(QuantizeActivationsTest, RoundsTiesToEven) {
  // The largest magnitude 127 makes the scale 1.
  std::vector<float> x(32, 0.0f);
  x[0] = -127.0f, x[1] = 0.5f, x[2] = 1.5f, x[3] = -2.5f, x[4] = 126.5f;
  alignas(64) std::byte memory[1024];
  ASSERT_LE(QuantizedRows::Bytes(1, 32), 1024);
  const QuantizedRows q = QuantizedRows::Place(memory, 1, 32);
  QuantizeActivationRow(GetParam(), x.data(), q, 0);
  EXPECT_EQ(q.scales[0], 1.0f);
  const std::vector<int> expected = {-127, 0, 2, -2, 126};
  EXPECT_EQ(std::vector<int>(q.quants, q.quants + 5), expected);
}

TEST_P(QuantizeActivationsTest, KeepsZerosTinyAndNonFiniteGroupsApart) {
  std::vector<float> x(160, 0.0f);
  std::fill(x.begin() + 32, x.begin() + 64, 1e-40f);
  x[70] = INFINITY;
  x[71] = 1.0f;
  x[100] = NAN;
  x[128] = 1.0f;
  alignas(64) std::byte memory[2048];
  ASSERT_LE(QuantizedRows::Bytes(1, 160), 2048);
  const QuantizedRows q = QuantizedRows::Place(memory, 1, 160);
  QuantizeActivationRow(GetParam(), x.data(), q, 0);
  EXPECT_EQ(q.scales[0], 0.0f);
  EXPECT_EQ(q.scales[1], 0.0f);
  EXPECT_TRUE(std::isinf(q.scales[2]));
  EXPECT_TRUE(std::isnan(q.scales[3]));
  EXPECT_EQ(q.scales[4], 1.0f / 127.0f);
  for (int i = 0; i < 128; ++i) EXPECT_EQ(q.quants[i], 0) << i;
  EXPECT_EQ(q.quants[128], 127);

  // A non-finite activation must show in the product.
  const RandomWeights weights(DType::kQ8_0, 1, 160, 71);
  MatMulScratch scratch(160);
  ActivationRows rows;
  rows.quantized = q;
  float y = 0;
  const std::array<int64_t, 2> borders = {0, 160};
  MatMulRows(GetParam(), {weights.matrix(), 0, 1, nullptr, 1}, borders, rows, {&y, 1, 0}, scratch);
  EXPECT_TRUE(std::isnan(y));
}

TEST_P(QuantizeActivationsTest, EqualsTheScalarLevelBitForBit) {
  for (const int64_t cols : {20, 32, 640, 2560}) {
    const RandomActivations scalar(CpuLevel::kScalar, 3, cols, 81);
    const RandomActivations level(GetParam(), 3, cols, 81);
    const QuantizedRows& a = scalar.rows().quantized;
    const QuantizedRows& b = level.rows().quantized;
    const auto n = static_cast<size_t>(3 * a.padded_cols);
    EXPECT_EQ(std::memcmp(a.quants, b.quants, n), 0);
    EXPECT_EQ(std::memcmp(a.scales, b.scales, n / 32 * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(a.half_offsets, b.half_offsets, n / 16 * sizeof(int32_t)), 0);
    EXPECT_EQ(std::memcmp(a.group_sums, b.group_sums, n / 32 * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(a.half_sums, b.half_sums, n / 16 * sizeof(float)), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, QuantizeActivationsTest, testing::ValuesIn(kAllLevels),
                         [](const auto& info) { return std::string(CpuLevelName(info.param)); });

TEST(CpuFeaturesTest, NamesRoundTrip) {
  for (const CpuLevel level : kAllLevels) {
    EXPECT_EQ(CpuLevelFromName(CpuLevelName(level)), level);
  }
  EXPECT_FALSE(CpuLevelFromName("AVX2").has_value());
}

TEST(CpuFeaturesTest, DetectsWhatTheCompilerRuntimeDetects) {
  // libgcc asks CPUID and XGETBV by code of its own.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
                      __builtin_cpu_supports("avx512vnni");
  const bool avxvnni = avx2 && __builtin_cpu_supports("avxvnni");
  EXPECT_TRUE(RunsCpuLevel(CpuLevel::kScalar));
  EXPECT_EQ(RunsCpuLevel(CpuLevel::kAvx2), avx2);
  EXPECT_EQ(RunsCpuLevel(CpuLevel::kAvxVnni), avxvnni);
  EXPECT_EQ(RunsCpuLevel(CpuLevel::kAvx512Vnni), avx512);
  EXPECT_EQ(DetectCpuLevel(), avx512    ? CpuLevel::kAvx512Vnni
                              : avxvnni ? CpuLevel::kAvxVnni
                              : avx2    ? CpuLevel::kAvx2
                                        : CpuLevel::kScalar);
}

}  // namespace
}  // namespace switchyard::kernels::cpu
