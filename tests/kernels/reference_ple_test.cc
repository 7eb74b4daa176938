// N-gram per-layer embedding of the reference backend against its formula, and its states.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "kernels/reference/reference_backend.h"
#include "testing/double_math.h"
#include "testing/stage_fixtures.h"

namespace switchyard::kernels::reference {
namespace {

using fixtures::DotProduct;
using fixtures::DoubleMatrix;
using fixtures::Doubles;
using fixtures::FloatRows;
using fixtures::GroupedRms;
using fixtures::LayerSizes;
using fixtures::PleState;
using fixtures::PleTensors;
using fixtures::Random;
using fixtures::RandomRows;
using fixtures::SequenceCursor;
using fixtures::Sigmoid;
using fixtures::Silu;
using fixtures::Slice;
using fixtures::ToDoubles;

// Rows of the tests hold what the stage takes side by side: [e | h].
FloatRows Columns(const FloatRows& rows, int64_t first, int64_t count) {
  FloatRows out = FloatRows::Of(count, {});
  for (int64_t t = 0; t < rows.rows(); ++t) {
    const auto begin = rows.values.begin() + t * rows.cols + first;
    out.values.insert(out.values.end(), begin, begin + count);
  }
  return out;
}

class PleFixture {
 public:
  PleFixture(const LayerSizes& sizes, const PleTensors& tensors) : sizes_(sizes) {
    loaded_ = fixtures::Load(*backend_, sizes, tensors);
    SWITCHYARD_CHECK(backend_->Prepare(sizes.limits(200, 4, 512)).ok());
  }
  int64_t wide() const { return int64_t{sizes_.num_streams} * sizes_.hidden_size; }

  FloatRows Run(const std::vector<ConvSequence>& sequences, const FloatRows& rows) {
    const FloatRows e = Columns(rows, 0, sizes_.ple_row_size);
    FloatRows h = Columns(rows, sizes_.ple_row_size, wide());
    LedgerSlot ledger;
    backend_->Ple(ledger, loaded_.weights, sizes_.ple_shape(), sequences, e.view(), h.view());
    return h;
  }
  FloatRows RunInSteps(const FloatRows& rows, int num_rows, PleState& state) {
    SequenceCursor cursor;
    FloatRows h = FloatRows::Of(wide(), {});
    while (cursor.position() < rows.rows()) {
      const int64_t first = cursor.position();
      const int count = static_cast<int>(std::min<int64_t>(num_rows, rows.rows() - first));
      const FloatRows part =
          FloatRows::Of(rows.cols, {rows.values.begin() + first * rows.cols,
                                    rows.values.begin() + (first + count) * rows.cols});
      const FloatRows out = Run({state.Sequence(cursor.Next(0, count))}, part);
      h.values.insert(h.values.end(), out.values.begin(), out.values.end());
    }
    return h;
  }

 private:
  LayerSizes sizes_;
  std::unique_ptr<Backend> backend_ = CreateReferenceBackend();
  fixtures::Loaded<PleWeights> loaded_;
};

struct PleCase {
  int num_streams, conv_kernel, dilation;
};

class ReferencePleTest : public testing::TestWithParam<PleCase> {
 protected:
  void SetUp() override {
    sizes_.num_streams = GetParam().num_streams;
    sizes_.ple_conv_kernel = GetParam().conv_kernel;
    sizes_.ple_dilation = GetParam().dilation;
    tensors_ = fixtures::RandomPle(random_, sizes_);
    fixture_ = std::make_unique<PleFixture>(sizes_, tensors_);
    rows_ = RandomRows(random_, 50, sizes_.ple_row_size + fixture_->wide());
  }

