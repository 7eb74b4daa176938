// The cpu backend as an object: making it, loading, lookups, products, the ledger.
#include "kernels/cpu/cpu_backend.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "kernels/cpu/cpu_weight.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu_step_driver.h"
#include "kernels/quant/dequantize.h"
#include "testing/stage_fixtures.h"

namespace switchyard::kernels::cpu {
namespace {

using fixtures::FloatRows;
using fixtures::LayerSizes;
using fixtures::Random;
using fixtures::RandomRows;
using fixtures::TensorData;
using testing::HasSubstr;

// For products of matrices with at most this many columns.
StepLimits ProductLimits(int64_t max_rows, int64_t max_cols) {
  StepLimits limits;
  limits.max_rows = max_rows;
  limits.max_sequences = 1;
  limits.hidden_size = max_cols;
  limits.max_inner_size = max_cols;
  return limits;
}

TEST(CpuBackendTest, SaysWhatItIs) {
  auto backend = CreateCpuBackend({.num_threads = 2, .cores = {}, .level = CpuLevel::kScalar});
  ASSERT_TRUE(backend.ok());
  EXPECT_EQ(backend.value()->Describe(), "cpu (scalar, 2 threads)");
}

TEST(CpuBackendTest, RefusesOptionsThatCannotBe) {
  const auto no_thread = CreateCpuBackend({.num_threads = 0});
  EXPECT_EQ(no_thread.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(no_thread.status())), HasSubstr("got: 0"));
  const auto short_list = CreateCpuBackend({.num_threads = 2, .cores = {{}}});
  EXPECT_EQ(short_list.status().code(), absl::StatusCode::kInvalidArgument);
  const auto large_sweep = CreateCpuBackend({.num_threads = 2, .sweep = {.counts = {1, 3}}});
  EXPECT_EQ(large_sweep.status().code(), absl::StatusCode::kInvalidArgument);
  if (!RunsCpuLevel(CpuLevel::kAvx512Vnni)) {
    const auto level = CreateCpuBackend({.level = CpuLevel::kAvx512Vnni});
    EXPECT_EQ(level.status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(CpuBackendTest, MeasuresThreadsOnceTheWeightsAreThere) {
  std::vector<ThreadRate> rates;
  int num_calls = 0;
  CpuBackendOptions options{.num_threads = 2};
  options.sweep = {.counts = {1, 2}, .choose = [&](absl::Span<const ThreadRate> measured) {
                     rates.assign(measured.begin(), measured.end());
                     ++num_calls;
                     return 1;
                   }};
  auto created = CreateCpuBackend(options);
  ASSERT_TRUE(created.ok());
  const std::unique_ptr<Backend> backend = std::move(created).value();
  Random random(3);
  const TensorData matrix = fixtures::Encode("m", random.Normals(16 * 64), 1, 16, 64, DType::kQ8_0);
  const WeightRequest request = {matrix.view(), WeightUse::kMatrix};
  ASSERT_TRUE(backend->ReserveWeights({&request, 1}).ok());
  const auto weight = fixtures::Load(*backend, matrix, WeightUse::kMatrix);
  EXPECT_EQ(num_calls, 0);
  for (int round = 0; round < 2; ++round) {  // the second for other sizes
    ASSERT_TRUE(backend->Prepare(LayerSizes().limits(8, 1, 64)).ok());
    EXPECT_EQ(num_calls, 1);
  }
  ASSERT_EQ(rates.size(), 2u);
  EXPECT_EQ(rates[0].num_threads, 1);
  EXPECT_EQ(rates[1].num_threads, 2);
  for (const ThreadRate& rate : rates) EXPECT_GT(rate.bytes_per_second, 0);
}

TEST(CpuBackendTest, RefusesHeadSizesWithoutKernel) {
  LayerSizes sizes;
  sizes.delta_head_dim = 20;
  auto backend = CreateCpuBackend({});
  ASSERT_TRUE(backend.ok());
  const absl::Status status = backend.value()->Prepare(sizes.limits(8, 1, 64));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("20"));
}

TEST(CpuBackendTest, RefusesConvolutionsWithTooManyTaps) {
  for (int LayerSizes::*kernel : {&LayerSizes::conv_kernel, &LayerSizes::ple_conv_kernel}) {
    LayerSizes sizes;
    sizes.*kernel = 16;
    EXPECT_TRUE(MakeCpuBackend({})->Prepare(sizes.limits(8, 1, 64)).ok());
    sizes.*kernel = 17;
    const absl::Status status = MakeCpuBackend({})->Prepare(sizes.limits(8, 1, 64));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(Message(status)), HasSubstr("17"));
  }
}

TEST(CpuBackendTest, PassesOnWhatReadingReports) {
  auto backend = MakeCpuBackend({});
  WeightSource source;
  source.name = "w";
  source.view = {nullptr, DType::kF32, 1, 4, 8};
  source.read = [](int64_t, int64_t, std::byte*) { return DataLoss("file is truncated"); };
  for (const WeightUse use : {WeightUse::kMatrix, WeightUse::kVector, WeightUse::kConvTaps}) {
    const auto weight = backend->LoadWeight(source, use);
    EXPECT_EQ(weight.status().code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_EQ(backend->resident_weight_bytes(), 0);
}

TEST(CpuBackendTest, KeepsWeightsOnce) {
  Random random(1);
  const TensorData matrix =
      fixtures::Encode("m", random.Normals(3 * 40 * 64), 3, 40, 64, DType::kQ8_0);
  const TensorData vector = fixtures::Encode("v", random.Normals(64), 1, 1, 64, DType::kF16);
  auto backend = MakeCpuBackend({});
  const WeightRequest request = {matrix.view(), WeightUse::kMatrix};
  ASSERT_TRUE(backend->ReserveWeights({&request, 1}).ok());
  const auto m = fixtures::Load(*backend, matrix, WeightUse::kMatrix);
  // Panels of 16 rows: 40 rows take the room of 48.
  EXPECT_EQ(m->resident_bytes(), 3 * PanelsBytes(DType::kQ8_0, 40, 64));
  EXPECT_EQ(m->dtype(), DType::kQ8_0);
  const auto v = fixtures::Load(*backend, vector, WeightUse::kVector);
  EXPECT_EQ(v->resident_bytes(), 64 * 4);  // floats in memory
  EXPECT_EQ(backend->resident_weight_bytes(), m->resident_bytes() + v->resident_bytes());
  EXPECT_EQ(backend->ReserveWeights({&request, 1}).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CpuBackendTest, HalvesFloatMatricesWhereThatIsExact) {
  Random random(2);
  std::vector<float> values = random.Normals(48 * 64);
  const std::vector<float> x = random.Normals(2 * 64);
  for (float& value : values) {
    value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffff0000u);
  }
  auto backend = MakeCpuBackend({});
  ASSERT_TRUE(backend->Prepare(ProductLimits(2, 64)).ok());
  std::vector<float> y[2] = {std::vector<float>(2 * 48), std::vector<float>(2 * 48)};
  LedgerSlot ledger;
  const auto exact = fixtures::Load(*backend, fixtures::Encode("m", values, 1, 48, 64, DType::kF32),
                                    WeightUse::kMatrix);
  EXPECT_EQ(exact->resident_bytes(), 48 * 64 * 2);
  EXPECT_EQ(exact->dtype(), DType::kF32);
  backend->MatMul(ledger, *exact, {x.data(), 2, 64}, {y[0].data(), 2, 48});

  // One value needs more bits. It meets a zero, so the products must be the same all the same.
  std::vector<float> more = values;
  more[0] = std::nextafter(values[0], 100.0f);
  std::vector<float> zeroed = x;
  zeroed[0] = zeroed[64] = 0;
  const auto whole = fixtures::Load(*backend, fixtures::Encode("m", more, 1, 48, 64, DType::kF32),
                                    WeightUse::kMatrix);
  EXPECT_EQ(whole->resident_bytes(), 48 * 64 * 4);
  backend->MatMul(ledger, *exact, {zeroed.data(), 2, 64}, {y[0].data(), 2, 48});
  backend->MatMul(ledger, *whole, {zeroed.data(), 2, 64}, {y[1].data(), 2, 48});
  EXPECT_EQ(y[0], y[1]);
}

TEST(CpuBackendTest, RecodingChangesNoBit) {
  for (const DType dtype : {DType::kIQ3_S, DType::kIQ3_XXS}) {
    Random random(3);
    TensorData matrix = {"m", dtype, 1, 40, 512, {}};
    matrix.bytes.resize(static_cast<size_t>(40 * RowBytes(dtype, 512)));
    for (std::byte& byte : matrix.bytes) byte = static_cast<std::byte>(random.Below(256));
    // Any bits are a block, but its scale must be finite: 1/16 as a half.
    for (size_t at = 0; at < matrix.bytes.size(); at += Traits(dtype).block_bytes) {
      matrix.bytes[at] = std::byte{0};
      matrix.bytes[at + 1] = std::byte{0x2c};
    }
    const std::vector<float> x = random.Normals(9 * 512);
    std::vector<std::vector<float>> results;
    for (const Recode recode : {Recode::kNever, Recode::kAlways, Recode::kAuto}) {
      auto backend = CreateCpuBackend({.recode = recode}).value();
      ASSERT_TRUE(backend->Prepare(ProductLimits(9, 512)).ok());
      const WeightRequest request = {matrix.view(), WeightUse::kMatrix};
      ASSERT_TRUE(backend->ReserveWeights({&request, 1}).ok());
      const auto weight = fixtures::Load(*backend, matrix, WeightUse::kMatrix);
      if (recode == Recode::kNever) {
        EXPECT_EQ(weight->resident_bytes(), static_cast<int64_t>(matrix.bytes.size()));
      } else {
        EXPECT_EQ(weight->resident_bytes(), PanelsBytes(dtype, 40, 512));
      }
      LedgerSlot ledger;
      for (const int64_t rows : {1, 9}) {
        std::vector<float> y(static_cast<size_t>(rows * 40));
        backend->MatMul(ledger, *weight, {x.data(), rows, 512}, {y.data(), rows, 40});
        results.push_back(y);
      }
    }
    for (size_t i = 2; i < results.size(); ++i) EXPECT_EQ(results[i], results[i % 2]);
  }
}

TEST(CpuBackendTest, OnlyConvolutionTapsAreTransposed) {
  const std::vector<float> values = {0, 1, 2, 3, 4, 5};
  const TensorData tensor = fixtures::Encode("w", values, 1, 2, 3, DType::kF16);
  auto backend = MakeCpuBackend({});
  const auto vector = fixtures::Load(*backend, tensor, WeightUse::kVector);
  const float* kept = CpuWeight::From(*vector).values();
  EXPECT_EQ(std::vector<float>(kept, kept + 6), values);
  const auto conv = fixtures::Load(*backend, tensor, WeightUse::kConvTaps);
  const float* taps = CpuWeight::From(*conv).taps();
  EXPECT_EQ(std::vector<float>(taps, taps + 6), (std::vector<float>{0, 3, 1, 4, 2, 5}));
}

TEST(CpuBackendTest, LooksUpRowsForAllStreams) {
  Random random(2);
  for (const DType type : {DType::kF32, DType::kBF16, DType::kQ8_0}) {
    const TensorData table = fixtures::Encode("t", random.Normals(10 * 64), 1, 10, 64, type);
    const std::vector<float> values = fixtures::Decode(table);
    auto backend = MakeCpuBackend({});
    const auto weight = fixtures::Load(*backend, table, WeightUse::kRowTable);
    const std::vector<int32_t> ids = {9, 0, 3, 3};
    FloatRows out(4, 3 * 64);
    LedgerSlot ledger;
    backend->Embed(ledger, *weight, ids, 3, out.view());
    EXPECT_EQ(ledger.weight_bytes, 4 * RowBytes(type, 64));
    for (size_t row = 0; row < ids.size(); ++row) {
      for (int s = 0; s < 3; ++s) {
        const std::vector<float> got(
            out.values.begin() + static_cast<int64_t>(row) * 192 + s * 64,
            out.values.begin() + static_cast<int64_t>(row) * 192 + s * 64 + 64);
        const std::vector<float> expected(values.begin() + ids[row] * 64,
                                          values.begin() + ids[row] * 64 + 64);
        EXPECT_EQ(got, expected);
      }
    }
  }
}

TEST(CpuBackendTest, ProductsAreTheSameBitsForOneRowAndManyOnEveryMachine) {
  LayerSizes sizes;
  sizes.hidden_size = 320;
  Random random(3);
  const FloatRows x = RandomRows(random, 70, 320);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
    const TensorData w = fixtures::Encode("w", random.Normals(100 * 320), 1, 100, 320, type);
    std::vector<float> expected, expected_sharded;
    for (const Machine machine : AllMachines()) {
      auto backend = MakeCpuBackend(sizes.limits(70, 1, 128), machine.num_threads, machine.level);
      const auto weight = fixtures::Load(*backend, w, WeightUse::kMatrix);
      FloatRows y(70, 100), sharded(70, 100), one(1, 100);
      LedgerSlot ledger;
      backend->MatMul(ledger, *weight, x.view(), y.view());
      EXPECT_EQ(ledger.weight_bytes, weight->resident_bytes());
      EXPECT_GT(ledger.seconds, 0);
      backend->MatMulSharded(ledger, *weight, fixtures::Shards(320, 32), x.view(), sharded.view());
      if (expected.empty()) {
        expected = y.values;
        expected_sharded = sharded.values;
      }
      EXPECT_EQ(y.values, expected);
      EXPECT_EQ(sharded.values, expected_sharded);
      for (const int64_t row : {0, 69}) {
        backend->MatMul(ledger, *weight, x.view().Rows(row, 1), one.view());
        EXPECT_EQ(one.values, y.Row(row));
        backend->MatMulSharded(ledger, *weight, fixtures::Shards(320, 32), x.view().Rows(row, 1),
                               one.view());
        EXPECT_EQ(one.values, sharded.Row(row));
      }
    }
  }
}

TEST(CpuBackendTest, StagesWithoutRowsDoNothing) {
  LayerSizes sizes;
  Random random(4);
  auto backend = MakeCpuBackend(sizes.limits(8, 1, 64), 2);
  const auto mixer = fixtures::Load(*backend, sizes, RandomMixer(random, sizes));
  const auto delta = fixtures::Load(*backend, sizes, RandomDeltaNet(random, sizes));
  const auto moe = fixtures::Load(*backend, sizes, RandomMoe(random, sizes));
  LedgerSlot ledger;
  const int64_t barriers = backend->num_barriers();
  backend->HcMix(ledger, mixer.weights, {}, {}, {});
  backend->HcCombine(ledger, {}, {}, {});
  backend->GatedDeltaNet(ledger, delta.weights, sizes.delta_shape(), {}, {}, {});
  backend->Experts(ledger, moe.weights, {}, {}, {}, {});
  backend->GatherRows(ledger, {}, {}, {});
  backend->Upload(ledger, nullptr, 0, nullptr);
  EXPECT_EQ(ledger.weight_bytes, 0);
  EXPECT_EQ(backend->num_barriers(), barriers);
}

TEST(CpuBackendTest, CopiesRowsAndBytes) {
  auto backend = MakeCpuBackend({});
  const FloatRows in = FloatRows::Of(2, {1, 2, 3, 4, 5, 6});
  FloatRows out(2, 2);
  LedgerSlot ledger;
  backend->GatherRows(ledger, in.view(), std::vector<int32_t>{2, 0}, out.view());
  EXPECT_EQ(out.values, (std::vector<float>{5, 6, 1, 2}));
  auto buffer = backend->AllocateBuffer(1000, "test");
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer.value()->bytes(), 1000);
  EXPECT_EQ(buffer.value()->data()[999], std::byte{0});
  backend->Upload(ledger, in.values.data(), 24, buffer.value()->data());
  std::vector<float> back(6);
  backend->Download(ledger, buffer.value()->data(), 24, back.data());
  EXPECT_EQ(back, in.values);
}

// Fork-joins of one decode step: five for each half of a layer, of every kind.
class CpuBarriersTest : public testing::Test {
 protected:
  static constexpr int64_t kHidden = 256;

