// The inner loops over row panels: every level gives the bits of the definition in panel_dot.h, for
// any segments and any selection of activation rows.
#include "kernels/cpu/panel_dot.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cpu/panel_dot.h"
#include "kernels/quant/dequantize.h"

namespace switchyard::kernels::cpu {
namespace {

struct TestedLevel {
  CpuLevel level;
  const LevelFunctions* functions;
};

const TestedLevel kTestedLevels[] = {
    {CpuLevel::kAvx2, &kAvx2Functions},
    {CpuLevel::kAvxVnni, &kAvxVnniFunctions},
    {CpuLevel::kAvx512Vnni, &kAvx512VnniFunctions},
};

constexpr DType kFormats[] = {DType::kQ4_0,   DType::kQ4_1,   DType::kQ5_0,  DType::kQ5_1,
                              DType::kQ8_0,   DType::kQ4_K,   DType::kQ5_K,  DType::kQ6_K,
                              DType::kIQ4_NL, DType::kIQ4_XS, DType::kIQ3_S, DType::kIQ3_XXS};

struct AlignedDelete {
  void operator()(void* data) const { ::operator delete[](data, std::align_val_t{64}); }
};

// Exactly as many elements as asked for, so that a sanitizer sees any access past them.
template <typename T>
std::unique_ptr<T[], AlignedDelete> Aligned(int64_t count) {
  void* data = ::operator new[](static_cast<size_t>(count) * sizeof(T), std::align_val_t{64});
  return std::unique_ptr<T[], AlignedDelete>(static_cast<T*>(data));
}

// Weights as integers and factors, a run of columns for each factor.
//
// Shapes: values [rows, cols]; scales and minima [rows, cols / run_length].
struct PlainWeights {
  int64_t rows, cols, run_length;
  bool has_minimum;
  int value_bits = 8;  // as in ExpandedPanel
  std::vector<int8_t> values;
  std::vector<float> scales, minima;

  PlainWeights(int64_t num_rows, int64_t num_cols, int64_t length, bool minimum)
      : rows(num_rows), cols(num_cols), run_length(length), has_minimum(minimum) {
    values.resize(static_cast<size_t>(rows * cols));
    scales.resize(static_cast<size_t>(rows * cols / run_length));
    minima.resize(scales.size());
  }
};

// Rows of random blocks; blocks with elements that are not finite, or large enough to make the
// others vanish in sums, are drawn again.
std::vector<std::byte> RandomRows(DType dtype, int64_t rows, int64_t cols, std::mt19937& rng) {
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
        !std::all_of(decoded.begin(), decoded.end(), [](float x) { return std::fabs(x) < 1e3f; }));
  }
  return bytes;
}

// Random rows of a format, packed and plain. The last panel is not full.
struct FormatWeights {
  PlainWeights plain;
  std::unique_ptr<std::byte[], AlignedDelete> packed;
  Panels panels;

  FormatWeights(DType dtype, int64_t num_panels, int64_t cols)
      : plain(num_panels * kPanelRows, cols, MakePanelFormat(dtype)->run_length,
              HasMinimum(dtype)) {
    std::mt19937 rng(static_cast<uint32_t>(1000 * num_panels + cols));
    const int64_t rows = plain.rows - 3;
    const std::vector<std::byte> stored = RandomRows(dtype, rows, cols, rng);
    std::vector<float> scales(static_cast<size_t>(cols / 16)), minima(scales.size());
    const auto runs = static_cast<size_t>(cols / plain.run_length);
    for (int64_t row = 0; row < rows; ++row) {
      ExpandRow(dtype, stored.data() + row * RowBytes(dtype, cols), cols,
                &plain.values[static_cast<size_t>(row * cols)], scales.data(), minima.data());
      for (size_t run = 0; run < runs; ++run) {
        const size_t half = run * static_cast<size_t>(plain.run_length / 16);
        plain.scales[static_cast<size_t>(row) * runs + run] = scales[half];
        plain.minima[static_cast<size_t>(row) * runs + run] = minima[half];
      }
    }
    plain.value_bits = MakePanelFormat(dtype)->value_bits();
    const int64_t panel_bytes = MakePanelFormat(dtype)->panel_bytes(cols);
    packed = Aligned<std::byte>(num_panels * panel_bytes);
    for (int64_t p = 0; p < num_panels; ++p) {
      PackPanel(dtype, stored.data() + p * kPanelRows * RowBytes(dtype, cols),
                std::min(kPanelRows, rows - p * kPanelRows), cols, packed.get() + p * panel_bytes);
    }
    panels = {packed.get(), panel_bytes, cols, num_panels};
  }
};

