// Router and experts of the reference backend against their formulas.
#include <algorithm>
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
using fixtures::LayerSizes;
using fixtures::MoeTensors;
using fixtures::Random;
using fixtures::RandomRows;
using fixtures::Rows;
using fixtures::Sigmoid;
using fixtures::Silu;
using fixtures::TensorData;
using fixtures::ToDoubles;

double Tolerance(double expected) { return 0x1p-24 * std::abs(expected) + 1e-12; }

struct Routed {
  Rows<int32_t> experts;
  FloatRows weights;
};

Routed Route(const TensorData& router, const FloatRows& u, int top_k) {
  LayerSizes sizes;
  sizes.num_experts = static_cast<int>(router.rows);
  sizes.hidden_size = static_cast<int>(router.cols);
  auto backend = CreateReferenceBackend();
  EXPECT_TRUE(backend->Prepare(sizes.limits(u.rows(), 1, 64)).ok());
  const auto weight = fixtures::Load(*backend, router, WeightUse::kMatrix);
  Routed routed{Rows<int32_t>(u.rows(), top_k), FloatRows(u.rows(), top_k)};
  LedgerSlot ledger;
  backend->Router(ledger, *weight, u.view(), routed.experts.view(), routed.weights.view());
  return routed;
}

TEST(ReferenceRouterTest, ChoosesTheBestOf512InAscendingOrder) {
  Random random(1);
  const TensorData router = Encode("router", random.Normals(512 * 32, 0.5), 1, 512, 32);
  const FloatRows u = RandomRows(random, 40, 32);
  const Routed routed = Route(router, u, 10);
  const DoubleMatrix w(router);
  int num_high = 0;
  for (int64_t t = 0; t < 40; ++t) {
    Doubles p = w(ToDoubles(u.Row(t)));
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x);
    std::vector<int32_t> order(512);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return p[static_cast<size_t>(a)] > p[static_cast<size_t>(b)];
    });
    order.resize(10);
    std::sort(order.begin(), order.end());
    ASSERT_EQ(routed.experts.Row(t), order);
    double chosen = 0;
    for (int32_t e : order) chosen += p[static_cast<size_t>(e)];
    for (size_t i = 0; i < 10; ++i) {
      const double expected = p[static_cast<size_t>(order[i])] / chosen;
      ASSERT_NEAR(routed.weights.Row(t)[i], expected, Tolerance(expected));
      num_high += order[i] > 255;
    }
  }
  EXPECT_GT(num_high, 100);  // about half of 400: ids above 255 are chosen like others
}

TEST(ReferenceRouterTest, FindsExpert338) {
  std::vector<float> values(512 * 4, 0.0f);
  values[338 * 4] = 5;
  values[100 * 4] = 4;
  const Routed routed =
      Route(Encode("router", values, 1, 512, 4), FloatRows::Of(4, {1, 0, 0, 0}), 2);
  EXPECT_THAT(routed.experts.values, testing::ElementsAre(100, 338));
  const double expected = 1 / (1 + std::exp(1.0));
  EXPECT_NEAR(routed.weights.values[0], expected, 1e-7);
  EXPECT_NEAR(routed.weights.values[1], 1 - expected, 1e-7);
}

TEST(ReferenceRouterTest, TakesTheLowerIdOnATie) {
  // Logits 1, 2, 1, 2, 1, 1: the two best, then the first of the four that tie.
  const Routed routed =
      Route(Encode("router", {1, 2, 1, 2, 1, 1}, 1, 6, 1), FloatRows::Of(1, {1.0f}), 3);
  EXPECT_THAT(routed.experts.values, testing::ElementsAre(0, 1, 3));
}

TEST(ReferenceRouterTest, ClampsATinySum) {
  // 20000 equal experts: p = 5e-5 is below 2^-14 = 6.1e-5.
  const Routed routed = Route(Encode("router", std::vector<float>(20000, 0.0f), 1, 20000, 1),
                              FloatRows::Of(1, {1.0f}), 1);
  EXPECT_EQ(routed.experts.values[0], 0);
  EXPECT_NEAR(routed.weights.values[0], 16384.0 / 20000, 1e-7);
}

