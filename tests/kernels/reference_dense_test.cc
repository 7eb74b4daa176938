// Weights, products, embedding and copies of the reference backend.
#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/reference/reference_backend.h"
#include "testing/double_math.h"
#include "testing/stage_fixtures.h"

namespace switchyard::kernels::reference {
namespace {

using fixtures::DoubleMatrix;
using fixtures::Doubles;
using fixtures::Encode;
using fixtures::FloatRows;
using fixtures::Load;
using fixtures::Random;
using fixtures::RandomRows;
using fixtures::TensorData;
using fixtures::ToDoubles;

StepLimits SmallLimits() {
  fixtures::LayerSizes sizes;
  sizes.hidden_size = 512;
  return sizes.limits(100, 4, 256);
}

// One rounding to float; sums of up to 512 products in double are exact to 512 * 2^-53.
double Tolerance(double expected) { return 0x1p-24 * std::abs(expected) + 1e-12; }

struct MatMulCase {
  DType dtype;
  int64_t num_tokens, rows, cols;
  int64_t max_decoded_bytes;
};

class ReferenceMatMulTest : public testing::TestWithParam<MatMulCase> {};

TEST_P(ReferenceMatMulTest, EqualsSumsInDouble) {
  const MatMulCase& c = GetParam();
  auto backend = CreateReferenceBackend({.max_decoded_bytes = c.max_decoded_bytes});
  ASSERT_TRUE(backend->Prepare(SmallLimits()).ok());
  Random random(1);
  const TensorData tensor =
      Encode("w", random.Normals(c.rows * c.cols), 1, c.rows, c.cols, c.dtype);
  const auto weight = Load(*backend, tensor, WeightUse::kMatrix);
  const FloatRows x = RandomRows(random, c.num_tokens, c.cols);
  FloatRows y(c.num_tokens, c.rows);
  LedgerSlot ledger;
  backend->MatMul(ledger, *weight, x.view(), y.view());
  EXPECT_EQ(ledger.weight_bytes, weight->resident_bytes());
  EXPECT_EQ(backend->resident_weight_bytes(), weight->resident_bytes());

  const DoubleMatrix w(tensor);
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    const Doubles expected = w(ToDoubles(x.Row(t)));
    const std::vector<float> row = y.Row(t);
    for (size_t r = 0; r < row.size(); ++r) {
      ASSERT_NEAR(row[r], expected[r], Tolerance(expected[r])) << "token " << t << " row " << r;
    }
  }
}

constexpr int64_t kDecodeAll = 1 << 30, kDecodeNone = 0;

INSTANTIATE_TEST_SUITE_P(Shapes, ReferenceMatMulTest,
                         testing::Values(MatMulCase{DType::kF32, 0, 3, 8, kDecodeAll},
                                         MatMulCase{DType::kF32, 1, 1, 1, kDecodeAll},
                                         MatMulCase{DType::kF32, 3, 5, 7, kDecodeAll},
                                         MatMulCase{DType::kF32, 33, 65, 63, kDecodeAll},
                                         MatMulCase{DType::kF16, 4, 31, 17, kDecodeAll},
                                         MatMulCase{DType::kF16, 5, 31, 17, kDecodeNone},
                                         MatMulCase{DType::kBF16, 37, 9, 130, kDecodeNone},
                                         MatMulCase{DType::kQ8_0, 2, 40, 512, kDecodeAll},
                                         MatMulCase{DType::kQ8_0, 70, 40, 512, kDecodeNone},
                                         MatMulCase{DType::kQ4_0, 1, 40, 96, kDecodeNone}));

TEST(ReferenceDenseTest, RowDoesNotDependOnItsNeighbours) {
  auto backend = CreateReferenceBackend();
  ASSERT_TRUE(backend->Prepare(SmallLimits()).ok());
  Random random(2);
  const auto weight =
      Load(*backend, Encode("w", random.Normals(50 * 93), 1, 50, 93), WeightUse::kMatrix);
  FloatRows x = RandomRows(random, 67, 93);
  FloatRows all(67, 50), alone(1, 50);
  LedgerSlot ledger;
  backend->MatMul(ledger, *weight, x.view(), all.view());
  for (int64_t t = 0; t < 67; ++t) {
    backend->MatMul(ledger, *weight, x.view().Rows(t, 1), alone.view());
    ASSERT_EQ(alone.values, all.Row(t)) << t;
  }
}

TEST(ReferenceDenseTest, DecodedAndStoredWeightsGiveTheSameBits) {
  Random random(3);
  const TensorData tensor = Encode("w", random.Normals(20 * 64), 1, 20, 64, DType::kQ8_0);
  const FloatRows x = RandomRows(random, 5, 64);
  std::vector<std::vector<float>> results;
  std::vector<int64_t> resident;
  for (int64_t max_decoded_bytes : {kDecodeAll, kDecodeNone}) {
    auto backend = CreateReferenceBackend({.max_decoded_bytes = max_decoded_bytes});
    ASSERT_TRUE(backend->Prepare(SmallLimits()).ok());
    const auto weight = Load(*backend, tensor, WeightUse::kMatrix);
    resident.push_back(weight->resident_bytes());
    FloatRows y(5, 20);
    LedgerSlot ledger;
    backend->MatMul(ledger, *weight, x.view(), y.view());
    results.push_back(y.values);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_THAT(resident, testing::ElementsAre(20 * 64 * 4, 20 * 2 * 34));
}

// One part of 2^53 and one of 1 that meet lose the 1; each row tells another order from the tree.
TEST(ReferenceDenseTest, ShardsAreSummedAsATree) {
  auto backend = CreateReferenceBackend();
  ASSERT_TRUE(backend->Prepare(SmallLimits()).ok());
  const float big = 0x1p53f;
  const TensorData tensor = Encode("w",
                                   {
                                       big, 0, 1,    0, -big, 0, 0,    0,  // 0; 1 as (0+2)+(1+3)
                                       big, 0, -big, 0, 0,    0, 1,    0,  // 1; 0 as (0+3)+(1+2)
                                       1,   0, 0,    0, big,  0, -big, 0,  // 1; 0 as ((0+1)+2)+3
                                   },
                                   1, 3, 8);
  const auto weight = Load(*backend, tensor, WeightUse::kMatrix);
  const FloatRows x = FloatRows::Of(8, std::vector<float>(8, 1));
  FloatRows y(1, 3);
  LedgerSlot ledger;
  backend->MatMulSharded(ledger, *weight, fixtures::Shards(8, 2), x.view(), y.view());
  EXPECT_THAT(y.values, testing::ElementsAre(0, 1, 1));
}

TEST(ReferenceDenseTest, EmptyShardsChangeNothing) {
  auto backend = CreateReferenceBackend();
  ASSERT_TRUE(backend->Prepare(SmallLimits()).ok());
  Random random(4);
  const TensorData tensor = Encode("w", random.Normals(6 * 96), 1, 6, 96);
  const auto weight = Load(*backend, tensor, WeightUse::kMatrix);
  const FloatRows x = RandomRows(random, 2, 96);
  FloatRows y(2, 6);
  LedgerSlot ledger;
  // Three units: the first shard is empty.
  backend->MatMulSharded(ledger, *weight, fixtures::Shards(96, 32), x.view(), y.view());
  const DoubleMatrix w(tensor);
  for (int64_t t = 0; t < 2; ++t) {
    const Doubles expected = w(ToDoubles(x.Row(t)));
    for (size_t r = 0; r < 6; ++r) {
      EXPECT_NEAR(y.Row(t)[r], expected[r], Tolerance(expected[r]));
    }
  }
}

TEST(ReferenceDenseTest, StripsOfAShardAreAddedBeforeTheShards) {
  auto backend = CreateReferenceBackend();
  ASSERT_TRUE(backend->Prepare(SmallLimits()).ok());
  const float big = 0x1p53f;
  // Two strips of four columns, one column a shard: shard 0 holds columns 0 and 4. The sums tell
  // the order: big and -big of one shard cancel before anything small is added to them.
  const TensorData tensor = Encode("w", {big, 1, 0, 0, -big, 0, 0, 0}, 1, 1, 8);
  const auto weight = Load(*backend, tensor, WeightUse::kMatrix);
  const FloatRows x = FloatRows::Of(8, std::vector<float>(8, 1));
  FloatRows y(1, 1);
  LedgerSlot ledger;
  const ShardBorders strips = {.border = {0, 1, 2, 3, 4}, .num_strips = 2, .strip_columns = 4};
  backend->MatMulSharded(ledger, *weight, strips, x.view(), y.view());
  EXPECT_THAT(y.values, testing::ElementsAre(1));
  const ShardBorders whole = {.border = {0, 2, 4, 6, 8}};
  backend->MatMulSharded(ledger, *weight, whole, x.view(), y.view());
  EXPECT_THAT(y.values, testing::ElementsAre(0));
}

TEST(ReferenceDenseTest, EmbedCopiesARowIntoEveryStream) {
  for (int64_t max_decoded_bytes : {kDecodeAll, kDecodeNone}) {
    auto backend = CreateReferenceBackend({.max_decoded_bytes = max_decoded_bytes});
    Random random(5);
    const TensorData tensor = Encode("table", random.Normals(7 * 32), 1, 7, 32, DType::kQ8_0);
    const auto table = Load(*backend, tensor, WeightUse::kRowTable);
    const std::vector<int32_t> ids = {6, 0, 6};
    FloatRows out(3, 3 * 32);
    LedgerSlot ledger;
    backend->Embed(ledger, *table, ids, 3, out.view());
    const std::vector<float> values = fixtures::Decode(tensor);
    for (size_t t = 0; t < 3; ++t) {
      for (size_t i = 0; i < 96; ++i) {
        ASSERT_EQ(out.values[t * 96 + i], values[static_cast<size_t>(ids[t]) * 32 + i % 32]);
      }
    }
  }
}

TEST(ReferenceDenseTest, GathersRowsInAnyOrder) {
  auto backend = CreateReferenceBackend();
  const FloatRows in = FloatRows::Of(2, {0, 1, 10, 11, 20, 21});
  FloatRows out(4, 2);
  LedgerSlot ledger;
  backend->GatherRows(ledger, in.view(), std::vector<int32_t>{2, 0, 0, 1}, out.view());
  EXPECT_THAT(out.values, testing::ElementsAre(20, 21, 0, 1, 0, 1, 10, 11));
}

TEST(ReferenceDenseTest, BuffersAreZeroed) {
  auto backend = CreateReferenceBackend();
  auto buffer = backend->AllocateBuffer(1000, "test");
  ASSERT_TRUE(buffer.ok());
  ASSERT_EQ((*buffer)->bytes(), 1000);
  EXPECT_TRUE(std::all_of((*buffer)->data(), (*buffer)->data() + 1000,
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST(ReferenceDenseTest, RefusesMoreWeightsThanMemory) {
  auto backend = CreateReferenceBackend();
  WeightRequest request;
  request.view.dtype = DType::kF32;
  request.view.num_slabs = 1;
  request.view.rows = int64_t{1} << 29;
  request.view.cols = int64_t{1} << 29;
  EXPECT_EQ(backend->ReserveWeights({&request, 1}).code(), absl::StatusCode::kResourceExhausted);
  request.view.rows = 1024;
  request.view.cols = 256;
  EXPECT_TRUE(backend->ReserveWeights({&request, 1}).ok());
}

TEST(ReferenceDenseTest, PassesOnWhatTheSourceReturns) {
  auto backend = CreateReferenceBackend();
  WeightSource source{"w", {nullptr, DType::kQ8_0, 1, 4, 64}, nullptr};
  source.read = [](int64_t, int64_t, std::byte*) { return absl::DataLossError("truncated"); };
  for (WeightUse use : {WeightUse::kMatrix, WeightUse::kVector, WeightUse::kConvTaps}) {
    EXPECT_EQ(backend->LoadWeight(source, use).status().code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_EQ(backend->resident_weight_bytes(), 0);
}

TEST(ReferenceDenseTest, RefusesRaggedBlocks) {
  auto backend = CreateReferenceBackend();
  const WeightSource source{"w", {nullptr, DType::kQ8_0, 1, 4, 40}, nullptr};
  EXPECT_EQ(backend->LoadWeight(source, WeightUse::kMatrix).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace switchyard::kernels::reference