// Random quants and scales, the sums by their definition.
struct Activations {
  std::unique_ptr<std::byte[], AlignedDelete> memory;
  QuantizedRows rows;

  Activations(int64_t num_rows, int64_t cols)
      : memory(Aligned<std::byte>(QuantizedRows::Bytes(num_rows, cols))),
        rows(QuantizedRows::Place(memory.get(), num_rows, cols)) {
    std::mt19937 rng(static_cast<uint32_t>(10 * cols + num_rows));
    const int64_t padded = rows.padded_cols;
    for (int64_t row = 0; row < num_rows; ++row) {
      // Rows of one sign reach the largest sums.
      const int lowest = row % 3 == 1 ? 127 : -127;
      const int highest = row % 3 == 2 ? -127 : 127;
      std::uniform_int_distribution<int> quant(lowest, highest);
      std::uniform_real_distribution<float> scale(0.001f, 0.1f);
      for (int64_t c = 0; c < padded; ++c) {
        rows.quants[row * padded + c] = static_cast<int8_t>(c < cols ? quant(rng) : 0);
      }
      for (int64_t g = 0; g < padded / 32; ++g) {
        const int64_t at = row * padded / 32 + g;
        rows.scales[at] = 32 * g < cols ? scale(rng) : 0.0f;
        rows.group_sums[at] = rows.scales[at] * static_cast<float>(Sum(32 * at, 32));
        for (int64_t half = 2 * at; half < 2 * at + 2; ++half) {
          rows.half_sums[half] = rows.scales[at] * static_cast<float>(Sum(16 * half, 16));
          rows.half_offsets[half] = -128 * Sum(16 * half, 16);
        }
      }
    }
  }

  int32_t Sum(int64_t first, int64_t count) const {
    int32_t sum = 0;
    for (int64_t i = first; i < first + count; ++i) sum += rows.quants[i];
    return sum;
  }
};

// The definition.
float Dot(const PlainWeights& w, int64_t row, const Activations& x, int64_t x_row, int64_t begin,
          int64_t end) {
  const int64_t first = x_row * x.rows.padded_cols;
  float acc = 0;
  for (int64_t c = begin; c < end; c += w.run_length) {
    int32_t products = 0, quants = 0;
    for (int64_t i = c; i < c + w.run_length; ++i) {
      products += w.values[static_cast<size_t>(row * w.cols + i)] * x.rows.quants[first + i];
      quants += x.rows.quants[first + i];
    }
    const auto run = static_cast<size_t>((row * w.cols + c) / w.run_length);
    const float a = x.rows.scales[(first + c) / 32];
    acc = std::fma(static_cast<float>(products), w.scales[run] * a, acc);
    if (w.has_minimum) acc = std::fma(w.minima[run], a * static_cast<float>(quants), acc);
  }
  return acc;
}

// Compares all results of a call, which wrote into `out`, with the definition.
void ExpectDefinition(const PlainWeights& w, const Activations& x, const RowSelection& x_rows,
                      const std::vector<int64_t>& borders, const std::vector<float>& out) {
  size_t at = 0;
  for (size_t s = 0; s + 1 < borders.size(); ++s) {
    for (int64_t b = 0; b < x_rows.count; ++b) {
      for (int64_t row = 0; row < w.rows; ++row, ++at) {
        const float expected = Dot(w, row, x, x_rows[b], borders[s], borders[s + 1]);
        ASSERT_EQ(std::bit_cast<uint32_t>(expected), std::bit_cast<uint32_t>(out[at]))
            << expected << " against " << out[at] << ": columns " << borders[s] << " to "
            << borders[s + 1] << ", activation row " << b << " of " << x_rows.count
            << ", weight row " << row << " of " << w.rows;
      }
    }
  }
}

