// Decoders, codebooks and quantisers against stored results of an independent implementation.
#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "base/dtype.h"
#include "kernels/quant/codebooks.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/half.h"
#include "kernels/quant/quantize.h"

namespace switchyard::kernels {
namespace {

std::vector<std::byte> ReadData(const std::string& name) {
  std::ifstream file(std::string(SWITCHYARD_TEST_DATA) + "/quant/" + name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  std::vector<std::byte> bytes;
  std::transform(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>(),
                 std::back_inserter(bytes), [](char c) { return static_cast<std::byte>(c); });
  return bytes;
}

std::vector<float> ReadFloats(const std::string& name) {
  const std::vector<std::byte> bytes = ReadData(name);
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), floats.size() * sizeof(float));
  return floats;
}

std::string LowerCase(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

class QuantTest : public testing::TestWithParam<DType> {};

TEST_P(QuantTest, DecodesGoldenBlocksBitForBit) {
  const DTypeTraits& traits = Traits(GetParam());
  const std::vector<std::byte> blocks = ReadData(LowerCase(traits.name) + ".blocks");
  const std::vector<float> expected = ReadFloats(LowerCase(traits.name) + ".f32");
  const auto num_elements = static_cast<int64_t>(expected.size());
  ASSERT_GE(num_elements, 256);
  ASSERT_EQ(static_cast<int64_t>(blocks.size()), RowBytes(GetParam(), num_elements));

  std::vector<float> decoded(expected.size());
  DequantizeRow(GetParam(), blocks.data(), num_elements, decoded.data());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(decoded[i]), std::bit_cast<uint32_t>(expected[i]))
        << "element " << i << ": " << decoded[i] << " instead of " << expected[i];
  }
}

TEST_P(QuantTest, ReadsUnalignedRows) {
  const DTypeTraits& traits = Traits(GetParam());
  const std::vector<std::byte> blocks = ReadData(LowerCase(traits.name) + ".blocks");
  const std::vector<float> expected = ReadFloats(LowerCase(traits.name) + ".f32");
  std::vector<std::byte> shifted(blocks.size() + 1);
  std::copy(blocks.begin(), blocks.end(), shifted.begin() + 1);
  std::vector<float> decoded(expected.size());
  DequantizeRow(GetParam(), shifted.data() + 1, static_cast<int64_t>(expected.size()),
                decoded.data());
  EXPECT_EQ(std::memcmp(decoded.data(), expected.data(), expected.size() * sizeof(float)), 0);
}

INSTANTIATE_TEST_SUITE_P(AllTypes, QuantTest,
                         testing::Values(DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                                         DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ2_K,
                                         DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
                                         DType::kIQ1_S, DType::kIQ1_M, DType::kIQ2_XXS,
                                         DType::kIQ2_XS, DType::kIQ2_S, DType::kIQ3_XXS,
                                         DType::kIQ3_S, DType::kIQ4_NL, DType::kIQ4_XS),
                         [](const auto& info) { return std::string(Traits(info.param).name); });

TEST(DequantizeTest, CopiesF32) {
  const std::vector<float> row = {1.5f, -0.0f, 3e-41f};
  std::vector<float> decoded(row.size());
  DequantizeRow(DType::kF32, reinterpret_cast<const std::byte*>(row.data()), 3, decoded.data());
  EXPECT_EQ(std::memcmp(decoded.data(), row.data(), 3 * sizeof(float)), 0);
}

// SHA-256 (FIPS 180-4): enough of it to check the tables.
std::string Sha256(const uint8_t* data, size_t size) {
  // Fractional parts of the cube roots of the first 64 primes, and of the square roots of the
  // first 8, to 32 bits.
  std::vector<uint32_t> primes;
  for (uint32_t n = 2; primes.size() < 64; ++n) {
    if (std::none_of(primes.begin(), primes.end(), [n](uint32_t p) { return n % p == 0; })) {
      primes.push_back(n);
    }
  }
  const auto fraction = [](long double x) {
    return static_cast<uint32_t>((x - std::floor(x)) * 4294967296.0L);
  };
  uint32_t k[64];
  uint32_t h[8];
  for (int i = 0; i < 64; ++i) k[i] = fraction(std::cbrt(static_cast<long double>(primes[i])));
  for (int i = 0; i < 8; ++i) h[i] = fraction(std::sqrt(static_cast<long double>(primes[i])));

  std::vector<uint8_t> message(data, data + size);
  message.push_back(0x80);
  while (message.size() % 64 != 56) message.push_back(0);
  for (int i = 7; i >= 0; --i) message.push_back(static_cast<uint8_t>(size * 8 >> (8 * i)));
  for (size_t chunk = 0; chunk < message.size(); chunk += 64) {
    uint32_t w[64];
    for (size_t i = 0; i < 16; ++i) {
      const uint8_t* m = &message[chunk + 4 * i];
      w[i] = static_cast<uint32_t>(m[0]) << 24 | m[1] << 16 | m[2] << 8 | m[3];
    }
    for (int i = 16; i < 64; ++i) {
      const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
      const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t v[8];
    std::copy(h, h + 8, v);
    for (int i = 0; i < 64; ++i) {
      const uint32_t s1 = std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25);
      const uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
      const uint32_t s0 = std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22);
      const uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
      std::copy_backward(v, v + 7, v + 8);
      v[4] += t1;
      v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; ++i) h[i] += v[i];
  }
  std::string hex;
  for (const uint32_t word : h) {
    for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[word >> shift & 15];
  }
  return hex;
}

