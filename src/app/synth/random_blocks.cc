#include "app/synth/random_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/quant/block.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/half.h"
#include "kernels/quant/quantize.h"

namespace switchyard::app {
namespace {

using kernels::FloatToHalf;
using kernels::HalfToFloat;
using kernels::LoadU16;

void StoreU16(uint8_t* bytes, uint16_t value) { std::memcpy(bytes, &value, sizeof(value)); }

// From 3/4 to 5/4, from the random bits that were at the scale's place.
float Jitter(uint16_t bits) { return 0.75f + static_cast<float>(bits >> 1) * 0x1p-16f; }

// Puts a scale in place of the random bits at `bytes` and returns its value.
float SetScale(uint8_t* bytes, float scale) {
  const uint16_t half = FloatToHalf(scale * Jitter(LoadU16(bytes)));
  StoreU16(bytes, half);
  return HalfToFloat(half);
}

// With a random sign, for codes that are not symmetric around 0.
void SetSignedScale(uint8_t* bytes, float scale) {
  SetScale(bytes, (LoadU16(bytes) & 1) != 0 ? -scale : scale);
}

// Scale and minimum such that code `middle` (the mean of the codes) stands for 0.
void SetScaleAndMinimum(uint8_t* scale_bytes, uint8_t* minimum_bytes, float scale, float middle) {
  const float d = SetScale(scale_bytes, scale);
  StoreU16(minimum_bytes, FloatToHalf(middle * d));
}

// Eight 6-bit scales and minima of Q4_K and Q5_K (kernels/quant/k_scales.h): makes each minimum
// equal to its scale, so that the one middle code stands for 0 in all groups.
void EqualiseKScales(uint8_t* packed) {
  for (int j = 0; j < 4; ++j) {
    packed[j + 4] = packed[j];
    packed[j + 8] = static_cast<uint8_t>((packed[j + 8] & 15) * 17);
  }
}

// IQ1_M keeps its scale in the top nibbles of four 16-bit words.
void SetScatteredScale(uint8_t* words, float scale) {
  const uint16_t bits = LoadU16(words);
  const uint16_t half = FloatToHalf(scale * Jitter(bits));
  for (int i = 0; i < 4; ++i) {
    const uint16_t word = LoadU16(words + 2 * i);
    StoreU16(words + 2 * i, static_cast<uint16_t>((word & 0xfff) | (half >> 4 * i & 15) << 12));
  }
}

// Makes a valid block of random bytes.
void FixBlock(DType dtype, float scale, uint8_t* block) {
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kIQ4_NL:
      return SetSignedScale(block, scale);
    case DType::kQ4_1:
      return SetScaleAndMinimum(block, block + 2, scale, -7.5f);
    case DType::kQ5_1:
      return SetScaleAndMinimum(block, block + 2, scale, -15.5f);
    case DType::kQ8_0:
      // Quantisers use -127 to 127.
      for (int i = 2; i < 34; ++i) block[i] = block[i] == 0x80 ? uint8_t{0} : block[i];
      SetScale(block, scale);
      return;
    case DType::kQ2_K:
      for (int i = 0; i < 16; ++i) block[i] = static_cast<uint8_t>((block[i] & 15) * 17);
      return SetScaleAndMinimum(block + 80, block + 82, scale, 1.5f);
    case DType::kQ3_K:
      return SetSignedScale(block + 108, scale);
    case DType::kQ4_K:
      EqualiseKScales(block + 4);
      return SetScaleAndMinimum(block, block + 2, scale, 7.5f);
    case DType::kQ5_K:
      EqualiseKScales(block + 4);
      return SetScaleAndMinimum(block, block + 2, scale, 15.5f);
    case DType::kQ6_K:
      return SetSignedScale(block + 208, scale);
    case DType::kIQ1_M:
      return SetScatteredScale(block + 48, scale);
    case DType::kIQ1_S:
    case DType::kIQ2_XXS:
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ3_XXS:
    case DType::kIQ3_S:
    case DType::kIQ4_XS:
      return SetSignedScale(block, scale);
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
  }
  SWITCHYARD_CHECK(false);  // see IsBlockFormat()
}

void FillBytes(RandomSource& random, absl::Span<std::byte> bytes) {
  size_t i = 0;
  for (; i + sizeof(uint64_t) <= bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = random.Next();
    std::memcpy(bytes.data() + i, &word, sizeof(word));
  }
  if (i < bytes.size()) {
    const uint64_t word = random.Next();
    std::memcpy(bytes.data() + i, &word, bytes.size() - i);
  }
}

void FillFloats(const SynthTensor& tensor, RandomSource& random, absl::Span<float> values) {
  const auto mean = static_cast<float>(tensor.mean);
  const auto deviation = static_cast<float>(tensor.deviation);
  switch (tensor.distribution) {
    case Distribution::kNormal:
      for (float& value : values) value = mean + deviation * random.Normal();
      return;
    case Distribution::kDecay:
      for (float& value : values) {
        const double x = tensor.mean + (tensor.deviation - tensor.mean) * random.Uniform();
        value = static_cast<float>(-std::exp(x));
      }
      return;
  }
}

// What the fixed columns of every row hold, in the tensor's type.
std::vector<std::byte> FixedBlocks(const SynthTensor& tensor, uint64_t seed) {
  if (tensor.num_fixed_columns == 0) return {};
  const auto bytes = static_cast<size_t>(RowBytes(tensor.dtype, tensor.num_fixed_columns));
  std::vector<std::byte> blocks(bytes);
  RandomSource random(seed, tensor.name + ".fixed");
  if (kernels::IsBlockFormat(tensor.dtype)) {
    FillBlocks(tensor.dtype, static_cast<float>(tensor.deviation / UnitDeviation(tensor.dtype)),
               random, absl::MakeSpan(blocks));
    return blocks;
  }
  std::vector<float> values(static_cast<size_t>(tensor.num_fixed_columns));
  FillFloats(tensor, random, absl::MakeSpan(values));
  kernels::QuantizeRow(tensor.dtype, values.data(), tensor.num_fixed_columns, blocks.data());
  return blocks;
}

// The same blocks at the start of each row of a piece that begins at block `first` of the tensor.
void SetFixedBlocks(const SynthTensor& tensor, const std::vector<std::byte>& fixed, int64_t first,
                    absl::Span<std::byte> piece) {
  const auto block_bytes = static_cast<size_t>(Traits(tensor.dtype).block_bytes);
  const auto row_blocks = static_cast<size_t>(RowBytes(tensor.dtype, tensor.dims[0])) / block_bytes;
  const size_t num_fixed = fixed.size() / block_bytes;
  for (size_t i = 0; i < piece.size() / block_bytes; ++i) {
    const size_t in_row = (static_cast<size_t>(first) + i) % row_blocks;
    if (in_row >= num_fixed) continue;
    std::memcpy(piece.data() + i * block_bytes, fixed.data() + in_row * block_bytes, block_bytes);
  }
}

// What is added to the first columns of a row with bias 1.
std::vector<float> BiasDirection(const SynthTensor& tensor, uint64_t seed) {
  if (tensor.biased_by == nullptr) return {};
  const SynthTensor& source = *tensor.biased_by;
  const std::vector<std::byte> blocks = FixedBlocks(source, seed);
  std::vector<float> direction(static_cast<size_t>(source.num_fixed_columns));
  kernels::DequantizeRow(source.dtype, blocks.data(), source.num_fixed_columns, direction.data());
  double norm = 0;
  for (const float value : direction) norm += double{value} * value;
  for (float& value : direction) value = static_cast<float>(value / norm);
  return direction;
}

// Values are those of the tensor from element `first` on.
void AddBiases(const SynthTensor& tensor, const std::vector<float>& direction, int64_t first,
               absl::Span<float> values) {
  if (direction.empty()) return;
  const auto row_size = static_cast<size_t>(tensor.dims[0]);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t at = static_cast<size_t>(first) + i;
    if (at % row_size >= direction.size()) continue;
    values[i] += tensor.row_biases[at / row_size] * direction[at % row_size];
  }
}