// Memory for all results, NaN where nothing is written.
std::vector<float> Results(int64_t weight_rows, int64_t x_rows,
                           const std::vector<int64_t>& borders) {
  return std::vector<float>((borders.size() - 1) * static_cast<size_t>(x_rows * weight_rows), NAN);
}

Segments SegmentsOf(const std::vector<int64_t>& borders) {
  return {borders.data(), static_cast<int>(borders.size()) - 1};
}

// All columns; each group of 32 for itself; borders inside blocks, with empty segments.
std::vector<std::vector<int64_t>> BordersOf(int64_t cols) {
  std::vector<int64_t> groups;
  for (int64_t c = 0; c <= cols; c += 32) groups.push_back(c);
  const int64_t third = cols / 3 / 32 * 32;
  return {{0, cols}, groups, {0, 0, third, third, cols - third, cols, cols}, {third, cols}};
}

class PanelDotTest : public testing::TestWithParam<std::tuple<TestedLevel, DType>> {
 protected:
  void SetUp() override {
    if (!RunsCpuLevel(std::get<0>(GetParam()).level)) GTEST_SKIP() << "not on this machine";
  }
  DType dtype() const { return std::get<1>(GetParam()); }
  const LevelFunctions& level() const { return *std::get<0>(GetParam()).functions; }
  std::vector<int64_t> Columns() const {
    if (Traits(dtype()).block_length == 256) return {256, 512, 2560};
    return {32, 64, 160, 320, 640};
  }
};