template <typename Table>
std::string HashOf(const Table& table) {
  return Sha256(reinterpret_cast<const uint8_t*>(table.data()), table.size());
}

TEST(CodebooksTest, HashesMatch) {
  const uint8_t abc[] = {'a', 'b', 'c'};
  ASSERT_EQ(Sha256(abc, 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(HashOf(kIq3SCodebook),
            "bd1af4945a1717c65610b0284e4628b9a1ba3b306fae3a06f6e5f597356e349f");
  EXPECT_EQ(HashOf(kIq3XxsCodebook),
            "46e35f5a997efdee6c99ce57854c8a0d4f0ff8ca57e5e8a60c0793ea580acf5d");
  EXPECT_EQ(HashOf(kIq2XxsCodebook),
            "05826b5d3e472a3a78f196be62ac78acf81df0f909626e12ab9fa2a5d490dd54");
  EXPECT_EQ(HashOf(kIq2XsCodebook),
            "06e47aaca60b4dc1d9b5a3f34540437058a6b142b4d7a59d5ded769b4d1bf1de");
  EXPECT_EQ(HashOf(kIq2SCodebook),
            "e1aa1473412b0552c2174c30ef22ab4073f6a181b85a17056e8249bd2932fd88");
  EXPECT_EQ(HashOf(kIq1Codebook),
            "07540ffc1aeaf6ad4d97e96b0fcc765aae39671d4ae4a27bbd0e796fde167c6a");
}

TEST(HalfTest, RoundTripsEveryFiniteHalf) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    if ((half & 0x7c00) == 0x7c00 && (half & 0x3ff) != 0) continue;  // NaNs
    const float value = HalfToFloat(static_cast<uint16_t>(half));
    ASSERT_EQ(FloatToHalf(value), half);
    const int exponent = static_cast<int>(half >> 10 & 31);
    if (exponent == 31) continue;
    const double mantissa = (half & 0x3ff) + (exponent > 0 ? 0x400 : 0);
    const double exact = std::ldexp(mantissa, std::max(exponent, 1) - 25);
    ASSERT_EQ(static_cast<double>(value), half & 0x8000 ? -exact : exact);
  }
  EXPECT_TRUE(std::isnan(HalfToFloat(0x7e00)));
  EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(NAN))));
}

TEST(HalfTest, RoundsToNearestEven) {
  // Between each pair of neighbours: just below the middle, the middle, just above.
  for (uint16_t half = 0; half < 0x7bff; ++half) {
    const float low = HalfToFloat(half);
    const float middle = (low + HalfToFloat(static_cast<uint16_t>(half + 1))) / 2;  // exact
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0f)), half);
    ASSERT_EQ(FloatToHalf(middle), half + (half & 1));
    ASSERT_EQ(FloatToHalf(-std::nextafter(middle, 1e9f)), 0x8000 + half + 1);
  }
  EXPECT_EQ(FloatToHalf(65519.99f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(-INFINITY), 0xfc00);
}

TEST(BFloat16Test, RoundsToNearestEven) {
  EXPECT_EQ(FloatToBFloat16(1.0f), 0x3f80);
  EXPECT_EQ(FloatToBFloat16(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(FloatToBFloat16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(FloatToBFloat16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(FloatToBFloat16(std::bit_cast<float>(0xff7fffffu)), 0xff80);
  EXPECT_TRUE(std::isnan(BFloat16ToFloat(FloatToBFloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_EQ(BFloat16ToFloat(0xc040), -3.0f);
}

TEST(QuantizeTest, Q8_0EqualsGoldenBlocks) {
  const std::vector<float> row = ReadFloats("quantize_q8_0.f32");
  const std::vector<std::byte> expected = ReadData("quantize_q8_0.blocks");
  ASSERT_EQ(row.size(), 512u);
  std::vector<std::byte> blocks(expected.size());
  QuantizeRow(DType::kQ8_0, row.data(), static_cast<int64_t>(row.size()), blocks.data());
  EXPECT_EQ(blocks, expected);
}

TEST(QuantizeTest, Q8_0KeepsExtremeValuesInRange) {
  std::vector<float> row(32, 1e-44f);  // subnormal: 1 / d overflows
  row[3] = -1e-44f;
  std::vector<std::byte> block(34);
  QuantizeRow(DType::kQ8_0, row.data(), 32, block.data());
  std::vector<float> decoded(32);
  DequantizeRow(DType::kQ8_0, block.data(), 32, decoded.data());
  for (const float value : decoded) EXPECT_EQ(value, 0.0f);
}

TEST(QuantizeTest, HalvesRoundTrip) {
  const std::vector<float> row = {0.1f, -2.5f, 70000.0f, 1e-9f};
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    std::vector<std::byte> bytes(static_cast<size_t>(RowBytes(dtype, 4)));
    std::vector<float> once(4);
    QuantizeRow(dtype, row.data(), 4, bytes.data());
    DequantizeRow(dtype, bytes.data(), 4, once.data());
    std::vector<std::byte> again(bytes.size());
    QuantizeRow(dtype, once.data(), 4, again.data());
    EXPECT_EQ(bytes, again);
    // Half a unit in the last place: 2^-11 for F16, 2^-9 for BF16, exact for F32.
    const float relative = dtype == DType::kF16 ? 0x1p-11f : dtype == DType::kBF16 ? 0x1p-9f : 0.0f;
    EXPECT_NEAR(once[0], row[0], row[0] * relative);
    EXPECT_EQ(once[1], -2.5f);
  }
}

}  // namespace
}  // namespace switchyard::kernels
