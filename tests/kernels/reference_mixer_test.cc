// Hyper-connections of the reference backend against their formulas.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/reference/reference_backend.h"
#include "testing/double_math.h"
#include "testing/stage_fixtures.h"

namespace switchyard::kernels::reference {
namespace {

using fixtures::DoubleMatrix;
using fixtures::Doubles;
using fixtures::FloatRows;
using fixtures::GroupedRms;
using fixtures::LayerSizes;
using fixtures::MixerTensors;
using fixtures::Random;
using fixtures::RandomRows;
using fixtures::Sigmoid;
using fixtures::Silu;
using fixtures::ToDoubles;

// One rounding to float of a result that double gives to 1e-13.
double Tolerance(double expected) { return 0x1p-24 * std::abs(expected) + 1e-12; }

class ReferenceMixerTest : public testing::TestWithParam<int> {};

TEST_P(ReferenceMixerTest, MixesAsTheFormula) {
  LayerSizes sizes;
  sizes.num_streams = GetParam();
  const int64_t hidden = sizes.hidden_size, streams = sizes.num_streams;
  auto backend = CreateReferenceBackend();
  ASSERT_TRUE(backend->Prepare(sizes.limits(40, 1, 64)).ok());
  Random random(1);
  const MixerTensors tensors = fixtures::RandomMixer(random, sizes);
  const auto mixer = fixtures::Load(*backend, sizes, tensors);
  const FloatRows h = RandomRows(random, 35, streams * hidden, 3);
  FloatRows u(35, hidden), inject(35, streams);
  LedgerSlot ledger;
  backend->HcMix(ledger, mixer.weights, h.view(), u.view(), inject.view());
  EXPECT_EQ(ledger.weight_bytes, backend->resident_weight_bytes());

  const DoubleMatrix norm(tensors.norm), down(tensors.down), up(tensors.up),
      inject_weight(tensors.inject);
  const double count = static_cast<double>(streams);
  for (int64_t t = 0; t < 35; ++t) {
    const Doubles xn =
        GroupedRms(ToDoubles(h.Row(t)), norm.values(), double{sizes.rms_epsilon}, hidden);
    Doubles low = down(xn);
    for (double& x : low) x = Silu(x / count);
    const Doubles gate = up(low);
    for (int64_t e = 0; e < hidden; ++e) {
      double mean = 0;
      for (int64_t s = 0; s < streams; ++s) {
        const size_t i = static_cast<size_t>(s * hidden + e);
        mean += Sigmoid(gate[i]) * xn[i] / count;
      }
      ASSERT_NEAR(u.Row(t)[static_cast<size_t>(e)], mean, Tolerance(mean));
    }
    const Doubles expected = inject_weight(xn);
    for (size_t s = 0; s < expected.size(); ++s) {
      ASSERT_NEAR(inject.Row(t)[s], expected[s], Tolerance(expected[s]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Streams, ReferenceMixerTest, testing::Values(2, 3, 4));

TEST(ReferenceMixerTest, OneStreamIsAPlainRmsNorm) {
  LayerSizes sizes;
  sizes.num_streams = 1;
  auto backend = CreateReferenceBackend();
  ASSERT_TRUE(backend->Prepare(sizes.limits(4, 1, 64)).ok());
  Random random(2);
  const MixerTensors tensors = fixtures::RandomMixer(random, sizes);
  const auto mixer = fixtures::Load(*backend, sizes, tensors);
  const FloatRows h = RandomRows(random, 3, sizes.hidden_size);
  FloatRows u(3, sizes.hidden_size);
  LedgerSlot ledger;
  backend->HcMix(ledger, mixer.weights, h.view(), u.view(), {});
  for (int64_t t = 0; t < 3; ++t) {
    const Doubles expected = GroupedRms(ToDoubles(h.Row(t)), DoubleMatrix(tensors.norm).values(),
                                        double{sizes.rms_epsilon}, sizes.hidden_size);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(u.Row(t)[i], expected[i], Tolerance(expected[i]));
    }
  }
}

TEST(ReferenceMixerTest, CombinesOntoTheResidual) {
  auto backend = CreateReferenceBackend();
  // Two streams of two: weights 2 sigmoid(0 / 2) = 1 and 2 sigmoid(2 ln 3 / 2) = 1.5.
  const FloatRows inject = FloatRows::Of(2, {0, static_cast<float>(2 * std::log(3.0))});
  const FloatRows y = FloatRows::Of(2, {10, 20});
  FloatRows h = FloatRows::Of(4, {1, 2, 3, 4});
  LedgerSlot ledger;
  backend->HcCombine(ledger, inject.view(), y.view(), h.view());
  EXPECT_THAT(h.values, testing::ElementsAre(11, 22, testing::FloatEq(18), testing::FloatEq(34)));
}

TEST(ReferenceMixerTest, WithoutInjectAddsThePlainOutput) {
  auto backend = CreateReferenceBackend();
  const FloatRows y = FloatRows::Of(2, {10, 20});
  FloatRows h = FloatRows::Of(2, {1, 2});
  LedgerSlot ledger;
  backend->HcCombine(ledger, {}, y.view(), h.view());
  EXPECT_THAT(h.values, testing::ElementsAre(11, 22));
}

}  // namespace
}  // namespace switchyard::kernels::reference
