// Hyper-connections and the n-gram embedding of the cpu backend.
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu_step_driver.h"
#include "kernels/reference/reference_backend.h"
#include "testing/stage_fixtures.h"

namespace switchyard::kernels::cpu {
namespace {

using fixtures::FloatRows;
using fixtures::LayerSizes;
using fixtures::MixerTensors;
using fixtures::PleState;
using fixtures::PleTensors;
using fixtures::Random;
using fixtures::RandomRows;

StepLimits Limits(const LayerSizes& sizes) { return sizes.limits(300, 4, 512); }

// ---- mixer ----------------------------------------------------------------------------------

struct Mixed {
  FloatRows u, inject;
};

Mixed RunMix(Backend& backend, const LayerSizes& sizes, const MixerTensors& tensors,
             const FloatRows& h) {
  const auto mixer = fixtures::Load(backend, sizes, tensors);
  Mixed mixed = {FloatRows(h.rows(), sizes.hidden_size), FloatRows(h.rows(), sizes.num_streams)};
  LedgerSlot ledger;
  const bool inject = mixer.weights.inject != nullptr;
  backend.HcMix(ledger, mixer.weights, h.view(), mixed.u.view(),
                inject ? mixed.inject.view() : MatrixView<float>());
  return mixed;
}

class CpuMixerTest : public testing::TestWithParam<int> {};

TEST_P(CpuMixerTest, MatchesReference) {
  LayerSizes sizes;
  sizes.num_streams = GetParam();
  sizes.hidden_size = 72;  // no multiple of a task's elements
  Random random(21);
  const MixerTensors tensors = RandomMixer(random, sizes);
  auto reference = reference::CreateReferenceBackend();
  ASSERT_TRUE(reference->Prepare(Limits(sizes)).ok());
  for (const int num_threads : {1, 2}) {
    auto cpu = MakeCpuBackend(Limits(sizes), num_threads);
    for (const int64_t rows : {1, 2, 65, 300}) {
      const FloatRows h = RandomRows(random, rows, sizes.num_streams * sizes.hidden_size, 3);
      const Mixed expected = RunMix(*reference, sizes, tensors, h);
      const Mixed mixed = RunMix(*cpu, sizes, tensors, h);
      // Sums of 288 and 32 products of size about 1 / sqrt(n) each, outputs up to 5: 5e-5 in the
      // worst case; the exponentials add 4 * 2^-22.
      EXPECT_LT(MaxDifference(mixed.u.values, expected.u.values), 5e-5);
      EXPECT_LT(MaxDifference(mixed.inject.values, expected.inject.values), 5e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Streams, CpuMixerTest, testing::Values(1, 2, 3, 4));

TEST(CpuMixerTest, SameBitsForOneRowAndManyOnEveryMachine) {
  for (const DType type : {DType::kF32, DType::kQ8_0, DType::kF16}) {
    LayerSizes sizes;
    sizes.matrix_type = type;
    Random random(22);
    const MixerTensors tensors = RandomMixer(random, sizes);
    const FloatRows h = RandomRows(random, 130, sizes.num_streams * sizes.hidden_size);
    std::vector<float> expected;
    for (const Machine machine : AllMachines()) {
      auto cpu = MakeCpuBackend(Limits(sizes), machine.num_threads, machine.level);
      const Mixed all = RunMix(*cpu, sizes, tensors, h);
      if (expected.empty()) expected = all.u.values;
      EXPECT_EQ(all.u.values, expected);
      for (const int64_t row : {0, 64, 129}) {
        const Mixed one = RunMix(*cpu, sizes, tensors, FloatRows::Of(h.cols, h.Row(row)));
        EXPECT_EQ(one.u.values, all.u.Row(row));
        EXPECT_EQ(one.inject.values, all.inject.Row(row));
      }
    }
  }
}

TEST(CpuMixerTest, QuantizedActivationsStayNearTheReference) {
  // The noise of 8-bit groups is 0.5 % of the deviation (cpu_gated_delta_net_test.cc). It enters
  // the gates, whose slope is at most 1/4, once with a quarter of it. `inject` is kept as floats
  // and its activations with it: sums of 256 terms, 256 * 2^-24 = 1.5e-5.
  LayerSizes sizes;
  sizes.matrix_type = DType::kQ8_0;
  Random random(23);
  const MixerTensors tensors = RandomMixer(random, sizes);
  const FloatRows h = RandomRows(random, 40, sizes.num_streams * sizes.hidden_size);
  auto reference = reference::CreateReferenceBackend();
  ASSERT_TRUE(reference->Prepare(Limits(sizes)).ok());
  auto cpu = MakeCpuBackend(Limits(sizes));
  const Mixed expected = RunMix(*reference, sizes, tensors, h);
  const Mixed mixed = RunMix(*cpu, sizes, tensors, h);
  EXPECT_LT(RelativeRms(mixed.inject.values, expected.inject.values), 1.5e-5);
  EXPECT_LT(RelativeRms(mixed.u.values, expected.u.values), 0.005);
}

// With S * hidden_size <= 16 the `inject` weight has the shape of convolution taps.
TEST(CpuMixerTest, MatchesReferenceWithVeryNarrowStreams) {
  LayerSizes sizes;
  sizes.hidden_size = 4;
  Random random(25);
  const MixerTensors tensors = RandomMixer(random, sizes);
  const FloatRows h = RandomRows(random, 5, sizes.num_streams * sizes.hidden_size);
  auto reference = reference::CreateReferenceBackend();
  ASSERT_TRUE(reference->Prepare(Limits(sizes)).ok());
  auto cpu = MakeCpuBackend(Limits(sizes));
  const Mixed expected = RunMix(*reference, sizes, tensors, h);
  const Mixed mixed = RunMix(*cpu, sizes, tensors, h);
  // Sums of 16 and 32 products, outputs up to 5; the exponentials add 4 * 2^-22.
  EXPECT_LT(MaxDifference(mixed.u.values, expected.u.values), 1e-5);
  EXPECT_LT(MaxDifference(mixed.inject.values, expected.inject.values), 1e-5);
}

TEST(CpuMixerTest, CombinesAsTheReference) {
  LayerSizes sizes;
  Random random(24);
  auto reference = reference::CreateReferenceBackend();
  auto cpu = MakeCpuBackend(Limits(sizes), 2);
  LedgerSlot ledger;
  for (const int64_t rows : {1, 300}) {
    const FloatRows inject = RandomRows(random, rows, 4, 4), y = RandomRows(random, rows, 64);
    FloatRows expected = RandomRows(random, rows, 256), h = expected;
    reference->HcCombine(ledger, inject.view(), y.view(), expected.view());
    cpu->HcCombine(ledger, inject.view(), y.view(), h.view());
    // One product with a weight in (0, 2), accurate to some roundings, and one sum of size 10.
    EXPECT_LT(MaxDifference(h.values, expected.values), 16 * 0x1p-24 * 10);
    FloatRows narrow = y, narrow_expected = y;
    reference->HcCombine(ledger, {}, y.view(), narrow_expected.view());
    cpu->HcCombine(ledger, {}, y.view(), narrow.view());
    EXPECT_EQ(narrow.values, narrow_expected.values);
  }
}

// ---- n-gram embedding -----------------------------------------------------------------------

struct PleResult {
  std::vector<FloatRows> outputs;
  std::vector<PleState> states;
};

// The inputs are the gathered rows followed by the residual.
PleResult RunPle(Backend& backend, const LayerSizes& sizes, const PleTensors& tensors,
                 const std::vector<FloatRows>& inputs, const std::vector<Plan>& plans) {
  const auto layer = fixtures::Load(backend, sizes, tensors);
  const int64_t wide = sizes.num_streams * sizes.hidden_size;
  PleResult result;
  for (size_t i = 0; i < inputs.size(); ++i) result.states.emplace_back(sizes);
  LedgerSlot ledger;
  result.outputs = RunPlans<ConvSequence>(
      absl::MakeSpan(result.states), inputs, plans, wide,
      [&](absl::Span<const ConvSequence> sequences, MatrixView<const float> in,
          MatrixView<float> h) {
        for (int64_t row = 0; row < in.rows; ++row) {
          std::copy_n(in.row(row) + sizes.ple_row_size, wide, h.row(row));
        }
        backend.Ple(ledger, layer.weights, sizes.ple_shape(), sequences,
                    {in.data, in.rows, sizes.ple_row_size, in.row_stride}, h);
      });
  return result;
}

class CpuPleTest : public testing::Test {
 protected:
  CpuPleTest() : random_(31), tensors_(RandomPle(random_, sizes_)) {}
  FloatRows Input(int64_t rows) {
    return RandomRows(random_, rows, sizes_.ple_row_size + sizes_.num_streams * sizes_.hidden_size);
  }

  LayerSizes sizes_;
  Random random_;
  PleTensors tensors_;
};

TEST_F(CpuPleTest, MatchesReference) {
  const std::vector<FloatRows> inputs = {Input(60), Input(25)};
  auto reference = reference::CreateReferenceBackend();
  ASSERT_TRUE(reference->Prepare(Limits(sizes_)).ok());
  auto cpu = MakeCpuBackend(Limits(sizes_), 2);
  for (const int chunk : {1, 7, 60}) {
    const std::vector<Plan> plans = {Chunks(60, chunk), Chunks(25, chunk)};
    const PleResult expected = RunPle(*reference, sizes_, tensors_, inputs, plans);
    const PleResult result = RunPle(*cpu, sizes_, tensors_, inputs, plans);
    for (size_t i = 0; i < inputs.size(); ++i) {
      // The gate's argument is sqrt |d| with d a mean of 64 products, off by about
      // (128 + 64) * 2^-24 = 1.1e-5. The root's slope, 500 at most and 16 at |d| = 1e-3, takes a
      // gate up to 1.1e-5 * 16 / 4 = 5e-5 off; values and taps make outputs of up to 5 of it.
      EXPECT_LT(MaxDifference(result.outputs[i].values, expected.outputs[i].values), 2.5e-4);
      EXPECT_LT(MaxDifference(result.states[i].tail, expected.states[i].tail), 2.5e-4);
    }
  }
}

TEST_F(CpuPleTest, SameBitsForEveryChunkSizeAndMachine) {
  const std::vector<FloatRows> inputs = {Input(200)};
  std::vector<float> expected;
  for (const Machine machine : AllMachines()) {
    auto cpu = MakeCpuBackend(Limits(sizes_), machine.num_threads, machine.level);
    for (const int chunk : {1, 3, 64, 200}) {
      const PleResult result = RunPle(*cpu, sizes_, tensors_, inputs, {Chunks(200, chunk)});
      if (expected.empty()) expected = result.outputs[0].values;
      EXPECT_EQ(result.outputs[0].values, expected);
    }
  }
}

TEST_F(CpuPleTest, RejectedRowsLeaveNoTrace) {
  const int num_rows = 100;
  const std::vector<FloatRows> inputs = {Input(num_rows), Input(num_rows)};
  auto cpu = MakeCpuBackend(Limits(sizes_), 2);
  const PleResult expected =
      RunPle(*cpu, sizes_, tensors_, inputs, {Chunks(num_rows, 1), Chunks(num_rows, 1)});
  std::vector<Plan> plans;
  for (int i = 0; i < 2; ++i) {
    plans.push_back(fixtures::RandomWindows(random_, num_rows - 1));
    plans.back().push_back({1, 1, 0});  // replays what was accepted last
  }
  const PleResult result = RunPle(*cpu, sizes_, tensors_, inputs, plans);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(result.outputs[i].values, expected.outputs[i].values);
    EXPECT_EQ(result.states[i].tail, expected.states[i].tail);
  }
}

}  // namespace
}  // namespace switchyard::kernels::cpu
