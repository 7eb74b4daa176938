// Row panels: packing loses nothing, whatever the number of rows and columns.
#include "kernels/cpu/panel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cpu/panel_dot.h"
#include "kernels/quant/dequantize.h"

namespace switchyard::kernels::cpu {
namespace {

struct AlignedDelete {
  void operator()(std::byte* data) const { ::operator delete[](data, std::align_val_t{64}); }
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDelete>;

AlignedBytes Aligned(int64_t bytes) {
  return AlignedBytes(
      static_cast<std::byte*>(::operator new[](static_cast<size_t>(bytes), std::align_val_t{64})));
}

// Rows of random bits; blocks whose elements are not finite are drawn again.
std::vector<std::byte> RandomRows(DType dtype, int64_t rows, int64_t cols) {
  std::mt19937 rng(static_cast<uint32_t>(100 * rows + cols));
  const DTypeTraits& traits = Traits(dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(rows * RowBytes(dtype, cols)));
  std::vector<float> decoded(static_cast<size_t>(traits.block_length));
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(traits.block_bytes)) {
    do {
      for (int i = 0; i < traits.block_bytes; ++i) {
        bytes[at + static_cast<size_t>(i)] = static_cast<std::byte>(rng());
      }
      DequantizeRow(dtype, &bytes[at], traits.block_length, decoded.data());
    } while (
        !std::all_of(decoded.begin(), decoded.end(), [](float x) { return std::isfinite(x); }));
  }
  return bytes;
}

class PanelTest : public testing::TestWithParam<DType> {
 protected:
  std::vector<int64_t> Columns() const {
    if (Traits(GetParam()).block_length == 256) return {256, 512, 2560};
    return {32, 64, 160, 320, 640, 2048};
  }
};

TEST_P(PanelTest, RowsComeBackBitForBit) {
  const DType dtype = GetParam();
  for (const int64_t cols : Columns()) {
    for (const int64_t rows : {1, 15, 16}) {
      const std::vector<std::byte> stored = RandomRows(dtype, rows, cols);
      const AlignedBytes panel = Aligned(PanelsBytes(dtype, rows, cols));
      PackPanel(dtype, stored.data(), rows, cols, panel.get());
      std::vector<float> expected(static_cast<size_t>(cols)), actual(static_cast<size_t>(cols));
      for (int64_t row = 0; row < kPanelRows; ++row) {
        std::fill(expected.begin(), expected.end(), 0.0f);
        if (row < rows) {
          DequantizeRow(dtype, stored.data() + row * RowBytes(dtype, cols), cols, expected.data());
        }
        DecodePanelRow(dtype, panel.get(), row, cols, actual.data());
        if (row < rows) {
          EXPECT_EQ(std::memcmp(expected.data(), actual.data(), expected.size() * sizeof(float)), 0)
              << cols << " columns, row " << row << " of " << rows;
        } else {
          EXPECT_EQ(expected, actual) << "row " << row << " of " << rows;
        }
      }
    }
  }
}

TEST_P(PanelTest, ExpandsToTheIntegersAndFactorsOfTheFormat) {
  const DType dtype = GetParam();
  const int run_length = MakePanelFormat(dtype)->run_length;
  for (const int64_t cols : Columns()) {
    const std::vector<std::byte> stored = RandomRows(dtype, kPanelRows, cols);
    const AlignedBytes panel = Aligned(PanelsBytes(dtype, kPanelRows, cols));
    PackPanel(dtype, stored.data(), kPanelRows, cols, panel.get());
    const int64_t runs = cols / run_length;
    const AlignedBytes values = Aligned(cols * kPanelRows);
    std::vector<float> scales(static_cast<size_t>(runs * kPanelRows)), minima(scales.size());
    ExpandedPanel expanded = {};
    expanded.cols = cols;
    expanded.run_length = run_length;
    expanded.has_minimum = HasMinimum(dtype);
    expanded.values = reinterpret_cast<uint8_t*>(values.get());
    expanded.scales = scales.data();
    expanded.minima = minima.data();
    PortableExpandPanel(dtype)(panel.get(), cols, expanded);
    std::vector<int8_t> row_values(static_cast<size_t>(cols));
    std::vector<float> row_scales(static_cast<size_t>(cols / 16)), row_minima(row_scales.size());
    for (int64_t row = 0; row < kPanelRows; ++row) {
      ExpandRow(dtype, stored.data() + row * RowBytes(dtype, cols), cols, row_values.data(),
                row_scales.data(), row_minima.data());
      for (int64_t c = 0; c < cols; ++c) {
        ASSERT_EQ(expanded.values[c / 4 * 64 + 4 * row + c % 4] - 128,
                  row_values[static_cast<size_t>(c)]);
        const auto run = static_cast<size_t>(c / run_length * kPanelRows + row);
        ASSERT_EQ(scales[run], row_scales[static_cast<size_t>(c / 16)]);
        if (!expanded.has_minimum) continue;
        ASSERT_EQ(minima[run], row_minima[static_cast<size_t>(c / 16)]);
      }
    }
  }
}

// Factors of the blocks or groups, filled up to 64 bytes, then the quants.
TEST(PanelFormatTest, SizesAreThoseOfTheLayout) {
  EXPECT_EQ(PanelsBytes(DType::kIQ4_XS, 16, 2560), 10 * (32 + 8 * 16) + 10 * 8 * 256);
  EXPECT_EQ(PanelsBytes(DType::kQ6_K, 17, 256), 2 * (320 + 8 * 384));
  EXPECT_EQ(PanelsBytes(DType::kQ8_0, 16, 32), 64 + 512);
  EXPECT_FALSE(HasPanels(DType::kQ2_K));
  EXPECT_FALSE(HasPanels(DType::kF32));
}

INSTANTIATE_TEST_SUITE_P(Formats, PanelTest,
                         testing::Values(DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                         DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
                                         DType::kIQ4_NL, DType::kIQ4_XS, DType::kIQ3_S,
                                         DType::kIQ3_XXS),
                         [](const auto& info) { return std::string(Traits(info.param).name); });

}  // namespace
}  // namespace switchyard::kernels::cpu