TEST_P(PanelDotTest, DotsOfPackedPanelsAreTheDefinition) {
  const FormatFunctions functions = level().format(dtype());
  for (const int64_t cols : Columns()) {
    for (const int64_t num_panels : {1, 3}) {
      const FormatWeights w(dtype(), num_panels, cols);
      const Activations x(11, cols);
      for (const std::vector<int64_t>& borders : BordersOf(cols)) {
        for (const int64_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 17}) {
          if (cols > 640 && (borders.size() > 8 || count == 6)) continue;  // slow, and nothing new
          const int32_t reordered[17] = {10, 0, 7, 7, 3, 9, 1, 2, 4, 5, 6, 8, 0, 10, 10, 1, 3};
          const RowSelection x_rows = {count % 2 == 0 || count > 11 ? reordered : nullptr, count};
          std::vector<float> out = Results(w.plain.rows, count, borders);
          functions.dot_panels(w.panels, x.rows, x_rows, SegmentsOf(borders),
                               {out.data(), w.plain.rows, count * w.plain.rows});
          ExpectDefinition(w.plain, x, x_rows, borders, out);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(PanelDotTest, AGroupThatIsNotFiniteGivesNan) {
  const int64_t cols = Columns().back();
  const FormatWeights w(dtype(), 1, cols);
  const Activations x(2, cols);
  x.rows.scales[1] = INFINITY;
  std::fill(x.rows.quants + 32, x.rows.quants + 64, int8_t{0});
  x.rows.half_offsets[2] = x.rows.half_offsets[3] = 0;
  x.rows.group_sums[1] = x.rows.half_sums[2] = x.rows.half_sums[3] = INFINITY * 0.0f;
  const std::vector<int64_t> borders = {0, 32, cols};
  std::vector<float> out = Results(w.plain.rows, 2, borders);
  level().format(dtype()).dot_panels(w.panels, x.rows, {nullptr, 2}, SegmentsOf(borders),
                                     {out.data(), w.plain.rows, 2 * w.plain.rows});
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(std::isnan(out[i]), i / kPanelRows == 2) << "result " << i;
  }
}

// An expanded panel over columns [begin, end), in memory of its own.
struct OwnedPanel {
  std::unique_ptr<uint8_t[], AlignedDelete> values;
  std::unique_ptr<float[], AlignedDelete> scales, minima;
  ExpandedPanel panel;

  OwnedPanel(int64_t begin, int64_t end, int run_length, bool has_minimum) {
    const int64_t cols = end - begin;
    const int64_t factors = cols / run_length * kPanelRows;
    values = Aligned<uint8_t>(cols * kPanelRows);
    scales = Aligned<float>(factors);
    if (has_minimum) minima = Aligned<float>(factors);
    panel = {begin, cols, run_length, has_minimum, values.get(), scales.get(), minima.get()};
  }
};

TEST_P(PanelDotTest, ExpandsToTheBitsOfPlainCode) {
  for (const int64_t cols : Columns()) {
    const FormatWeights w(dtype(), 1, cols);
    for (const int64_t begin : {int64_t{0}, cols / 64 * 32}) {
      const int64_t end = cols;
      const PanelFormat format = *MakePanelFormat(dtype());
      const OwnedPanel expected(begin, end, format.run_length, format.has_minimum);
      const OwnedPanel actual(begin, end, format.run_length, format.has_minimum);
      PortableExpandPanel(dtype())(w.panels.data, cols, expected.panel);
      level().format(dtype()).expand_panel(w.panels.data, cols, actual.panel);
      const auto factors = static_cast<size_t>((end - begin) / format.run_length * kPanelRows);
      EXPECT_EQ(std::memcmp(expected.values.get(), actual.values.get(),
                            static_cast<size_t>((end - begin) * kPanelRows)),
                0);
      EXPECT_EQ(std::memcmp(expected.scales.get(), actual.scales.get(), 4 * factors), 0);
      if (!format.has_minimum) continue;
      EXPECT_EQ(std::memcmp(expected.minima.get(), actual.minima.get(), 4 * factors), 0);
    }
  }
}

// Fills expanded panels from plain weights.
std::vector<OwnedPanel> Expand(const PlainWeights& w, int64_t begin, int64_t end) {
  std::vector<OwnedPanel> panels;
  for (int64_t p = 0; p < w.rows / kPanelRows; ++p) {
    OwnedPanel& owned =
        panels.emplace_back(begin, end, static_cast<int>(w.run_length), w.has_minimum);
    for (int64_t row = 0; row < kPanelRows; ++row) {
      for (int64_t c = begin; c < end; ++c) {
        const int64_t at = (p * kPanelRows + row) * w.cols + c;
        owned.values[static_cast<size_t>((c - begin) / 4 * 64 + 4 * row + c % 4)] =
            static_cast<uint8_t>(w.values[static_cast<size_t>(at)] + 128);
        if (c % w.run_length != 0) continue;
        const auto factor = static_cast<size_t>((c - begin) / w.run_length * kPanelRows + row);
        owned.scales[factor] = w.scales[static_cast<size_t>(at / w.run_length)];
        if (!w.has_minimum) continue;
        owned.minima[factor] = w.minima[static_cast<size_t>(at / w.run_length)];
      }
    }
  }
  return panels;
}

void ExpectExpandedDots(DotExpandedFunction dot, const PlainWeights& w, const Activations& x,
                        const RowSelection& x_rows, const std::vector<int64_t>& borders) {
  const std::vector<OwnedPanel> owned = Expand(w, borders.front(), borders.back());
  std::vector<ExpandedPanel> panels;
  for (const OwnedPanel& panel : owned) panels.push_back(panel.panel);
  for (ExpandedPanel& panel : panels) panel.value_bits = w.value_bits;
  std::vector<float> out = Results(w.rows, x_rows.count, borders);
  dot(panels.data(), static_cast<int64_t>(panels.size()), x.rows, x_rows, SegmentsOf(borders),
      {out.data(), w.rows, x_rows.count * w.rows});
  ExpectDefinition(w, x, x_rows, borders, out);
}

TEST_P(PanelDotTest, DotsOfExpandedPanelsAreTheDefinition) {
  const int64_t cols = Columns().back();
  const FormatWeights w(dtype(), 3, cols);
  const Activations x(17, cols);
  std::vector<int32_t> reordered(17);
  for (int32_t i = 0; i < 17; ++i) reordered[static_cast<size_t>(i)] = i * 5 % 17;
  for (const std::vector<int64_t>& borders : BordersOf(cols)) {
    if (cols > 640 && borders.size() > 8) continue;
    ExpectExpandedDots(level().dot_expanded, w.plain, x, {nullptr, 17}, borders);
    ExpectExpandedDots(level().dot_expanded, w.plain, x, {reordered.data(), 17}, borders);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, PanelDotTest,
                         testing::Combine(testing::ValuesIn(kTestedLevels),
                                          testing::ValuesIn(kFormats)),
                         [](const auto& info) {
                           return std::string(CpuLevelName(std::get<0>(info.param).level)) + "_" +
                                  std::string(Traits(std::get<1>(info.param)).name);
                         });

// Expanded panels of any origin: both run lengths, with and without minima, any number of panels
// and activation rows, and columns past what a tile takes at a time.
class ExpandedDotTest : public testing::TestWithParam<TestedLevel> {};

TEST_P(ExpandedDotTest, AnyNumberOfRowsAndPanels) {
  if (!RunsCpuLevel(GetParam().level)) GTEST_SKIP() << "not on this machine";
  std::mt19937 rng(1);
  for (const int64_t run_length : {16, 32}) {
    for (const bool has_minimum : {false, true}) {
      for (const int64_t cols : {32, 160, 2336}) {
        for (const int64_t num_panels : {1, 2, 3}) {
          PlainWeights w(num_panels * kPanelRows, cols, run_length, has_minimum);
          std::uniform_int_distribution<int> value(has_minimum ? 0 : -128, has_minimum ? 63 : 127);
          std::uniform_real_distribution<float> factor(-0.1f, 0.1f);
          for (int8_t& v : w.values) v = static_cast<int8_t>(value(rng));
          for (float& scale : w.scales) scale = factor(rng);
          for (float& minimum : w.minima) minimum = factor(rng);
          const Activations x(17, cols);
          for (const int64_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
            if (cols > 160 && count != 1 && count != 17) continue;
            ExpectExpandedDots(GetParam().functions->dot_expanded, w, x, {nullptr, count},
                               {0, cols});
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

// Rows of the lowest, of the highest and of random weights: the first two reach the largest sums.
TEST_P(ExpandedDotTest, WeightsOfAnyNumberOfBits) {
  if (!RunsCpuLevel(GetParam().level)) GTEST_SKIP() << "not on this machine";
  std::mt19937 rng(2);
  for (const int64_t run_length : {16, 32}) {
    for (const bool has_minimum : {false, true}) {
      for (int bits = 4; bits <= (has_minimum ? 6 : 8); ++bits) {
        PlainWeights w(kPanelRows, 96, run_length, has_minimum);
        w.value_bits = bits;
        const int lowest = has_minimum ? 0 : -(1 << (bits - 1));
        const int highest = lowest + (1 << bits) - 1;
        std::uniform_int_distribution<int> value(lowest, highest);
        for (size_t i = 0; i < w.values.size(); ++i) {
          const size_t row = i / static_cast<size_t>(w.cols);
          w.values[i] = static_cast<int8_t>(row == 0 ? lowest : row == 1 ? highest : value(rng));
        }
        std::uniform_real_distribution<float> factor(-0.1f, 0.1f);
        for (float& scale : w.scales) scale = factor(rng);
        for (float& minimum : w.minima) minimum = factor(rng);
        const Activations x(7, w.cols);
        ExpectExpandedDots(GetParam().functions->dot_expanded, w, x, {nullptr, 7}, {0, w.cols});
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, ExpandedDotTest, testing::ValuesIn(kTestedLevels),
                         [](const auto& info) {
                           return std::string(CpuLevelName(info.param.level));
                         });

}  // namespace
}  // namespace switchyard::kernels::cpu
