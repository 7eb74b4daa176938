// The scalar level: the definition of panel_dot.h in plain C++.
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/cpu/panel_dot.h"
#include "kernels/quant/half.h"

namespace switchyard::kernels::cpu {
namespace {

float SumOfLanes(const float* acc) {
  float s[8];
  for (int l = 0; l < 8; ++l) s[l] = acc[l] + acc[l + 8];
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

// One row of a panel and one activation row, over columns [begin, end).
float DotRow(const ExpandedPanel& w, int64_t row, const QuantizedRows& x, int64_t x_row,
             int64_t begin, int64_t end) {
  const int8_t* quants = x.quants + x_row * x.padded_cols;
  const float* x_scales = x.scales + x_row * (x.padded_cols / 32);
  const int64_t length = w.run_length;
  const float* x_sums = length == 16 ? x.half_sums + x_row * (x.padded_cols / 16)
                                     : x.group_sums + x_row * (x.padded_cols / 32);
  float acc = 0;
  for (int64_t run = begin; run < end; run += length) {
    int32_t sum = 0;
    for (int64_t col = run; col < run + length; ++col) {
      const int64_t c = col - w.begin;
      sum += (w.values[c / 4 * 64 + 4 * row + c % 4] - 128) * quants[col];
    }
    const int64_t at = (run - w.begin) / length * kPanelRows + row;
    acc = std::fma(static_cast<float>(sum), w.scales[at] * x_scales[run / 32], acc);
    if (w.has_minimum) acc = std::fma(w.minima[at], x_sums[run / length], acc);
  }
  return acc;
}

void DotExpanded(const ExpandedPanel* panels, int64_t num_panels, const QuantizedRows& x,
                 const RowSelection& x_rows, const Segments& segments, const DotOutput& out) {
  for (int s = 0; s < segments.num_segments; ++s) {
    for (int64_t b = 0; b < x_rows.count; ++b) {
      float* out_row = out.data + s * out.segment_stride + b * out.row_stride;
      for (int64_t p = 0; p < num_panels; ++p) {
        for (int64_t r = 0; r < kPanelRows; ++r) {
          out_row[p * kPanelRows + r] =
              DotRow(panels[p], r, x, x_rows[b], segments.border[s], segments.border[s + 1]);
        }
      }
    }
  }
}

struct F32Loader {
  static constexpr int kBytes = 4;
  static float Load(const std::byte* bytes) {
    float value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }
};
struct F16Loader {
  static constexpr int kBytes = 2;
  static float Load(const std::byte* bytes) {
    uint16_t value;
    std::memcpy(&value, bytes, sizeof(value));
    return HalfToFloat(value);
  }
};
struct BF16Loader {
  static constexpr int kBytes = 2;
  static float Load(const std::byte* bytes) {
    uint16_t value;
    std::memcpy(&value, bytes, sizeof(value));
    return BFloat16ToFloat(value);
  }
};

template <typename Loader>
void DotFloat(const StoredRows& w, MatrixView<const float> x, const RowSelection& x_rows,
              const Segments& segments, const DotOutput& out) {
  for (int s = 0; s < segments.num_segments; ++s) {
    const int64_t begin = segments.border[s];
    const int64_t end = segments.border[s + 1];
    for (int64_t b = 0; b < x_rows.count; ++b) {
      const float* x_row = x.row(x_rows[b]);
      for (int64_t r = 0; r < w.num_rows; ++r) {
        const std::byte* row = w.data + r * w.row_bytes;
        float acc[16] = {};
        for (int64_t c = begin; c < end; ++c) {
          float& lane = acc[(c - begin) % 16];
          lane = std::fma(Loader::Load(row + c * Loader::kBytes), x_row[c], lane);
        }
        out.data[s * out.segment_stride + b * out.row_stride + r] = SumOfLanes(acc);
      }
    }
  }
}

void QuantizeRow(const float* values, const QuantizedRows& out, int64_t row) {
  const int64_t base = row * out.padded_cols;
  for (int64_t k = 0; k < out.padded_cols; k += kGroupLength) {
    float x[kGroupLength] = {};
    for (int i = 0; i < kGroupLength && k + i < out.cols; ++i) x[i] = values[k + i];
    // Bit patterns of magnitudes order like the magnitudes, with NaN above infinity.
    uint32_t largest = 0;
    for (const float value : x) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7fffffffu;
      if (magnitude > largest) largest = magnitude;
    }
    float scale = std::bit_cast<float>(largest) / 127.0f;
    float inverse = 0;
    if (scale < 0x1p-126f) {
      scale = 0;
    } else if (std::isfinite(scale)) {
      inverse = 1.0f / scale;
    }
    out.scales[(base + k) / 32] = scale;
    int32_t sum16[2] = {};
    for (int l = 0; l < 8; ++l) {
      int32_t sum = 0;
      for (int i = 4 * l; i < 4 * l + 4; ++i) {
        const int quant = inverse == 0 ? 0 : static_cast<int>(std::nearbyint(x[i] * inverse));
        out.quants[base + k + i] = static_cast<int8_t>(quant);
        sum += quant;
      }
      sum16[l / 4] += sum;
    }
    for (int h = 0; h < 2; ++h) {
      out.half_offsets[(base + k) / 16 + h] = -128 * sum16[h];
      out.half_sums[(base + k) / 16 + h] = scale * static_cast<float>(sum16[h]);
    }
    out.group_sums[(base + k) / 32] = scale * static_cast<float>(sum16[0] + sum16[1]);
  }
}

FormatFunctions Format(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {nullptr, nullptr, DotFloat<F32Loader>};
    case DType::kF16:
      return {nullptr, nullptr, DotFloat<F16Loader>};
    case DType::kBF16:
      return {nullptr, nullptr, DotFloat<BF16Loader>};
    default:
      return {nullptr, HasPanels(dtype) ? PortableExpandPanel(dtype) : nullptr, nullptr};
  }
}

}  // namespace

const LevelFunctions kScalarFunctions = {Format, DotExpanded, QuantizeRow};

}  // namespace switchyard::kernels::cpu
