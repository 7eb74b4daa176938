// Attention of the cpu backend, projections to softmax, dense and with block selection.
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu_step_driver.h"
#include "kernels/reference/reference_backend.h"
#include "testing/stage_fixtures.h"

namespace switchyard::kernels::cpu {
namespace {

using fixtures::AttentionState;
using fixtures::AttentionTensors;
using fixtures::FloatRows;
using fixtures::KvPages;
using fixtures::LayerSizes;
using fixtures::Random;
using fixtures::RandomRows;

StepLimits Limits(const LayerSizes& sizes) { return sizes.limits(600, 4, 1024); }

// The three attention stages, one after the other.
std::vector<FloatRows> RunAttention(Backend& backend, const LayerSizes& sizes, KvType type,
                                    const AttentionTensors& tensors,
                                    const std::vector<FloatRows>& inputs,
                                    const std::vector<Plan>& plans, int num_pages = 40) {
  const auto layer = fixtures::Load(backend, sizes, tensors);
  const AttentionShape shape = sizes.attention_shape();
  KvPages pages(sizes, type, num_pages);
  std::vector<AttentionState> states;
  for (const FloatRows& input : inputs) {
    states.emplace_back(sizes, pages, input.rows() + kMaxProvisionalRows);
  }
  const int64_t values = int64_t{sizes.num_heads} * sizes.head_dim;
  LedgerSlot ledger;
  return RunPlans<AttentionSequence>(
      absl::MakeSpan(states), inputs, plans, values,
      [&](absl::Span<const AttentionSequence> sequences, MatrixView<const float> u,
          MatrixView<float> out) {
        FloatRows query(u.rows, values), gate(u.rows, values);
        FloatRows index_query(u.rows, int64_t{sizes.num_index_heads} * sizes.index_head_dim);
        AttentionInputs attention_inputs;
        attention_inputs.query = query.view();
        if (sizes.output_gate) attention_inputs.gate = gate.view();
        QsaSelection selection;
        const int64_t budget = shape.qsa_ratio == 0 ? 0 : shape.qsa_budget / shape.qsa_ratio;
        std::vector<int32_t> blocks(static_cast<size_t>(u.rows * budget));
        std::vector<int32_t> counts(static_cast<size_t>(u.rows));
        if (shape.qsa_ratio != 0) attention_inputs.index_query = index_query.view();
        backend.AttentionQkv(ledger, layer.weights, shape, pages.layer(), sequences, u,
                             attention_inputs);
        if (shape.qsa_ratio != 0) {
          selection.blocks = {blocks.data(), u.rows, budget};
          selection.counts = absl::MakeSpan(counts);
          backend.QsaSelect(ledger, shape, pages.layer(), sequences, index_query.view(), selection);
        }
        backend.Attention(ledger, shape, pages.layer(), sequences, attention_inputs, selection,
                          out);
      });
}

struct Case {
  const char* name;
  KvType type;
  int ratio;
  int num_heads;
  int num_kv_heads;
  bool output_gate;
  double tolerance;
};

class CpuAttentionCaseTest : public testing::TestWithParam<Case> {};

// Tolerances. F32 cache: a score is a sum of 32 products of normalised values, off by at most
// 32 * 2^-24 * |q| |k| / sqrt(32) with |q| |k| = 32, that is 1.1e-5, and so is each weight,
// relatively; the output, an average of values of size up to 4, by 5e-5; 1e-4 leaves room for the
// projections. F16: where the two backends round a key or value to different neighbours, which
// float rounding causes in few elements, it moves by 2^-11 of its size of at most 4: 2e-3. Q8_0: by
// one step of max / 127 of at most 4 / 127: 0.03.
TEST_P(CpuAttentionCaseTest, MatchesReference) {
  const Case& c = GetParam();
  LayerSizes sizes;
  sizes.qsa_ratio = c.ratio;
  sizes.num_heads = c.num_heads;
  sizes.num_kv_heads = c.num_kv_heads;
  sizes.output_gate = c.output_gate;
  Random random(11);
  const AttentionTensors tensors = RandomAttention(random, sizes);
  const std::vector<FloatRows> inputs = {RandomRows(random, 150, sizes.hidden_size),
                                         RandomRows(random, 90, sizes.hidden_size)};
  auto reference = reference::CreateReferenceBackend();
  ASSERT_TRUE(reference->Prepare(Limits(sizes)).ok());
  auto cpu = MakeCpuBackend(Limits(sizes), 2);
  for (const int chunk : {1, 7, 64, 150}) {
    SCOPED_TRACE(chunk);
    const std::vector<Plan> plans = {Chunks(150, chunk), Chunks(90, chunk)};
    const auto expected = RunAttention(*reference, sizes, c.type, tensors, inputs, plans);
    const auto result = RunAttention(*cpu, sizes, c.type, tensors, inputs, plans);
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_LT(MaxDifference(result[i].values, expected[i].values), c.tolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CpuAttentionCaseTest,
                         testing::Values(Case{"Dense", KvType::kF32, 0, 4, 2, true, 1e-4},
                                         Case{"DenseF16", KvType::kF16, 0, 4, 2, true, 2e-3},
                                         Case{"DenseQ8", KvType::kQ8_0, 0, 4, 2, true, 0.03},
                                         Case{"NoGate", KvType::kF32, 0, 4, 4, false, 1e-4},
                                         Case{"ManyHeads", KvType::kF32, 0, 14, 2, true, 1e-4},
                                         Case{"Sparse", KvType::kF32, 4, 4, 2, true, 1e-4},
                                         Case{"SparseF16", KvType::kF16, 4, 6, 2, true, 2e-3},
                                         Case{"Ratio2", KvType::kF32, 2, 6, 1, true, 1e-4},
                                         Case{"Ratio8", KvType::kF32, 8, 4, 2, true, 1e-4}),
                         [](const auto& info) { return info.param.name; });

class CpuAttentionTest : public testing::TestWithParam<KvType> {
 protected:
  CpuAttentionTest() : random_(13), tensors_(RandomAttention(random_, sizes_)) {}

  LayerSizes sizes_;  // sparse, budget 16
  Random random_;
  AttentionTensors tensors_;
};

TEST_P(CpuAttentionTest, SameBitsForEveryChunkSize) {
  const std::vector<FloatRows> inputs = {RandomRows(random_, 530, sizes_.hidden_size)};
  auto cpu = MakeCpuBackend(Limits(sizes_));
  const auto expected = RunAttention(*cpu, sizes_, GetParam(), tensors_, inputs, {Chunks(530, 64)});
  for (const int chunk : {1, 5, 128, 512, 530}) {
    const auto result =
        RunAttention(*cpu, sizes_, GetParam(), tensors_, inputs, {Chunks(530, chunk)});
    EXPECT_EQ(result[0].values, expected[0].values) << chunk;
  }
}

TEST_P(CpuAttentionTest, SameBitsForEveryPoolAndLevel) {
  const std::vector<FloatRows> inputs = {RandomRows(random_, 100, sizes_.hidden_size)};
  std::vector<float> expected;
  for (const Machine machine : AllMachines()) {
    auto cpu = MakeCpuBackend(Limits(sizes_), machine.num_threads, machine.level);
    Plan plan = Chunks(80, 80);
    for (const auto& window : Chunks(20, 1)) plan.push_back(window);
    const auto result = RunAttention(*cpu, sizes_, GetParam(), tensors_, inputs, {plan});
    if (expected.empty()) expected = result[0].values;
    EXPECT_EQ(result[0].values, expected) << machine.num_threads << " threads";
  }
}

TEST_P(CpuAttentionTest, SameBitsAloneAndAmongOthers) {
  const std::vector<FloatRows> inputs = {RandomRows(random_, 130, sizes_.hidden_size),
                                         RandomRows(random_, 40, sizes_.hidden_size),
                                         RandomRows(random_, 9, sizes_.hidden_size)};
  const std::vector<Plan> plans = {Chunks(130, 64), Chunks(40, 5), Chunks(9, 1)};
  auto cpu = MakeCpuBackend(Limits(sizes_), 2);
  const auto together = RunAttention(*cpu, sizes_, GetParam(), tensors_, inputs, plans);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto alone = RunAttention(*cpu, sizes_, GetParam(), tensors_, {inputs[i]}, {plans[i]});
    EXPECT_EQ(together[i].values, alone[0].values);
  }
}

TEST_P(CpuAttentionTest, RejectedRowsLeaveNoTrace) {
  const int num_rows = 120;
  const std::vector<FloatRows> inputs = {RandomRows(random_, num_rows, sizes_.hidden_size)};
  auto cpu = MakeCpuBackend(Limits(sizes_), 2);
  const auto expected =
      RunAttention(*cpu, sizes_, GetParam(), tensors_, inputs, {Chunks(num_rows, 1)});
  const std::vector<Plan> plans = {fixtures::RandomWindows(random_, num_rows)};
  const auto result = RunAttention(*cpu, sizes_, GetParam(), tensors_, inputs, plans);
  EXPECT_EQ(result[0].values, expected[0].values);
}

// The last rows of a context, in one tile of rows or alone with their keys divided over threads.
struct LongContext {
  int64_t num_rows;
  int ratio;
  int budget;
};

void ExpectSameBitsHoweverKeysAreDivided(const LongContext& context, KvType type,
                                         const std::vector<Machine>& machines) {
  LayerSizes sizes;
  sizes.qsa_ratio = context.ratio;
  sizes.qsa_budget = context.budget;
  sizes.num_heads = 14;
  Random random(13);
  const AttentionTensors tensors = RandomAttention(random, sizes);
  const StepLimits limits = sizes.limits(600, 1, context.num_rows + 100);
  const std::vector<FloatRows> inputs = {RandomRows(random, context.num_rows, sizes.hidden_size)};
  std::vector<float> expected;
  for (const Machine machine : machines) {
    Plan plan = Chunks(context.num_rows - 6, 512);
    if (expected.empty()) {
      plan.push_back({6, 6, 0});
    } else {
      plan.insert(plan.end(), {{1, 1, 0}, {1, 1, 0}, {1, 1, 0}, {3, 3, 0}});
    }
    auto cpu = MakeCpuBackend(limits, machine.num_threads, machine.level);
    const auto result = RunAttention(*cpu, sizes, type, tensors, inputs, {plan}, 80);
    if (expected.empty()) expected = result[0].values;
    EXPECT_EQ(result[0].values, expected) << machine.num_threads << " threads";
  }
}

TEST_P(CpuAttentionTest, SameBitsHoweverKeysAreDivided) {
  ExpectSameBitsHoweverKeysAreDivided({257, 0, 0}, GetParam(), AllMachines());
  ExpectSameBitsHoweverKeysAreDivided({700, 4, 400}, GetParam(), AllMachines());
}

// Above 16 chunks of 256 keys several chunks make a part.
TEST(CpuLongAttentionTest, SameBitsHoweverKeysAreDivided) {
  ExpectSameBitsHoweverKeysAreDivided({4700, 0, 0}, KvType::kF16,
                                      {{1, DetectCpuLevel()}, {3, DetectCpuLevel()}});
}

INSTANTIATE_TEST_SUITE_P(Types, CpuAttentionTest,
                         testing::Values(KvType::kF32, KvType::kF16, KvType::kQ8_0));

}  // namespace
}  // namespace switchyard::kernels::cpu
