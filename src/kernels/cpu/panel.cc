// Packing works on words of four columns: the codes of four adjacent columns of a row, one a byte.
#include "kernels/cpu/panel.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/panel_dot.h"
#include "kernels/quant/formats.h"

static_assert(std::endian::native == std::endian::little);

namespace switchyard::kernels::cpu {
namespace {

constexpr uint32_t kLowNibbles = 0x0f0f0f0f;
constexpr uint32_t kOnes = 0x01010101;
constexpr int kWords = 8;  // of a group

void StoreU32(std::byte* to, uint32_t word) { std::memcpy(to, &word, sizeof(word)); }

// What becomes of one stored block: codes of its groups, and its factors.
template <int kGroups>
struct Unpacked {
  uint32_t codes[kGroups][kWords];
  uint16_t d = 0, dmin = 0;          // halves
  uint8_t scales[2 * kGroups] = {};  // one a run
  uint8_t minima[kGroups] = {};
};

// The four bits of `bits`, each as bit 0 of a byte.
constexpr std::array<uint32_t, 16> kSpread = [] {
  std::array<uint32_t, 16> table{};
  for (uint32_t bits = 0; bits < 16; ++bits) {
    for (uint32_t i = 0; i < 4; ++i) table[bits] |= (bits >> i & 1) << (8 * i);
  }
  return table;
}();

// 16 bytes with the first 16 columns in their low and the next 16 in their high halves.
void NibbleGroup(const uint8_t* qs, uint32_t* codes) {
  for (int t = 0; t < 4; ++t) {
    const uint32_t word = LoadU32(qs + 4 * t);
    codes[t] = word & kLowNibbles;
    codes[t + 4] = word >> 4 & kLowNibbles;
  }
}

void AddFifthBits(uint32_t bits, uint32_t* codes) {
  for (int t = 0; t < kWords; ++t) codes[t] |= kSpread[bits >> (4 * t) & 15] << 4;
}

// 32 bytes with one group in their low and the next in their high halves.
void NibblePlane(const uint8_t* qs, int half, uint32_t* codes) {
  for (int t = 0; t < kWords; ++t) codes[t] = LoadU32(qs + 4 * t) >> (4 * half) & kLowNibbles;
}

// Codes of four elements by codebook index. kOdd: with t = (magnitude - 1) / 2, +magnitude has code
// 8 + t and -magnitude 7 - t, its complement.
std::array<uint32_t, 512> MakeIq3SCodes() {
  std::array<uint32_t, 512> table{};
  for (size_t index = 0; index < table.size(); ++index) {
    for (size_t i = 0; i < 4; ++i) {
      const uint32_t magnitude = kIq3SCodebook[4 * index + i];
      table[index] |= (8 + (magnitude - 1) / 2) << (8 * i);
    }
  }
  return table;
}

// Places in the table of magnitudes 4, 12, ..., 52, 62.
std::array<uint32_t, 256> MakeIq3XxsCodes() {
  std::array<uint32_t, 256> table{};
  for (size_t index = 0; index < table.size(); ++index) {
    for (size_t i = 0; i < 4; ++i) {
      table[index] |= static_cast<uint32_t>(kIq3XxsCodebook[4 * index + i] / 8) << (8 * i);
    }
  }
  return table;
}

template <DType dtype>
struct Unpacker;

template <>
struct Unpacker<DType::kQ4_0> {
  static void Unpack(const uint8_t* block, Unpacked<1>& out) {
    out.d = LoadU16(block);
    NibbleGroup(block + 2, out.codes[0]);
  }
};

template <>
struct Unpacker<DType::kIQ4_NL> : Unpacker<DType::kQ4_0> {};

template <>
struct Unpacker<DType::kQ4_1> {
  static void Unpack(const uint8_t* block, Unpacked<1>& out) {
    out.d = LoadU16(block);
    out.dmin = LoadU16(block + 2);
    NibbleGroup(block + 4, out.codes[0]);
  }
};

template <>
struct Unpacker<DType::kQ5_0> {
  static void Unpack(const uint8_t* block, Unpacked<1>& out) {
    out.d = LoadU16(block);
    NibbleGroup(block + 6, out.codes[0]);
    AddFifthBits(LoadU32(block + 2), out.codes[0]);
  }
};

template <>
struct Unpacker<DType::kQ5_1> {
  static void Unpack(const uint8_t* block, Unpacked<1>& out) {
    out.d = LoadU16(block);
    out.dmin = LoadU16(block + 2);
    NibbleGroup(block + 8, out.codes[0]);
    AddFifthBits(LoadU32(block + 4), out.codes[0]);
  }
};

template <>
struct Unpacker<DType::kQ8_0> {
  static void Unpack(const uint8_t* block, Unpacked<1>& out) {
    out.d = LoadU16(block);
    for (int t = 0; t < kWords; ++t) out.codes[0][t] = LoadU32(block + 2 + 4 * t) ^ 0x80808080;
  }
};

template <>
struct Unpacker<DType::kQ4_K> {
  static void Unpack(const uint8_t* block, Unpacked<8>& out) {
    out.d = LoadU16(block);
    out.dmin = LoadU16(block + 2);
    UnpackKScales(block + 4, out.scales, out.minima);
    for (int g = 0; g < 8; ++g) NibblePlane(block + 16 + 32 * (g / 2), g % 2, out.codes[g]);
  }
};

template <>
struct Unpacker<DType::kQ5_K> {
  static void Unpack(const uint8_t* block, Unpacked<8>& out) {
    out.d = LoadU16(block);
    out.dmin = LoadU16(block + 2);
    UnpackKScales(block + 4, out.scales, out.minima);
    for (int g = 0; g < 8; ++g) {
      NibblePlane(block + 48 + 32 * (g / 2), g % 2, out.codes[g]);
      for (int t = 0; t < kWords; ++t) {
        out.codes[g][t] |= (LoadU32(block + 16 + 4 * t) >> g & kOnes) << 4;
      }
    }
  }
};

template <>
struct Unpacker<DType::kQ6_K> {
  static void Unpack(const uint8_t* block, Unpacked<8>& out) {
    out.d = LoadU16(block + 208);
    std::memcpy(out.scales, block + 192, 16);
    for (int g = 0; g < 8; ++g) {
      const int half = g / 4, quarter = g % 4;
      NibblePlane(block + 64 * half + 32 * (quarter % 2), quarter / 2, out.codes[g]);
      for (int t = 0; t < kWords; ++t) {
        const uint32_t high = LoadU32(block + 128 + 32 * half + 4 * t) >> (2 * quarter);
        out.codes[g][t] |= (high & 3 * kOnes) << 4;
      }
    }
  }
};

template <>
struct Unpacker<DType::kIQ4_XS> {
  static void Unpack(const uint8_t* block, Unpacked<8>& out) {
    out.d = LoadU16(block);
    const uint16_t high = LoadU16(block + 2);
    for (int g = 0; g < 8; ++g) {
      const int scale = (Nibble(block[4 + g / 2], g % 2) | (high >> 2 * g & 3) << 4) - 32;
      out.scales[g] = static_cast<uint8_t>(scale);
      NibbleGroup(block + 8 + 16 * g, out.codes[g]);
    }
  }
};

template <>
struct Unpacker<DType::kIQ3_S> {
  static void Unpack(const uint8_t* block, Unpacked<8>& out) {
    static const std::array<uint32_t, 512> kCodes = MakeIq3SCodes();
    out.d = LoadU16(block);
    for (int g = 0; g < 8; ++g) {
      out.scales[g] = static_cast<uint8_t>(1 + 2 * Nibble(block[106 + g / 2], g % 2));
      const uint32_t high = block[66 + g];
      const uint32_t signs = LoadU32(block + 74 + 4 * g);
      for (int t = 0; t < kWords; ++t) {
        const uint32_t index = block[2 + 8 * g + t] | (high >> t & 1) << 8;
        out.codes[g][t] = kCodes[index] ^ kSpread[signs >> (4 * t) & 15] * 15;
      }
    }
  }
};

template <>
struct Unpacker<DType::kIQ3_XXS> {
  static void Unpack(const uint8_t* block, Unpacked<8>& out) {
    static const std::array<uint32_t, 256> kCodes = MakeIq3XxsCodes();
    out.d = LoadU16(block);
    for (int g = 0; g < 8; ++g) {
      const uint32_t a = LoadU32(block + 66 + 4 * g);
      out.scales[g] = static_cast<uint8_t>(1 + 2 * (a >> 28));
      for (int t = 0; t < kWords; ++t) {
        const uint32_t signs = ExtendSigns(a >> (7 * (t / 2)) & 127) >> (4 * (t % 2));
        out.codes[g][t] = kCodes[block[2 + 8 * g + t]] | kSpread[signs & 15] << 3;
      }
    }
  }
};

// Word `row` of each vector of a group.
template <int kBits>
void StoreGroup(const uint32_t* codes, int64_t row, std::byte* quants) {
  const auto store = [&](int vector, uint32_t word) {
    StoreU32(quants + 64 * vector + 4 * row, word);
  };
  if constexpr (kBits == 8) {
    for (int t = 0; t < kWords; ++t) store(t, codes[t]);
    return;
  }
  for (int j = 0; j < 4; ++j) {
    store(j, (codes[2 * j] & kLowNibbles) | (codes[2 * j + 1] & kLowNibbles) << 4);
  }
  if constexpr (kBits == 5) {
    uint32_t fifth = 0;
    for (int t = 0; t < kWords; ++t) fifth |= (codes[t] >> 4 & kOnes) << t;
    store(4, fifth);
  }
  if constexpr (kBits == 6) {
    for (int v = 0; v < 2; ++v) {
      uint32_t high = 0;
      for (int u = 0; u < 4; ++u) high |= (codes[4 * v + u] >> 4 & 3 * kOnes) << (2 * u);
      store(4 + v, high);
    }
  }
}

template <DType dtype>
void PackRow(const uint8_t* stored, int64_t row, int64_t cols, std::byte* panel) {
  constexpr PanelFormat kFormat = kPanelFormat<dtype>;
  constexpr int kGroups = kFormat.has_blocks ? kPanelBlock / kPanelGroup : 1;
  constexpr int kRuns = kPanelGroup / kFormat.run_length;
  const int block_bytes = Traits(dtype).block_bytes;
  Unpacked<kGroups> block;
  std::byte* factors = panel;
  std::byte* quants = panel + kFormat.quants_begin(cols);
  for (int64_t b = 0; b < kFormat.num_factors(cols); ++b) {
    Unpacker<dtype>::Unpack(stored, block);
    stored += block_bytes;
    std::byte* to = factors;
    std::memcpy(to + 2 * row, &block.d, 2);
    to += 2 * kPanelRows;
    if constexpr (kFormat.has_minimum) {
      std::memcpy(to + 2 * row, &block.dmin, 2);
      to += 2 * kPanelRows;
    }
    for (int g = 0; g < kGroups; ++g) {
      if constexpr (kFormat.has_blocks) {
        for (int r = 0; r < kRuns; ++r, to += kPanelRows) {
          to[row] = static_cast<std::byte>(block.scales[kRuns * g + r]);
        }
        if constexpr (kFormat.has_minimum) {
          to[row] = static_cast<std::byte>(block.minima[g]);
          to += kPanelRows;
        }
      }
      StoreGroup<kFormat.bits>(block.codes[g], row, quants);
      quants += kFormat.group_quant_bytes();
    }
    factors += kFormat.factor_bytes();
  }
}

// The code of column `col` of a group.
template <int kBits>
int CodeOf(const std::byte* quants, int64_t row, int64_t col) {
  const int64_t t = col / 4, i = 4 * row + col % 4;
  const auto byte = [&](int64_t vector) { return static_cast<int>(quants[64 * vector + i]); };
  if constexpr (kBits == 8) return byte(t);
  int code = byte(t / 2) >> (4 * (t % 2)) & 15;
  if constexpr (kBits == 5) code |= (byte(4) >> t & 1) << 4;
  if constexpr (kBits == 6) code |= (byte(4 + t / 4) >> (2 * (t % 4)) & 3) << 4;
  return code;
}

template <PanelFormat kFormat>
int ValueOf(int code) {
  if constexpr (kFormat.code == PanelCode::kTable) return kFormat.table[static_cast<size_t>(code)];
  if constexpr (kFormat.code == PanelCode::kOdd) return 2 * code - 15;
  return code - kFormat.offset;
}

// W and M of a run of a row.
struct RunFactors {
  float scale, minimum;
};

template <PanelFormat kFormat>
RunFactors FactorsOf(const std::byte* panel, int64_t row, int64_t col) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(panel);
  const int64_t length = kFormat.has_blocks ? kPanelBlock : kPanelGroup;
  const uint8_t* at = bytes + col / length * kFormat.factor_bytes();
  RunFactors factors = {kFormat.factor * LoadHalf(at + 2 * row), 0.0f};
  at += 2 * kPanelRows;
  if constexpr (kFormat.has_minimum) {
    factors.minimum = LoadHalf(at + 2 * row);
    at += 2 * kPanelRows;
  }
  if constexpr (kFormat.has_blocks) {
    at += col % kPanelBlock / kPanelGroup * kFormat.group_factor_bytes();
    const uint8_t s = at[col % kPanelGroup / kFormat.run_length * kPanelRows + row];
    factors.scale *= static_cast<float>(kFormat.signed_scales ? static_cast<int8_t>(s) : s);
    if constexpr (kFormat.has_minimum) {
      constexpr int kRuns = kPanelGroup / kFormat.run_length;
      factors.minimum = -(factors.minimum * static_cast<float>(at[kRuns * kPanelRows + row]));
    }
  }
  return factors;
}

// Calls visit.operator()<dtype>().
template <typename Visitor>
void VisitPanelFormat(DType dtype, Visitor&& visit) {
  switch (dtype) {
    case DType::kQ4_0:
      return visit.template operator()<DType::kQ4_0>();
    case DType::kQ4_1:
      return visit.template operator()<DType::kQ4_1>();
    case DType::kQ5_0:
      return visit.template operator()<DType::kQ5_0>();
    case DType::kQ5_1:
      return visit.template operator()<DType::kQ5_1>();
    case DType::kQ8_0:
      return visit.template operator()<DType::kQ8_0>();
    case DType::kQ4_K:
      return visit.template operator()<DType::kQ4_K>();
    case DType::kQ5_K:
      return visit.template operator()<DType::kQ5_K>();
    case DType::kQ6_K:
      return visit.template operator()<DType::kQ6_K>();
    case DType::kIQ4_NL:
      return visit.template operator()<DType::kIQ4_NL>();
    case DType::kIQ4_XS:
      return visit.template operator()<DType::kIQ4_XS>();
    case DType::kIQ3_S:
      return visit.template operator()<DType::kIQ3_S>();
    case DType::kIQ3_XXS:
      return visit.template operator()<DType::kIQ3_XXS>();
    default:
      SWITCHYARD_CHECK(false);  // the caller asks HasPanels() first
  }
}

template <DType dtype>
void Expand(const std::byte* panel, int64_t cols, const ExpandedPanel& out) {
  constexpr PanelFormat kFormat = kPanelFormat<dtype>;
  const std::byte* quants = panel + kFormat.quants_begin(cols);
  for (int64_t c = 0; c < out.cols; ++c) {
    const int64_t col = out.begin + c;
    const std::byte* group = quants + col / kPanelGroup * kFormat.group_quant_bytes();
    for (int64_t row = 0; row < kPanelRows; ++row) {
      const int value = ValueOf<kFormat>(CodeOf<kFormat.bits>(group, row, col % kPanelGroup));
      out.values[c / 4 * 64 + 4 * row + c % 4] = static_cast<uint8_t>(value + 128);
    }
    if (c % kFormat.run_length != 0) continue;
    for (int64_t row = 0; row < kPanelRows; ++row) {
      const RunFactors factors = FactorsOf<kFormat>(panel, row, col);
      out.scales[c / kFormat.run_length * kPanelRows + row] = factors.scale;
      if constexpr (kFormat.has_minimum) {
        out.minima[c / kFormat.run_length * kPanelRows + row] = factors.minimum;
      }
    }
  }
}

}  // namespace