  LayerSizes sizes_;
  Random random_{21};
  PleTensors tensors_;
  std::unique_ptr<PleFixture> fixture_;
  FloatRows rows_{0, 1};
};

TEST_P(ReferencePleTest, AddsAsTheFormula) {
  PleState state(sizes_);
  const FloatRows out = fixture_->RunInSteps(rows_, 7, state);
  const DoubleMatrix key(tensors_.key), value(tensors_.value), conv(tensors_.conv);
  const double epsilon = double{sizes_.rms_epsilon};
  const int64_t hidden = sizes_.hidden_size;
  std::vector<Doubles> inputs;  // of the convolution
  for (int64_t t = 0; t < rows_.rows(); ++t) {
    const Doubles row = ToDoubles(rows_.Row(t));
    const Doubles e = Slice(row, 0, sizes_.ple_row_size);
    const Doubles h = Slice(row, sizes_.ple_row_size, fixture_->wide());
    const Doubles kn =
        GroupedRms(key(e), DoubleMatrix(tensors_.norm_key).values(), epsilon, hidden);
    const Doubles qn = GroupedRms(h, DoubleMatrix(tensors_.norm_query).values(), epsilon, hidden);
    const Doubles v = value(e);
    Doubles gated;
    for (int64_t s = 0; s < sizes_.num_streams; ++s) {
      const double d = DotProduct(Slice(kn, s * hidden, hidden), Slice(qn, s * hidden, hidden)) /
                       std::sqrt(static_cast<double>(hidden));
      const double root = std::sqrt(std::max(std::abs(d), 1e-6)) * (d > 0 ? 1 : d < 0 ? -1 : 0);
      for (double x : v) gated.push_back(Sigmoid(root) * x);
    }
    inputs.push_back(GroupedRms(gated, DoubleMatrix(tensors_.norm_conv).values(), epsilon, hidden));
    for (size_t c = 0; c < h.size(); ++c) {
      double sum = 0;
      for (int64_t i = 0; i < sizes_.ple_conv_kernel; ++i) {
        const int64_t from = t - (sizes_.ple_conv_kernel - 1 - i) * sizes_.ple_dilation;
        if (from >= 0) {
          sum += conv.at(static_cast<int64_t>(c), i) * inputs[static_cast<size_t>(from)][c];
        }
      }
      // Each of conv_kernel inputs, at most 8 = sqrt(hidden) large, is rounded to float; the result
      // is rounded once more.
      const double expected = h[c] + gated[c] + Silu(sum);
      const double tolerance = 0x1p-24 * (16 * sizes_.ple_conv_kernel + std::abs(expected));
      ASSERT_NEAR(out.Row(t)[c], expected, tolerance) << "token " << t << " channel " << c;
    }
  }
}

TEST_P(ReferencePleTest, StepsOfAnySizeGiveTheSameBits) {
  PleState state(sizes_);
  const FloatRows expected = fixture_->RunInSteps(rows_, 1, state);
  for (int num_rows : {2, 5, 13, 50}) {
    PleState other(sizes_);
    EXPECT_EQ(fixture_->RunInSteps(rows_, num_rows, other).values, expected.values) << num_rows;
    EXPECT_EQ(other.tail, state.tail) << num_rows;
  }
}

TEST_P(ReferencePleTest, RejectedRowsLeaveNoTrace) {
  PleState plain(sizes_);
  const FloatRows expected = fixture_->RunInSteps(rows_, 1, plain);
  for (int round = 0; round < 5; ++round) {
    PleState state(sizes_);
    const FloatRows out =
        fixtures::RunWindows(fixtures::RandomWindows(random_, 50), rows_, random_,
                             [&](const SequenceRows& rows, const FloatRows& input) {
                               return fixture_->Run({state.Sequence(rows)}, input);
                             });
    EXPECT_EQ(out.values, expected.values);
    EXPECT_EQ(state.tail, plain.tail);
  }
}

TEST_P(ReferencePleTest, SequencesTogetherEqualSequencesAlone) {
  const FloatRows first =
      FloatRows::Of(rows_.cols, {rows_.values.begin(), rows_.values.begin() + 4 * rows_.cols});
  const FloatRows second =
      FloatRows::Of(rows_.cols, {rows_.values.begin() + 4 * rows_.cols, rows_.values.end()});
  PleState a(sizes_), b(sizes_), a_alone(sizes_), b_alone(sizes_);
  SequenceCursor a_cursor, b_cursor;
  const FloatRows together =
      fixture_->Run({a.Sequence(a_cursor.Next(0, 4)), b.Sequence(b_cursor.Next(4, 46))}, rows_);
  std::vector<float> alone = fixture_->RunInSteps(first, 4, a_alone).values;
  const std::vector<float> rest = fixture_->RunInSteps(second, 46, b_alone).values;
  alone.insert(alone.end(), rest.begin(), rest.end());
  EXPECT_EQ(together.values, alone);
  EXPECT_EQ(a.tail, a_alone.tail);
  EXPECT_EQ(b.tail, b_alone.tail);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ReferencePleTest,
                         testing::Values(PleCase{4, 4, 3}, PleCase{3, 5, 2}, PleCase{2, 2, 4}));

// With zero taps the stage adds sigmoid(root) * value; a match d so small that |d| < 1e-6 has the
// root +-1e-3, and d = 0 has 0.
TEST(ReferencePleClampTest, SmallMatchesHaveARootOfOneThousandth) {
  LayerSizes sizes;
  sizes.num_streams = 3;
  sizes.hidden_size = 16;
  sizes.ple_row_size = 16;
  Random random(22);
  PleTensors tensors = fixtures::RandomPle(random, sizes);
  const int64_t wide = 48;
  std::vector<float> key(static_cast<size_t>(wide * 16), 0.0f), identity(16 * 16, 0.0f);
  for (size_t i = 0; i < 16; ++i) {
    // In streams 0 and 1 keys are +-1e-14 e: epsilon rules their RMS, so they become +-1e-11 e.
    key[i * 16 + i] = 1e-14f;
    key[(16 + i) * 16 + i] = -1e-14f;
    identity[i * 16 + i] = 1;
  }
  tensors.key = fixtures::Encode("key", key, 1, wide, 16);
  tensors.value = fixtures::Encode("value", identity, 1, 16, 16);
  const std::vector<float> ones(static_cast<size_t>(wide), 1.0f);
  tensors.norm_key = tensors.norm_query = fixtures::Encode("norm", ones, 1, 1, wide);
  tensors.conv = fixtures::Encode("conv", std::vector<float>(wide * 4, 0.0f), 1, wide, 4);
  PleFixture fixture(sizes, tensors);
  PleState state(sizes);
  SequenceCursor cursor;
  FloatRows rows = FloatRows::Of(64, std::vector<float>(64, 1.0f));  // e and h of ones
  const FloatRows out = fixture.Run({state.Sequence(cursor.Next(0, 1))}, rows);
  const double roots[] = {1e-3, -1e-3, 0};
  for (size_t c = 0; c < 48; ++c) {
    EXPECT_NEAR(out.values[c], 1 + Sigmoid(roots[c / 16]), 2 * 0x1p-24) << c;
  }
}

}  // namespace
}  // namespace switchyard::kernels::reference