constexpr int64_t kPieceBytes = 1 << 20;

double MeasureUnitDeviation(DType dtype) {
  constexpr int kBlocks = 4096;
  const DTypeTraits& traits = Traits(dtype);
  const int64_t num_elements = int64_t{kBlocks} * traits.block_length;
  std::vector<std::byte> blocks(static_cast<size_t>(kBlocks * traits.block_bytes));
  std::vector<float> values(static_cast<size_t>(num_elements));
  RandomSource random(0, traits.name);
  FillBlocks(dtype, 1, random, absl::MakeSpan(blocks));
  kernels::DequantizeRow(dtype, blocks.data(), num_elements, values.data());
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return std::sqrt(sum / static_cast<double>(num_elements));
}

}  // namespace

void FillBlocks(DType dtype, float scale, RandomSource& random, absl::Span<std::byte> blocks) {
  const auto block_bytes = static_cast<size_t>(Traits(dtype).block_bytes);
  SWITCHYARD_CHECK(blocks.size() % block_bytes == 0);
  FillBytes(random, blocks);
  for (size_t i = 0; i < blocks.size(); i += block_bytes) {
    FixBlock(dtype, scale, reinterpret_cast<uint8_t*>(blocks.data() + i));
  }
}

double UnitDeviation(DType dtype) {
  static const auto& deviations = *new std::array<double, 32>([] {
    std::array<double, 32> all{};
    for (uint32_t id = 0; id < all.size(); ++id) {
      const std::optional<DType> type = DTypeFromGgufId(id);
      if (type.has_value() && kernels::IsBlockFormat(*type)) all[id] = MeasureUnitDeviation(*type);
    }
    return all;
  }());
  return deviations[static_cast<size_t>(dtype)];
}