const PanelFormat* FindPanelFormat(DType dtype) {
  static constexpr auto kFormats = [] {
    std::array<std::optional<PanelFormat>, static_cast<size_t>(DType::kBF16) + 1> formats;
    for (size_t id = 0; id < formats.size(); ++id) {
      formats[id] = MakePanelFormat(static_cast<DType>(id));
    }
    return formats;
  }();
  const auto& format = kFormats[static_cast<size_t>(dtype)];
  return format.has_value() ? &*format : nullptr;
}

void PackPanel(DType dtype, const std::byte* stored, int64_t num_rows, int64_t cols,
               std::byte* panel) {
  SWITCHYARD_DCHECK(num_rows > 0 && num_rows <= kPanelRows);
  const int64_t row_bytes = RowBytes(dtype, cols);
  VisitPanelFormat(dtype, [&]<DType kDType>() {
    constexpr PanelFormat kFormat = kPanelFormat<kDType>;
    // All of it is written but the rows that are missing and the padding behind the factors.
    if (num_rows < kPanelRows) {
      std::memset(panel, 0, static_cast<size_t>(kFormat.panel_bytes(cols)));
    } else {
      const int64_t factor_bytes = kFormat.num_factors(cols) * kFormat.factor_bytes();
      std::memset(panel + factor_bytes, 0,
                  static_cast<size_t>(kFormat.quants_begin(cols) - factor_bytes));
    }
    for (int64_t row = 0; row < num_rows; ++row) {
      PackRow<kDType>(reinterpret_cast<const uint8_t*>(stored + row * row_bytes), row, cols, panel);
    }
  });
}

void DecodePanelRow(DType dtype, const std::byte* panel, int64_t row, int64_t cols, float* out) {
  VisitPanelFormat(dtype, [&]<DType kDType>() {
    constexpr PanelFormat kFormat = kPanelFormat<kDType>;
    const std::byte* quants = panel + kFormat.quants_begin(cols);
    RunFactors factors = {};
    for (int64_t col = 0; col < cols; ++col) {
      if (col % kFormat.run_length == 0) factors = FactorsOf<kFormat>(panel, row, col);
      const std::byte* group = quants + col / kPanelGroup * kFormat.group_quant_bytes();
      const int code = CodeOf<kFormat.bits>(group, row, col % kPanelGroup);
      out[col] = factors.scale * static_cast<float>(ValueOf<kFormat>(code));
      if constexpr (kFormat.has_minimum) out[col] += factors.minimum;
    }
  });
}

ExpandPanelFunction PortableExpandPanel(DType dtype) {
  ExpandPanelFunction function = nullptr;
  VisitPanelFormat(dtype, [&]<DType kDType>() { function = Expand<kDType>; });
  return function;
}

}  // namespace switchyard::kernels::cpu
