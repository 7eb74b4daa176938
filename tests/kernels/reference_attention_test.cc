// Attention of the reference backend against brute force: projections, cache, softmax, gate.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "kernels/kv_layout.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/rope.h"
#include "testing/attention_fixture.h"
#include "testing/stage_fixtures.h"

namespace switchyard::kernels::reference {
namespace {

using fixtures::AttentionLayer;
using fixtures::AttentionOracle;
using fixtures::AttentionResult;
using fixtures::AttentionState;
using fixtures::AttentionTensors;
using fixtures::FloatRows;
using fixtures::LayerSizes;
using fixtures::Random;
using fixtures::RandomRows;
using fixtures::SequenceCursor;

struct AttentionCase {
  KvType type;
  bool output_gate;
  int num_kv_heads;
  int num_rotary_dims;
  int qsa_ratio;
};

class ReferenceAttentionTest : public testing::TestWithParam<AttentionCase> {
 protected:
  void SetUp() override {
    const AttentionCase& c = GetParam();
    sizes_.num_heads = 6;
    sizes_.num_kv_heads = c.num_kv_heads;
    sizes_.output_gate = c.output_gate;
    sizes_.num_rotary_dims = c.num_rotary_dims;
    sizes_.qsa_ratio = c.qsa_ratio;
    sizes_.qsa_budget = 32;
    tensors_ = fixtures::RandomAttention(random_, sizes_);
    ASSERT_TRUE(CheckKvLayout(sizes_.attention_shape(), c.type).ok());
    ASSERT_TRUE(backend_->Prepare(sizes_.limits(200, 4, 512)).ok());
    u_ = RandomRows(random_, 150, sizes_.hidden_size);
  }
  AttentionLayer Layer(uint64_t page_seed = 1) {
    return AttentionLayer(*backend_, sizes_, tensors_, GetParam().type, 16, page_seed);
  }