  static LayerSizes Sizes() {
    LayerSizes sizes;
    sizes.hidden_size = kHidden;
    sizes.num_experts = 64;  // enough for two tasks of the router
    return sizes;
  }

  // A mixer, then `body`, then the combination with the residual.
  template <typename Body>
  int64_t CountHalf(Body body) {
    const int64_t before = backend_->num_barriers();
    backend_->HcMix(ledger_, mixer_.weights, h_.view(), u_.view(), inject_.view());
    body();
    backend_->HcCombine(ledger_, inject_.view(), y_.view(), h_.view());
    return backend_->num_barriers() - before;
  }

  // Counts a decode step at `position` of a cache in which nothing has to make sense.
  int64_t CountAttention(LayerSizes sizes, int64_t position) {
    const auto layer = fixtures::Load(*backend_, sizes, RandomAttention(random_, sizes));
    const FloatRows output_weights = RandomRows(random_, kHidden, sizes.num_heads * sizes.head_dim);
    const auto output = fixtures::Load(
        *backend_,
        fixtures::Encode("output", output_weights.values, 1, kHidden, output_weights.cols),
        WeightUse::kMatrix);
    const AttentionShape shape = sizes.attention_shape();
    fixtures::KvPages pages(sizes, KvType::kF16, 40);
    fixtures::AttentionState state(sizes, pages, position + 1);
    SequenceRows rows;
    rows.first_position = position;
    rows.num_rows = rows.num_committed = 1;
    const AttentionSequence sequence = state.Sequence(rows);
    const auto sequences = absl::MakeConstSpan(&sequence, 1);
    FloatRows query(1, output_weights.cols), gate(1, output_weights.cols), out = query;
    FloatRows index_query(1, int64_t{sizes.num_index_heads} * sizes.index_head_dim);
    const int64_t budget = sizes.qsa_ratio == 0 ? 0 : sizes.qsa_budget / sizes.qsa_ratio;
    fixtures::Rows<int32_t> blocks(1, std::max<int64_t>(budget, 1));
    std::vector<int32_t> counts(1);
    AttentionInputs inputs = {query.view(), gate.view(), {}};
    QsaSelection selection;
    if (sizes.qsa_ratio != 0) {
      inputs.index_query = index_query.view();
      selection = {blocks.view(), absl::MakeSpan(counts)};
    }
    return CountHalf([&] {
      backend_->AttentionQkv(ledger_, layer.weights, shape, pages.layer(), sequences, u_.view(),
                             inputs);
      if (sizes.qsa_ratio != 0) {
        backend_->QsaSelect(ledger_, shape, pages.layer(), sequences, index_query.view(),
                            selection);
        EXPECT_EQ(counts[0], position >= sizes.qsa_budget + sizes.qsa_ratio ? budget : -1);
      }
      backend_->Attention(ledger_, shape, pages.layer(), sequences, inputs, selection, out.view());
      backend_->MatMulSharded(ledger_, *output, fixtures::Shards(out.cols, 32), out.view(),
                              y_.view());
    });
  }

