// Popularity of experts in random models: the law, the biases that make it, and the tensors.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "app/synth/random_source.h"
#include "app/synth/router_skew.h"
#include "app/synth_test_models.h"
#include "base/status.h"
#include "kernels/quant/dequantize.h"
#include "model/gguf_file.h"

namespace switchyard::app {
namespace {

using ::testing::HasSubstr;

TEST(RouterSkewTest, PopularityFollowsTheLawAndSumsToTopK) {
  for (const double exponent : {0.5, 1.0, 1.5}) {
    const std::vector<double> popularity = ZipfPopularity(exponent, 512, 10);
    EXPECT_NEAR(std::accumulate(popularity.begin(), popularity.end(), 0.0), 10, 1e-6);
    EXPECT_LE(popularity[0], kMostPopular);
    EXPECT_NEAR(popularity[255] / popularity[511], std::pow(2, exponent), 1e-9);
  }
  // More than kMostPopular of the experts cannot be chosen.
  for (const double share : ZipfPopularity(1, 4, 4)) EXPECT_NEAR(share, kMostPopular, 1e-9);
}

TEST(RouterSkewTest, BiasesMakeNormalLogitsChooseByTheLaw) {
  constexpr int kExperts = 64, kTopK = 6, kTokens = 20000;
  const std::vector<float> biases = RouterBiases(1, kExperts, kTopK, 3, "router");
  std::vector<int> uses(kExperts);
  RandomSource random(9, "tokens");
  for (int t = 0; t < kTokens; ++t) {
    std::vector<std::pair<float, int>> logits;
    for (int e = 0; e < kExperts; ++e) {
      logits.emplace_back(biases[static_cast<size_t>(e)] + random.Normal(), e);
    }
    std::partial_sort(logits.begin(), logits.begin() + kTopK, logits.end(), std::greater<>());
    for (int i = 0; i < kTopK; ++i)
      ++uses[static_cast<size_t>(logits[static_cast<size_t>(i)].second)];
  }
  std::sort(uses.rbegin(), uses.rend());
  const std::vector<double> wanted = ZipfPopularity(1, kExperts, kTopK);
  // The number of logits above 0 has a deviation of at most sqrt(6): the threshold of the six
  // largest moves by about a third of a deviation, which favours neither end by more than a
  // quarter.
  for (const size_t rank : {size_t{0}, size_t{7}, size_t{15}, size_t{31}, size_t{63}}) {
    const double share = static_cast<double>(uses[rank]) / kTokens;
    EXPECT_GT(share, 0.75 * wanted[rank]) << rank;
    EXPECT_LT(share, 1.25 * wanted[rank]) << rank;
  }
}

TEST(RouterSkewTest, EveryLayerHasItsOwnFavourites) {
  EXPECT_NE(RouterBiases(1, 64, 6, 3, "blk.0"), RouterBiases(1, 64, 6, 3, "blk.1"));
  EXPECT_EQ(RouterBiases(1, 64, 6, 3, "blk.0"), RouterBiases(1, 64, 6, 3, "blk.0"));
}

class FixedColumnsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(FixedColumnsTest, AreTheSameInAllRowsOfTheEmbedding) {
  SynthOptions options = BlockSizedOptions();
  options.hidden_size = 512;
  options.dense_type = GetParam();
  options.router_skew = 1;
  const std::string path = WriteTestModel(options, "skewed.gguf");
  const auto file = model::GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const model::TensorInfo& tensor = *file->FindTensor("token_embd.weight");
  const TensorView view = file->View(tensor);
  const int64_t fixed = FixedColumns(view.dtype);
  const auto bytes = static_cast<size_t>(RowBytes(view.dtype, fixed));
  for (int64_t row = 1; row < view.rows; ++row) {
    EXPECT_EQ(std::memcmp(view.row(0, row), view.row(0, 0), bytes), 0) << row;
    EXPECT_NE(std::memcmp(view.row(0, row) + bytes, view.row(0, 0) + bytes, bytes), 0) << row;
  }
  // They are no less than other values.
  std::vector<float> values(static_cast<size_t>(fixed));
  kernels::DequantizeRow(view.dtype, view.row(0, 0), fixed, values.data());
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  EXPECT_GT(sum / static_cast<double>(fixed), 0.3);
}

INSTANTIATE_TEST_SUITE_P(Types, FixedColumnsTest, ::testing::Values("F32", "BF16", "Q8_0", "Q4_K"));

TEST(RouterSkewTest, OnlyEmbeddingAndRoutersChange) {
  SynthOptions options;
  const auto plain = model::GgufFile::Open(WriteTestModel(options, "plain.gguf"));
  options.router_skew = 1.2;
  const auto skewed = model::GgufFile::Open(WriteTestModel(options, "skewed.gguf"));
  ASSERT_TRUE(plain.ok() && skewed.ok());
  for (const model::TensorInfo& tensor : plain->tensors()) {
    const TensorView a = plain->View(tensor), b = skewed->View(*skewed->FindTensor(tensor.name));
    const bool same = std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) == 0;
    const bool is_changed = tensor.name == "token_embd.weight" ||
                            tensor.name.find("ffn_gate_inp.weight") != std::string::npos;
    EXPECT_EQ(same, !is_changed) << tensor.name;
  }
}

TEST(RouterSkewTest, RefusesWhatCannotBe) {
  const auto refusal = [](const SynthOptions& options) {
    const auto result =
        WriteSyntheticModel(options, testing::TestFilePath("refused.gguf"), true, nullptr);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(Message(result.status()));
  };
  SynthOptions options;
  for (const double skew : {-1.0, 4.5, std::nan("")}) {
    options.router_skew = skew;
    EXPECT_THAT(refusal(options), HasSubstr("router-skew is out of range"));
  }
  options = BlockSizedOptions();  // 256 columns, and blocks of 256
  options.router_skew = 1;
  options.dense_type = "Q4_K";
  EXPECT_THAT(refusal(options), HasSubstr("hidden of 512 or --dense Q8_0 works"));
  options.dense_type = "";
  options.types = "f32,ffn_gate_inp[.]=Q8_0";
  EXPECT_THAT(refusal(options), HasSubstr("router-skew needs routers of F32, F16 or BF16"));
}

}  // namespace
}  // namespace switchyard::app