  LayerSizes sizes_;
  Random random_{31};
  std::unique_ptr<Backend> backend_ = CreateReferenceBackend();
  AttentionTensors tensors_;
  FloatRows u_{0, 1};
};

TEST_P(ReferenceAttentionTest, EqualsBruteForce) {
  const AttentionResult result = Layer().RunInSteps(u_, 64);
  const AttentionOracle oracle = fixtures::ComputeAttention(sizes_, tensors_, GetParam().type, u_);
  EXPECT_EQ(result.blocks, oracle.blocks);
  // Both round queries, keys, values and block keys alike. Gates, near 1, are rounded to float by
  // the stage only, which moves their sigmoid by 2^-26 at most; so does the result, which is at
  // most 5 (the largest of 2^13 normal values).
  const double tolerance = 5 * 0x1p-24;
  for (int64_t t = 0; t < u_.rows(); ++t) {
    const fixtures::Doubles& expected = oracle.out[static_cast<size_t>(t)];
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(result.out.Row(t)[i], expected[i], tolerance) << "token " << t;
    }
  }
}

TEST_P(ReferenceAttentionTest, StepsAndPagesDoNotChangeTheBits) {
  const std::vector<float> expected = Layer().RunInSteps(u_, 1).out.values;
  for (int num_rows : {3, 7, 64, 150}) {
    EXPECT_EQ(Layer(100 + static_cast<uint64_t>(num_rows)).RunInSteps(u_, num_rows).out.values,
              expected)
        << num_rows;
  }
}

TEST_P(ReferenceAttentionTest, RejectedRowsLeaveNoTrace) {
  const std::vector<float> expected = Layer().RunInSteps(u_, 1).out.values;
  for (int round = 0; round < 3; ++round) {
    AttentionLayer layer = Layer();
    AttentionState state = layer.NewSequence(u_.rows() + kMaxProvisionalRows);
    const FloatRows out =
        fixtures::RunWindows(fixtures::RandomWindows(random_, static_cast<int>(u_.rows())), u_,
                             random_, [&](const SequenceRows& rows, const FloatRows& input) {
                               return layer.Run({state.Sequence(rows)}, input).out;
                             });
    EXPECT_EQ(out.values, expected);
  }
}

TEST_P(ReferenceAttentionTest, SequencesTogetherEqualSequencesAlone) {
  const FloatRows first =
      FloatRows::Of(u_.cols, {u_.values.begin(), u_.values.begin() + 50 * u_.cols});
  const FloatRows second =
      FloatRows::Of(u_.cols, {u_.values.begin() + 50 * u_.cols, u_.values.end()});
  AttentionLayer layer = Layer();
  AttentionState a = layer.NewSequence(50), b = layer.NewSequence(100);
  SequenceCursor a_cursor, b_cursor;
  // Interleaved over two steps: 20 + 70 rows, then 30 + 30.
  std::vector<float> a_out, b_out;
  for (const auto& [a_rows, b_rows] : {std::pair(20, 70), std::pair(30, 30)}) {
    FloatRows step = FloatRows::Of(u_.cols, {});
    const int64_t a_first = a_cursor.position() * u_.cols, b_first = b_cursor.position() * u_.cols;
    step.values.assign(first.values.begin() + a_first,
                       first.values.begin() + a_first + a_rows * u_.cols);
    step.values.insert(step.values.end(), second.values.begin() + b_first,
                       second.values.begin() + b_first + b_rows * u_.cols);
    const std::vector<float> out =
        layer
            .Run({a.Sequence(a_cursor.Next(0, a_rows)), b.Sequence(b_cursor.Next(a_rows, b_rows))},
                 step)
            .out.values;
    const auto border = out.begin() + a_rows * sizes_.num_heads * sizes_.head_dim;
    a_out.insert(a_out.end(), out.begin(), border);
    b_out.insert(b_out.end(), border, out.end());
  }
  EXPECT_EQ(a_out, Layer(5).RunInSteps(first, 50).out.values);
  EXPECT_EQ(b_out, Layer(6).RunInSteps(second, 100).out.values);
}

INSTANTIATE_TEST_SUITE_P(Cases, ReferenceAttentionTest,
                         testing::Values(AttentionCase{KvType::kF32, true, 2, 16, 0},
                                         AttentionCase{KvType::kF32, false, 3, 32, 0},
                                         AttentionCase{KvType::kF16, true, 1, 8, 0},
                                         AttentionCase{KvType::kQ8_0, true, 6, 16, 0},
                                         AttentionCase{KvType::kF32, true, 2, 16, 4},
                                         AttentionCase{KvType::kF16, true, 3, 16, 8},
                                         AttentionCase{KvType::kQ8_0, false, 2, 16, 2}));

// ---- what the backends share ----------------------------------------------------------------

TEST(RopeTest, AnglesAreExactFarOut) {
  float cosines[32], sines[32];
  RopeAngles(262143, 64, 1e7f, cosines, sines);
  EXPECT_EQ(cosines[0], static_cast<float>(std::cos(262143.0)));
  EXPECT_EQ(sines[0], static_cast<float>(std::sin(262143.0)));
  // 1e7^(-2 * 16 / 64) = 1e-3.5. The angle, 82.9, is good to 2^-46; then one rounding to float.
  EXPECT_NEAR(sines[16], std::sin(262143.0 / std::sqrt(1e7)), 0x1p-24);
}

TEST(RopeTest, RotatesPairsHalfTheRotatedPartApart) {
  // A quarter turn of pair (0, 2) and none of pair (1, 3).
  const float cosines[] = {0, 1}, sines[] = {1, 0};
  float x[] = {1, 2, 3, 4, 5};
  RopeRotate(4, cosines, sines, x);
  EXPECT_EQ((std::vector<float>(x, x + 5)), (std::vector<float>{-3, 2, 1, 4, 5}));
}

TEST(KvLayoutTest, RefusesShapesThatACacheCannotHold) {
  const AttentionShape good = LayerSizes().attention_shape();
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kQ8_0}) {
    EXPECT_TRUE(CheckKvLayout(good, type).ok());
  }
  AttentionShape shape = good;
  shape.head_dim = 48;
  EXPECT_TRUE(CheckKvLayout(shape, KvType::kF16).ok());
  EXPECT_EQ(CheckKvLayout(shape, KvType::kQ8_0).code(), absl::StatusCode::kInvalidArgument);
  shape = good;
  shape.num_kv_heads = 3;
  EXPECT_FALSE(CheckKvLayout(shape, KvType::kF16).ok());
  shape = good;
  shape.qsa_ratio = 3;
  EXPECT_FALSE(CheckKvLayout(shape, KvType::kF16).ok());
  shape = good;
  shape.qsa_budget = 18;
  EXPECT_FALSE(CheckKvLayout(shape, KvType::kF16).ok());
  shape = good;
  shape.num_rotary_dims = 34;
  EXPECT_FALSE(CheckKvLayout(shape, KvType::kF16).ok());
}

TEST(KvLayoutTest, RowsAndBlockKeysTileTheirPages) {
  AttentionShape shape = LayerSizes().attention_shape();  // 2 kv heads of 32, blocks of 4
  const KvLayout layout(shape, KvType::kQ8_0);
  const std::vector<int32_t> pages = {5, 2};
  AttentionSequence sequence;
  sequence.pages = pages;
  EXPECT_EQ(layout.row_bytes, 34);
  EXPECT_EQ(layout.page_bytes(), 2 * 64 * 34);
  EXPECT_EQ(layout.Row(sequence, 0, 0), 5 * layout.page_bytes());
  EXPECT_EQ(layout.Row(sequence, 1, 63), 6 * layout.page_bytes() - 34);
  EXPECT_EQ(layout.Row(sequence, 1, 65), 2 * layout.page_bytes() + (64 + 1) * 34);
  EXPECT_EQ(layout.block_key_bytes, 64);  // F16 beside quantised keys
  EXPECT_EQ(layout.BlockKey(sequence, 17), 2 * layout.block_key_page_bytes() + 64);
}

}  // namespace
}  // namespace switchyard::kernels::reference