absl::Status WriteTensorData(
    const SynthTensor& tensor, uint64_t seed,
    const std::function<absl::Status(absl::Span<const std::byte>)>& write) {
  const DTypeTraits& traits = Traits(tensor.dtype);
  const bool is_block_format = kernels::IsBlockFormat(tensor.dtype);
  RandomSource random(seed, tensor.name);
  const float scale =
      is_block_format ? static_cast<float>(tensor.deviation / UnitDeviation(tensor.dtype)) : 0;
  const int64_t piece_blocks = kPieceBytes / traits.block_bytes;
  const int64_t row_bytes = RowBytes(tensor.dtype, tensor.dims[0]);
  const int64_t zero_blocks = tensor.num_zero_rows * row_bytes / traits.block_bytes;
  const int64_t random_blocks = tensor.bytes() / traits.block_bytes - zero_blocks;
  std::vector<std::byte> bytes(static_cast<size_t>(piece_blocks * traits.block_bytes));
  std::vector<float> values(is_block_format ? 0 : static_cast<size_t>(piece_blocks));
  const std::vector<std::byte> fixed = FixedBlocks(tensor, seed);
  const std::vector<float> direction = BiasDirection(tensor, seed);
  for (int64_t done = 0; done < random_blocks; done += piece_blocks) {
    const int64_t count = std::min(piece_blocks, random_blocks - done);
    const auto piece = absl::MakeSpan(bytes).first(static_cast<size_t>(count * traits.block_bytes));
    if (is_block_format) {
      FillBlocks(tensor.dtype, scale, random, piece);
    } else {
      const auto some = absl::MakeSpan(values).first(static_cast<size_t>(count));
      FillFloats(tensor, random, some);
      AddBiases(tensor, direction, done, some);
      kernels::QuantizeRow(tensor.dtype, values.data(), count, piece.data());
    }
    SetFixedBlocks(tensor, fixed, done, piece);
    SWITCHYARD_RETURN_IF_ERROR(write(piece));
  }
  // A block of zero bytes holds zeros in every format.
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  for (int64_t done = 0; done < zero_blocks; done += piece_blocks) {
    const int64_t count = std::min(piece_blocks, zero_blocks - done);
    SWITCHYARD_RETURN_IF_ERROR(
        write(absl::MakeConstSpan(bytes).first(static_cast<size_t>(count * traits.block_bytes))));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::app
