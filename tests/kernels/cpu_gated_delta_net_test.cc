// The delta net of the cpu backend: against the reference, and the same bits however a sequence is
// fed.
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu_step_driver.h"
#include "kernels/reference/reference_backend.h"
#include "testing/stage_fixtures.h"

namespace switchyard::kernels::cpu {
namespace {

using fixtures::DeltaNetState;
using fixtures::DeltaNetTensors;
using fixtures::FloatRows;
using fixtures::LayerSizes;
using fixtures::Random;
using fixtures::RandomRows;

struct Result {
  std::vector<FloatRows> outputs;
  std::vector<DeltaNetState> states;
};

Result RunDelta(Backend& backend, const LayerSizes& sizes, const DeltaNetTensors& tensors,
                const std::vector<FloatRows>& inputs, const std::vector<Plan>& plans) {
  const auto layer = fixtures::Load(backend, sizes, tensors);
  Result result;
  for (size_t i = 0; i < inputs.size(); ++i) result.states.emplace_back(sizes);
  LedgerSlot ledger;
  result.outputs = RunPlans<DeltaNetSequence>(
      absl::MakeSpan(result.states), inputs, plans, sizes.hidden_size,
      [&](absl::Span<const DeltaNetSequence> sequences, MatrixView<const float> u,
          MatrixView<float> y) {
        backend.GatedDeltaNet(ledger, layer.weights, sizes.delta_shape(), sequences, u, y);
      });
  EXPECT_GT(ledger.weight_bytes, 0);
  return result;
}

void ExpectSameState(const DeltaNetState& a, const DeltaNetState& b) {
  EXPECT_EQ(a.state, b.state);
  EXPECT_EQ(a.tail, b.tail);
}

StepLimits Limits(const LayerSizes& sizes) { return sizes.limits(600, 4, 1024); }

struct Form {
  const char* name;
  bool tiled_heads;
  bool silu_gate;
  int head_dim;
  int conv_kernel;
};

class CpuDeltaNetFormTest : public testing::TestWithParam<Form> {};

// Rounding: sums of 64, 32 and 64 terms in the projections, the keys and the chunk give about
// 160 * 2^-24 = 1e-5 of the size of the terms. The norm over a head's output then multiplies by
// (size of the terms) / (size of the output), which at the first tokens, where few terms meet,
// reaches some tens: 3e-4 for outputs of size 1.
constexpr double kTolerance = 3e-4;

TEST_P(CpuDeltaNetFormTest, MatchesReferenceInRecurrentAndChunkedForm) {
  LayerSizes sizes;
  sizes.tiled_heads = GetParam().tiled_heads;
  sizes.silu_gate = GetParam().silu_gate;
  sizes.delta_head_dim = GetParam().head_dim;
  sizes.conv_kernel = GetParam().conv_kernel;
  Random random(3);
  const DeltaNetTensors tensors = RandomDeltaNet(random, sizes);
  const std::vector<FloatRows> inputs = {RandomRows(random, 150, sizes.hidden_size)};
  auto reference = reference::CreateReferenceBackend();
  ASSERT_TRUE(reference->Prepare(Limits(sizes)).ok());
  auto cpu = MakeCpuBackend(Limits(sizes), 2);
  for (const int chunk : {1, 16, 17, 63, 64, 150}) {
    SCOPED_TRACE(chunk);
    const std::vector<Plan> plans = {Chunks(150, chunk)};
    const Result expected = RunDelta(*reference, sizes, tensors, inputs, plans);
    const Result result = RunDelta(*cpu, sizes, tensors, inputs, plans);
    EXPECT_LT(MaxDifference(result.outputs[0].values, expected.outputs[0].values), kTolerance);
    EXPECT_LT(MaxDifference(result.states[0].state, expected.states[0].state), kTolerance);
    EXPECT_LT(MaxDifference(result.states[0].tail, expected.states[0].tail), kTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, CpuDeltaNetFormTest,
                         testing::Values(Form{"tiled", true, false, 32, 4},
                                         Form{"grouped", false, true, 32, 4},
                                         Form{"small", true, false, 16, 3},
                                         Form{"odd", true, false, 24, 2},
                                         Form{"full", true, false, 128, 4}),
                         [](const auto& info) { return info.param.name; });

class CpuDeltaNetTest : public testing::Test {
 protected:
  CpuDeltaNetTest() : random_(5), tensors_(RandomDeltaNet(random_, sizes_)) {}

  LayerSizes sizes_;
  Random random_;
  DeltaNetTensors tensors_;
};

TEST_F(CpuDeltaNetTest, SameBitsForChunksOf64AndMore) {
  const std::vector<FloatRows> inputs = {RandomRows(random_, 530, sizes_.hidden_size)};
  auto cpu = MakeCpuBackend(Limits(sizes_));
  const Result expected = RunDelta(*cpu, sizes_, tensors_, inputs, {Chunks(530, 64)});
  for (const int chunk : {128, 512, 530}) {
    const Result result = RunDelta(*cpu, sizes_, tensors_, inputs, {Chunks(530, chunk)});
    EXPECT_EQ(result.outputs[0].values, expected.outputs[0].values);
    ExpectSameState(result.states[0], expected.states[0]);
  }
}

TEST_F(CpuDeltaNetTest, SameBitsForEveryPoolAndLevel) {
  const std::vector<FloatRows> inputs = {RandomRows(random_, 100, sizes_.hidden_size)};
  std::vector<float> expected;
  for (const Machine machine : AllMachines()) {
    auto cpu = MakeCpuBackend(Limits(sizes_), machine.num_threads, machine.level);
    Plan plan = Chunks(80, 80);
    for (const auto& window : Chunks(20, 1)) plan.push_back(window);
    const Result result = RunDelta(*cpu, sizes_, tensors_, inputs, {plan});
    if (expected.empty()) expected = result.outputs[0].values;
    EXPECT_EQ(result.outputs[0].values, expected) << machine.num_threads << " threads";
  }
}

TEST_F(CpuDeltaNetTest, SameBitsAloneAndAmongOthers) {
  const std::vector<FloatRows> inputs = {RandomRows(random_, 130, sizes_.hidden_size),
                                         RandomRows(random_, 40, sizes_.hidden_size),
                                         RandomRows(random_, 9, sizes_.hidden_size)};
  const std::vector<Plan> plans = {Chunks(130, 64), Chunks(40, 5), Chunks(9, 1)};
  auto cpu = MakeCpuBackend(Limits(sizes_), 2);
  const Result together = RunDelta(*cpu, sizes_, tensors_, inputs, plans);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Result alone = RunDelta(*cpu, sizes_, tensors_, {inputs[i]}, {plans[i]});
    EXPECT_EQ(together.outputs[i].values, alone.outputs[0].values);
    ExpectSameState(together.states[i], alone.states[0]);
  }
}

TEST_F(CpuDeltaNetTest, RejectedRowsLeaveNoTrace) {
  const int num_rows = 120;
  const std::vector<FloatRows> inputs = {RandomRows(random_, num_rows, sizes_.hidden_size),
                                         RandomRows(random_, num_rows, sizes_.hidden_size)};
  auto cpu = MakeCpuBackend(Limits(sizes_), 2);
  const Result expected =
      RunDelta(*cpu, sizes_, tensors_, inputs, {Chunks(num_rows, 1), Chunks(num_rows, 1)});
  std::vector<Plan> plans;
  for (int i = 0; i < 2; ++i) {
    plans.push_back(fixtures::RandomWindows(random_, num_rows - 1));
    plans.back().push_back({1, 1, 0});  // replays what was accepted last
  }
  const Result result = RunDelta(*cpu, sizes_, tensors_, inputs, plans);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(result.outputs[i].values, expected.outputs[i].values);
    ExpectSameState(result.states[i], expected.states[i]);
  }
}

TEST_F(CpuDeltaNetTest, QuantizedActivationsStayNearTheReference) {
  // A group of 32 normal values has its largest near 2.2 deviations, so a step is 2.2 / 127 and the
  // noise 2.2 / 127 / sqrt(12) = 0.5 % of the deviation. It enters twice: at the projections,
  // where the norm over a head's output amplifies it about twofold, and at the output. With the
  // root of the sum of squares that is 1.1 %; three times as much would be a fault.
  sizes_.matrix_type = DType::kQ8_0;
  tensors_ = RandomDeltaNet(random_, sizes_);
  const std::vector<FloatRows> inputs = {RandomRows(random_, 90, sizes_.hidden_size)};
  auto reference = reference::CreateReferenceBackend();
  ASSERT_TRUE(reference->Prepare(Limits(sizes_)).ok());
  auto cpu = MakeCpuBackend(Limits(sizes_));
  const std::vector<Plan> plans = {Chunks(90, 70)};
  const Result expected = RunDelta(*reference, sizes_, tensors_, inputs, plans);
  const Result result = RunDelta(*cpu, sizes_, tensors_, inputs, plans);
  EXPECT_LT(RelativeRms(result.outputs[0].values, expected.outputs[0].values), 0.033);
}

}  // namespace
}  // namespace switchyard::kernels::cpu