TEST(ReferenceRouterTest, SurvivesWhatIsNotANumber) {
  Random random(2);
  const TensorData router = Encode("router", random.Normals(16 * 4), 1, 16, 4);
  const Routed routed = Route(router, FloatRows::Of(4, std::vector<float>(4, NAN)), 4);
  EXPECT_TRUE(std::is_sorted(routed.experts.values.begin(), routed.experts.values.end()));
  EXPECT_EQ(std::adjacent_find(routed.experts.values.begin(), routed.experts.values.end()),
            routed.experts.values.end());
  EXPECT_THAT(routed.experts.values,
              testing::Each(testing::AllOf(testing::Ge(0), testing::Lt(16))));
}

// ---- experts --------------------------------------------------------------------------------

Doubles ExpertOutput(const DoubleMatrix& gate, const DoubleMatrix& up, const DoubleMatrix& down,
                     const Doubles& x, int64_t slab) {
  Doubles hidden = gate(x, slab);
  const Doubles u = up(x, slab);
  for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = Silu(hidden[i]) * u[i];
  return down(hidden, slab);
}

struct ExpertsCase {
  DType dtype;
  int num_tokens;
  int shared_expert_hidden_size;
};

class ReferenceExpertsTest : public testing::TestWithParam<ExpertsCase> {
 protected:
  void SetUp() override {
    sizes_.matrix_type = GetParam().dtype;
    sizes_.shared_expert_hidden_size = GetParam().shared_expert_hidden_size;
    tensors_ = fixtures::RandomMoe(random_, sizes_);
    ASSERT_TRUE(backend_->Prepare(sizes_.limits(200, 4, 64)).ok());
    loaded_ = fixtures::Load(*backend_, sizes_, tensors_);
    const int num_tokens = GetParam().num_tokens;
    u_ = RandomRows(random_, num_tokens, sizes_.hidden_size);
    experts_ = Rows<int32_t>(num_tokens, sizes_.top_k);
    weights_ = FloatRows(num_tokens, sizes_.top_k);
    const auto router = fixtures::Load(*backend_, tensors_.router, WeightUse::kMatrix);
    LedgerSlot ledger;
    backend_->Router(ledger, *router, u_.view(), experts_.view(), weights_.view());
  }

  std::vector<float> Run(const MoeWeights& weights) {
    FloatRows y(u_.rows(), sizes_.hidden_size);
    backend_->Experts(ledger_, weights, u_.view(), experts_.view(), weights_.view(), y.view());
    return y.values;
  }

  LayerSizes sizes_;
  Random random_{3};
  std::unique_ptr<Backend> backend_ = CreateReferenceBackend();
  MoeTensors tensors_;
  fixtures::Loaded<MoeWeights> loaded_;
  FloatRows u_{0, 1}, weights_{0, 1};
  Rows<int32_t> experts_{0, 1};
  LedgerSlot ledger_;
};

