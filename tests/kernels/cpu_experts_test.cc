// Router and experts of the cpu backend.
#include <algorithm>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu_step_driver.h"
#include "kernels/reference/reference_backend.h"
#include "testing/stage_fixtures.h"

namespace switchyard::kernels::cpu {
namespace {

using fixtures::FloatRows;
using fixtures::LayerSizes;
using fixtures::MoeTensors;
using fixtures::Random;
using fixtures::RandomRows;
using IntRows = fixtures::Rows<int32_t>;

StepLimits Limits(const LayerSizes& sizes) { return sizes.limits(1100, 4, 2048); }

struct Routed {
  IntRows experts;
  FloatRows weights;
};

Routed RunRouter(Backend& backend, const MoeTensors& tensors, const LayerSizes& sizes,
                 const FloatRows& u) {
  const auto router = fixtures::Load(backend, tensors.router, WeightUse::kMatrix);
  Routed routed = {IntRows(u.rows(), sizes.top_k), FloatRows(u.rows(), sizes.top_k)};
  LedgerSlot ledger;
  backend.Router(ledger, *router, u.view(), routed.experts.view(), routed.weights.view());
  EXPECT_EQ(ledger.weight_bytes, router->resident_bytes());
  return routed;
}

FloatRows RunExperts(Backend& backend, const MoeTensors& tensors, const LayerSizes& sizes,
                     const FloatRows& u, const Routed& routed) {
  const auto layer = fixtures::Load(backend, sizes, tensors);
  FloatRows y(u.rows(), sizes.hidden_size);
  LedgerSlot ledger;
  backend.Experts(ledger, layer.weights, u.view(), routed.experts.view(), routed.weights.view(),
                  y.view());
  EXPECT_GT(ledger.weight_bytes, 0);
  return y;
}

// Different experts per row, ascending, with weights that sum to 1.
Routed RandomRouting(Random& random, int64_t rows, const LayerSizes& sizes) {
  Routed routed = {IntRows(rows, sizes.top_k), FloatRows(rows, sizes.top_k)};
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<int32_t> ids(static_cast<size_t>(sizes.num_experts));
    std::iota(ids.begin(), ids.end(), 0);
    for (int i = 0; i < sizes.top_k; ++i) {
      std::swap(ids[static_cast<size_t>(i)],
                ids[static_cast<size_t>(i + random.Below(sizes.num_experts - i))]);
    }
    std::sort(ids.begin(), ids.begin() + sizes.top_k);
    std::copy_n(ids.begin(), sizes.top_k, routed.experts.view().row(row));
    float sum = 0;
    float* weights = routed.weights.view().row(row);
    for (int i = 0; i < sizes.top_k; ++i) {
      sum += weights[i] = 0.1f + static_cast<float>(random.Uniform());
    }
    for (int i = 0; i < sizes.top_k; ++i) weights[i] /= sum;
  }
  return routed;
}

Routed OneRow(const Routed& routed, int64_t row) {
  return {IntRows::Of(routed.experts.cols, routed.experts.Row(row)),
          FloatRows::Of(routed.weights.cols, routed.weights.Row(row))};
}

// ---- router ---------------------------------------------------------------------------------

TEST(CpuRouterTest, ChoosesAsTheReferenceAlsoAboveExpert255) {
  LayerSizes sizes;
  sizes.num_experts = 512;
  sizes.top_k = 10;
  Random random(41);
  const MoeTensors tensors = RandomMoe(random, sizes);
  auto reference = reference::CreateReferenceBackend();
  ASSERT_TRUE(reference->Prepare(Limits(sizes)).ok());
  const FloatRows u = RandomRows(random, 70, sizes.hidden_size);
  const Routed expected = RunRouter(*reference, tensors, sizes, u);
  for (const Machine machine : AllMachines()) {
    auto cpu = MakeCpuBackend(Limits(sizes), machine.num_threads, machine.level);
    const Routed routed = RunRouter(*cpu, tensors, sizes, u);
    EXPECT_EQ(routed.experts.values, expected.experts.values);
    // Logits of size up to 10, sums of 64: off by 64 * 2^-24 * 10 at most, so are the weights.
    EXPECT_LT(MaxDifference(routed.weights.values, expected.weights.values), 4e-5);
    const Routed one = RunRouter(*cpu, tensors, sizes, FloatRows::Of(u.cols, u.Row(33)));
    EXPECT_EQ(one.experts.values, routed.experts.Row(33));
    EXPECT_EQ(one.weights.values, routed.weights.Row(33));
  }
}

TEST(CpuRouterTest, TakesTheLowerIdOnATie) {
  LayerSizes sizes;
  sizes.num_experts = 300;
  sizes.top_k = 4;
  // All experts score the same but 290, which is best.
  std::vector<float> weights(300 * 64, 0.5f);
  std::fill_n(weights.begin() + 290 * 64, 64, 1.0f);
  MoeTensors tensors;
  tensors.router = fixtures::Encode("router", weights, 1, 300, 64);
  auto cpu = MakeCpuBackend(Limits(sizes));
  const Routed routed =
      RunRouter(*cpu, tensors, sizes, FloatRows::Of(64, std::vector<float>(64, 0.01f)));
  EXPECT_EQ(routed.experts.values, (std::vector<int32_t>{0, 1, 2, 290}));
}

TEST(CpuRouterTest, ClampsTheSumOfVerySmallWeights) {
  // 2^15 equal experts: one has the probability 2^-15, below the floor of 2^-14.
  LayerSizes sizes;
  sizes.num_experts = 1 << 15;
  sizes.top_k = 1;
  MoeTensors tensors;
  tensors.router = fixtures::Encode("router", std::vector<float>(8 << 15, 0.0f), 1, 1 << 15, 8);
  sizes.hidden_size = 8;
  auto cpu = MakeCpuBackend(Limits(sizes));
  const Routed routed =
      RunRouter(*cpu, tensors, sizes, FloatRows::Of(8, std::vector<float>(8, 1.0f)));
  EXPECT_EQ(routed.experts.values, std::vector<int32_t>{0});
  EXPECT_EQ(routed.weights.values, std::vector<float>{0.5f});
}

// ---- experts --------------------------------------------------------------------------------

struct Form {
  const char* name;
  bool fused_gate_up;
  int expert_hidden_size;
  int shared_expert_hidden_size;
};

class CpuExpertsFormTest : public testing::TestWithParam<Form> {};

TEST_P(CpuExpertsFormTest, MatchesReference) {
  LayerSizes sizes;
  sizes.fused_gate_up = GetParam().fused_gate_up;
  sizes.expert_hidden_size = GetParam().expert_hidden_size;
  sizes.shared_expert_hidden_size = GetParam().shared_expert_hidden_size;
  Random random(43);
  const MoeTensors tensors = RandomMoe(random, sizes);
  auto reference = reference::CreateReferenceBackend();
  ASSERT_TRUE(reference->Prepare(Limits(sizes)).ok());
  auto cpu = MakeCpuBackend(Limits(sizes), 2);
  for (const int64_t rows : {1, 3, 200}) {
    const FloatRows u = RandomRows(random, rows, sizes.hidden_size);
    const Routed routed = RandomRouting(random, rows, sizes);
    const FloatRows expected = RunExperts(*reference, tensors, sizes, u, routed);
    const FloatRows y = RunExperts(*cpu, tensors, sizes, u, routed);
    // Sums of 64 and 160 products, outputs up to 4: (64 + 160) * 2^-24 * 4 = 5e-5.
    EXPECT_LT(MaxDifference(y.values, expected.values), 5e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, CpuExpertsFormTest,
                         testing::Values(Form{"Separate", false, 160, 96},
                                         Form{"Fused", true, 160, 96},
                                         Form{"NoShared", false, 160, 0},
                                         Form{"EmptyShards", false, 32, 32},
                                         Form{"Ragged", true, 96, 160}),
                         [](const auto& info) { return info.param.name; });

class CpuExpertsTypeTest : public testing::TestWithParam<DType> {
 protected:
  CpuExpertsTypeTest() : random_(44) {
    sizes_.matrix_type = GetParam();
    tensors_ = RandomMoe(random_, sizes_);
  }

  LayerSizes sizes_;
  Random random_;
  MoeTensors tensors_;
};

TEST_P(CpuExpertsTypeTest, SameBitsForOneRowAndManyOnEveryMachine) {
  // More rows than are sorted together, and more of one expert than are held together.
  const int64_t rows = 1100;
  const FloatRows u = RandomRows(random_, rows, sizes_.hidden_size);
  const Routed routed = RandomRouting(random_, rows, sizes_);
  auto first = MakeCpuBackend(Limits(sizes_));
  const FloatRows all = RunExperts(*first, tensors_, sizes_, u, routed);
  for (const Machine machine : AllMachines()) {
    auto cpu = MakeCpuBackend(Limits(sizes_), machine.num_threads, machine.level);
    if (machine.level != CpuLevel::kScalar) {
      const FloatRows same = RunExperts(*cpu, tensors_, sizes_, u, routed);
      EXPECT_EQ(same.values, all.values);
    }
    for (const int64_t row : {0, 511, 512, 1099}) {
      const FloatRows one = RunExperts(*cpu, tensors_, sizes_, FloatRows::Of(u.cols, u.Row(row)),
                                       OneRow(routed, row));
      EXPECT_EQ(one.values, all.Row(row)) << row;
    }
  }
}

TEST_P(CpuExpertsTypeTest, StaysNearTheReference) {
  // The noise of 8-bit groups is 0.5 % of the deviation (cpu_gated_delta_net_test.cc); it enters at
  // gate and at up, and once more, with the larger peaks of their product, at down: 1 % in sum of
  // squares. Three times as much would be a fault. Without rounding it is zero.
  const FloatRows u = RandomRows(random_, 40, sizes_.hidden_size);
  const Routed routed = RandomRouting(random_, 40, sizes_);
  auto reference = reference::CreateReferenceBackend();
  ASSERT_TRUE(reference->Prepare(Limits(sizes_)).ok());
  auto cpu = MakeCpuBackend(Limits(sizes_));
  const FloatRows expected = RunExperts(*reference, tensors_, sizes_, u, routed);
  const FloatRows y = RunExperts(*cpu, tensors_, sizes_, u, routed);
  const bool quantized = GetParam() == DType::kQ8_0 || GetParam() == DType::kQ4_0;
  EXPECT_LT(RelativeRms(y.values, expected.values), quantized ? 0.03 : 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Types, CpuExpertsTypeTest,
                         testing::Values(DType::kF32, DType::kBF16, DType::kQ8_0, DType::kQ4_0));

}  // namespace
}  // namespace switchyard::kernels::cpu