  LayerSizes sizes_ = Sizes();
  Random random_{5};
  std::unique_ptr<Backend> backend_ = MakeCpuBackend(sizes_.limits(8, 1, 2048), 2);
  fixtures::Loaded<MixerWeights> mixer_ =
      fixtures::Load(*backend_, sizes_, RandomMixer(random_, sizes_));
  FloatRows h_ = RandomRows(random_, 1, 4 * kHidden);
  FloatRows u_{1, kHidden}, y_{1, kHidden}, inject_{1, 4};
  LedgerSlot ledger_;
};

TEST_F(CpuBarriersTest, DeltaNetHalfHasFive) {
  const auto delta = fixtures::Load(*backend_, sizes_, RandomDeltaNet(random_, sizes_));
  fixtures::DeltaNetState state(sizes_);
  fixtures::SequenceCursor cursor;
  const DeltaNetSequence sequence = state.Sequence(cursor.Next(0, 1));
  EXPECT_EQ(CountHalf([&] {
              backend_->GatedDeltaNet(ledger_, delta.weights, sizes_.delta_shape(),
                                      absl::MakeConstSpan(&sequence, 1), u_.view(), y_.view());
            }),
            5);
}

TEST_F(CpuBarriersTest, AttentionHalfHasFive) {
  LayerSizes dense = sizes_;
  dense.qsa_ratio = 0;
  EXPECT_EQ(CountAttention(dense, 700), 5);
}

TEST_F(CpuBarriersTest, AttentionHalfHasFiveWithSelectedBlocks) {
  EXPECT_EQ(CountAttention(sizes_, 10), 5);    // reads all
  EXPECT_EQ(CountAttention(sizes_, 2000), 5);  // 500 blocks, of which 4 are read
}

TEST_F(CpuBarriersTest, ExpertsHalfHasFive) {
  const auto tensors = RandomMoe(random_, sizes_);
  const auto moe = fixtures::Load(*backend_, sizes_, tensors);
  const auto router = fixtures::Load(*backend_, tensors.router, WeightUse::kMatrix);
  fixtures::Rows<int32_t> experts(1, sizes_.top_k);
  FloatRows weights(1, sizes_.top_k);
  EXPECT_EQ(CountHalf([&] {
              backend_->Router(ledger_, *router, u_.view(), experts.view(), weights.view());
              backend_->Experts(ledger_, moe.weights, u_.view(), experts.view(), weights.view(),
                                y_.view());
            }),
            5);
}

}  // namespace
}  // namespace switchyard::kernels::cpu