TEST_P(ReferenceExpertsTest, SumsAsTheFormula) {
  const FloatRows y = FloatRows::Of(sizes_.hidden_size, Run(loaded_.weights));
  const DoubleMatrix gate(tensors_.gate), up(tensors_.up), down(tensors_.down);
  for (int64_t t = 0; t < u_.rows(); ++t) {
    const Doubles x = ToDoubles(u_.Row(t));
    Doubles expected(static_cast<size_t>(sizes_.hidden_size), 0.0);
    for (size_t i = 0; i < static_cast<size_t>(sizes_.top_k); ++i) {
      const Doubles out = ExpertOutput(gate, up, down, x, experts_.Row(t)[i]);
      for (size_t e = 0; e < out.size(); ++e) {
        expected[e] += double{weights_.Row(t)[i]} * out[e];
      }
    }
    if (sizes_.shared_expert_hidden_size != 0) {
      const double logit =
          fixtures::DotProduct(DoubleMatrix(tensors_.shared_gate_input).values(), x);
      const Doubles out =
          ExpertOutput(DoubleMatrix(tensors_.shared_gate), DoubleMatrix(tensors_.shared_up),
                       DoubleMatrix(tensors_.shared_down), x, 0);
      for (size_t e = 0; e < out.size(); ++e) expected[e] += Sigmoid(logit) * out[e];
    }
    for (size_t e = 0; e < expected.size(); ++e) {
      ASSERT_NEAR(y.Row(t)[e], expected[e], Tolerance(expected[e])) << "token " << t;
    }
  }
}

TEST_P(ReferenceExpertsTest, FusedGateAndUpGiveTheSameBits) {
  const int64_t inner = sizes_.expert_hidden_size, hidden = sizes_.hidden_size;
  MoeTensors fused = tensors_;
  const size_t slab_bytes = tensors_.gate.bytes.size() / static_cast<size_t>(sizes_.num_experts);
  fused.gate_up = {"gate_up", tensors_.gate.dtype, sizes_.num_experts, 2 * inner, hidden, {}};
  for (int e = 0; e < sizes_.num_experts; ++e) {
    for (const TensorData* half : {&tensors_.gate, &tensors_.up}) {
      const auto first = half->bytes.begin() + static_cast<int64_t>(slab_bytes) * e;
      fused.gate_up.bytes.insert(fused.gate_up.bytes.end(), first,
                                 first + static_cast<int64_t>(slab_bytes));
    }
  }
  fused.gate = fused.up = TensorData();
  const auto loaded = fixtures::Load(*backend_, sizes_, fused);
  ASSERT_EQ(loaded.weights.gate, nullptr);
  EXPECT_EQ(Run(loaded.weights), Run(loaded_.weights));
}

TEST_P(ReferenceExpertsTest, TokenDoesNotDependOnItsNeighbours) {
  const FloatRows all = FloatRows::Of(sizes_.hidden_size, Run(loaded_.weights));
  FloatRows alone(1, sizes_.hidden_size);
  for (int64_t t = 0; t < u_.rows(); ++t) {
    backend_->Experts(ledger_, loaded_.weights, u_.view().Rows(t, 1), experts_.view().Rows(t, 1),
                      weights_.view().Rows(t, 1), alone.view());
    ASSERT_EQ(alone.values, all.Row(t)) << t;
  }
}

TEST_P(ReferenceExpertsTest, CountsTheBytesOfUsedExpertsOnly) {
  Run(loaded_.weights);
  std::vector<int32_t> used = experts_.values;
  std::sort(used.begin(), used.end());
  const int64_t num_used = std::unique(used.begin(), used.end()) - used.begin();
  const MoeWeights& w = loaded_.weights;
  int64_t bytes = (w.gate->resident_bytes() + w.up->resident_bytes() + w.down->resident_bytes()) /
                  sizes_.num_experts * num_used;
  if (w.shared_down != nullptr && u_.rows() > 0) {
    bytes += w.shared_gate->resident_bytes() + w.shared_up->resident_bytes() +
             w.shared_down->resident_bytes() + w.shared_gate_input->resident_bytes();
  }
  EXPECT_EQ(ledger_.weight_bytes, bytes);
}

INSTANTIATE_TEST_SUITE_P(Cases, ReferenceExpertsTest,
                         testing::Values(ExpertsCase{DType::kF32, 0, 96},
                                         ExpertsCase{DType::kF32, 1, 96},
                                         ExpertsCase{DType::kF32, 130, 96},
                                         ExpertsCase{DType::kF32, 5, 0},
                                         ExpertsCase{DType::kQ8_0, 9, 96}));

}  // namespace
}  // namespace switchyard::kernels::reference
