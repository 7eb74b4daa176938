#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "app/inspect/block_check.h"
#include "app/synth/random_blocks.h"
#include "base/dtype.h"
#include "kernels/quant/dequantize.h"

namespace switchyard::app {
namespace {

constexpr uint32_t kNumTypeIds = 40;

std::vector<DType> AllTypes() {
  std::vector<DType> types;
  for (uint32_t id = 0; id < kNumTypeIds; ++id) {
    if (const std::optional<DType> type = DTypeFromGgufId(id)) types.push_back(*type);
  }
  return types;
}

std::string TypeName(const ::testing::TestParamInfo<DType>& info) {
  return std::string(Traits(info.param).name);
}

std::vector<std::byte> DataOf(const SynthTensor& tensor, uint64_t seed) {
  std::vector<std::byte> data;
  EXPECT_TRUE(WriteTensorData(tensor, seed, [&](absl::Span<const std::byte> piece) {
                data.insert(data.end(), piece.begin(), piece.end());
                return absl::OkStatus();
              }).ok());
  return data;
}

class RandomBlocksTest : public ::testing::TestWithParam<DType> {
 protected:
  SynthTensor Tensor() const {
    SynthTensor tensor;
    tensor.name = "blk.0.ffn_gate_exps.weight";
    tensor.dims = {512, 1024};
    tensor.dtype = GetParam();
    tensor.deviation = 0.04;
    return tensor;
  }
  std::vector<float> Values(const SynthTensor& tensor, uint64_t seed) const {
    const std::vector<std::byte> data = DataOf(tensor, seed);
    EXPECT_EQ(static_cast<int64_t>(data.size()), tensor.bytes());
    EXPECT_FALSE(FindNonFiniteBlock(tensor.dtype, data).has_value());
    std::vector<float> values(static_cast<size_t>(tensor.dims[0] * tensor.num_rows()));
    kernels::DequantizeRow(tensor.dtype, data.data(), static_cast<int64_t>(values.size()),
                           values.data());
    return values;
  }
};

TEST_P(RandomBlocksTest, HaveTheDeviationAskedForAndMeanZero) {
  const std::vector<float> values = Values(Tensor(), 1);
  double sum = 0;
  double squares = 0;
  for (const float value : values) {
    ASSERT_TRUE(std::isfinite(value));
    sum += value;
    squares += double{value} * value;
  }
  const auto n = static_cast<double>(values.size());
  // The deviation is known from a sample of 2^17 to 2^20 values, and measured on 2^19. Values of a
  // block share its scale, of which there are at least 2^11; those vary by less than their own
  // size: relative errors of both stay below 4 * 2^-5.5 / 2, and halves add 2^-11.
  EXPECT_NEAR(std::sqrt(squares / n), 0.04, 0.04 * 0.05);
  // 4 deviations of the mean, were all values of a group of 32 equal.
  EXPECT_NEAR(sum / n, 0, 4 * 0.04 / std::sqrt(n / 32));
}

TEST_P(RandomBlocksTest, DependOnSeedAndName) {
  const SynthTensor tensor = Tensor();
  SynthTensor other = tensor;
  other.name = "blk.1.ffn_gate_exps.weight";
  EXPECT_EQ(DataOf(tensor, 1), DataOf(tensor, 1));
  EXPECT_NE(DataOf(tensor, 1), DataOf(tensor, 2));
  EXPECT_NE(DataOf(tensor, 1), DataOf(other, 1));
}

TEST_P(RandomBlocksTest, RowsAtTheEndAreZeroWhereAskedFor) {
  SynthTensor tensor = Tensor();
  tensor.num_zero_rows = 3;
  const std::vector<float> values = Values(tensor, 1);
  const size_t first_zero = values.size() - 3 * 512;
  for (size_t i = first_zero; i < values.size(); ++i) ASSERT_EQ(values[i], 0);
  double squares = 0;
  for (size_t i = first_zero - 512; i < first_zero; ++i) squares += double{values[i]} * values[i];
  EXPECT_GT(squares, 0);
}

TEST_P(RandomBlocksTest, ANonFiniteScaleIsFound) {
  const DTypeTraits& traits = Traits(GetParam());
  std::vector<std::byte> data = DataOf(Tensor(), 1);
  ASSERT_FALSE(FindNonFiniteBlock(GetParam(), data).has_value());
  // Overwrites each byte of one block in turn with all ones: where the decoded values are no longer
  // finite, and only there, the check must say so.
  constexpr int kBlock = 5;
  std::byte* block = data.data() + kBlock * traits.block_bytes;
  std::vector<float> values(static_cast<size_t>(traits.block_length));
  int num_found = 0;
  for (int i = 0; i + 1 < traits.block_bytes; ++i) {
    std::byte saved[2];
    std::memcpy(saved, block + i, 2);
    std::memset(block + i, 0x7f, 2);
    std::memset(block + i, 0xff, 1);
    kernels::DequantizeRow(GetParam(), block, traits.block_length, values.data());
    bool is_finite = true;
    for (const float value : values) is_finite = is_finite && std::isfinite(value);
    const std::optional<int64_t> found = FindNonFiniteBlock(GetParam(), data);
    EXPECT_EQ(found.has_value(), !is_finite) << "byte " << i;
    if (found.has_value()) {
      EXPECT_EQ(*found, kBlock);
      ++num_found;
    }
    std::memcpy(block + i, saved, 2);
  }
  // IQ1_M's scale is spread over bytes that no two neighbours cover; F32's exponent lies in the
  // upper two of its bytes.
  if (GetParam() != DType::kIQ1_M) {
    EXPECT_GT(num_found, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, RandomBlocksTest, ::testing::ValuesIn(AllTypes()), TypeName);

TEST(BlockCheckTest, FindsTheScatteredScaleOfIq1M) {
  std::vector<std::byte> block(56);
  EXPECT_FALSE(FindNonFiniteBlock(DType::kIQ1_M, block).has_value());
  // The half 0x7c00, infinity: nibbles 0, 0, c, 7 in the tops of the four words.
  block[53] = std::byte{0xc0};
  EXPECT_FALSE(FindNonFiniteBlock(DType::kIQ1_M, block).has_value());
  block[55] = std::byte{0x70};
  EXPECT_EQ(FindNonFiniteBlock(DType::kIQ1_M, block), 0);
}

TEST(RandomSourceTest, NormalHasMeanZeroAndDeviationOne) {
  RandomSource random(7, "normal");
  constexpr int kNumber = 1 << 18;
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  for (int i = 0; i < kNumber; ++i) {
    const double x = random.Normal();
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  // Five deviations: of the mean 2^-9, of the variance sqrt(2) * 2^-9.
  EXPECT_NEAR(sum / kNumber, 0, 5 * 0x1p-9);
  EXPECT_NEAR(squares / kNumber, 1, 5 * 1.5 * 0x1p-9);
  // A sum of 8 uniform numbers has the fourth moment 3 - 1.2 / 8; that of one uniform is 1.8.
  EXPECT_NEAR(fourth / kNumber, 3 - 1.2 / 8, 0.1);
}

TEST(RandomSourceTest, SplitMixEqualsThePublishedSequence) {
  // The first outputs of splitmix64 from state 1234567, as in its authors' test vectors.
  EXPECT_EQ(SplitMix64(1234567), 6457827717110365317u);
  EXPECT_EQ(SplitMix64(1234567 + kGoldenGamma), 3203168211198807973u);
}

}  // namespace
}  // namespace switchyard::app
