// Gated delta net of the reference backend against the chunked formula, and its states.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "kernels/reference/reference_backend.h"
#include "testing/double_math.h"
#include "testing/stage_fixtures.h"

namespace switchyard::kernels::reference {
namespace {

using fixtures::DeltaNetState;
using fixtures::DeltaNetTensors;
using fixtures::DotProduct;
using fixtures::DoubleMatrix;
using fixtures::Doubles;
using fixtures::FloatRows;
using fixtures::LayerSizes;
using fixtures::Random;
using fixtures::RandomRows;
using fixtures::SequenceCursor;
using fixtures::Sigmoid;
using fixtures::Silu;
using fixtures::Slice;
using fixtures::ToDoubles;

// Queries, keys, values and gates of a whole sequence, straight from the definition.
struct Projected {
  std::vector<Doubles> channels;  // after convolution, SiLU and norms
  std::vector<Doubles> beta, log_decay, z;
};

Projected Project(const LayerSizes& sizes, const DeltaNetTensors& tensors, const FloatRows& u) {
  const DoubleMatrix qkv(tensors.qkv), gate(tensors.gate), beta(tensors.beta), alpha(tensors.alpha),
      conv(tensors.conv), a(tensors.a), dt_bias(tensors.dt_bias);
  const int64_t size = sizes.delta_head_dim;
  Projected projected;
  std::vector<Doubles> inputs;
  for (int64_t t = 0; t < u.rows(); ++t) {
    const Doubles x = ToDoubles(u.Row(t));
    inputs.push_back(qkv(x));
    projected.z.push_back(gate(x));
    Doubles b = beta(x), g = alpha(x);
    for (size_t v = 0; v < b.size(); ++v) {
      b[v] = Sigmoid(b[v]);
      g[v] = a.values()[v] * std::log1p(std::exp(g[v] + dt_bias.values()[v]));
    }
    projected.beta.push_back(b);
    projected.log_decay.push_back(g);
    Doubles c(inputs[0].size(), 0.0);
    for (size_t ch = 0; ch < c.size(); ++ch) {
      for (int64_t i = 0; i < sizes.conv_kernel; ++i) {
        const int64_t from = t - (sizes.conv_kernel - 1) + i;
        if (from >= 0) {
          c[ch] += conv.at(static_cast<int64_t>(ch), i) * inputs[static_cast<size_t>(from)][ch];
        }
      }
      c[ch] = Silu(c[ch]);
    }
    for (int64_t head = 0; head < 2 * sizes.num_key_heads; ++head) {
      const Doubles part = Slice(c, head * size, size);
      double norm = std::sqrt(DotProduct(part, part) + 1e-6);
      if (head < sizes.num_key_heads) norm *= std::sqrt(static_cast<double>(size));
      for (int64_t i = 0; i < size; ++i) c[static_cast<size_t>(head * size + i)] /= norm;
    }
    projected.channels.push_back(c);
  }
  return projected;
}

// The chunked form over the whole sequence from a zero state: u_t solves a triangular system, o_t
// sums over all u_s with s <= t. Returns o of value head `v`.
std::vector<Doubles> ChunkedHead(const LayerSizes& sizes, const Projected& p, int64_t v) {
  const int64_t size = sizes.delta_head_dim;
  const int64_t key_head = sizes.tiled_heads ? v % sizes.num_key_heads
                                             : v / (sizes.num_value_heads / sizes.num_key_heads);
  std::vector<Doubles> keys, updates, out;
  Doubles sums;  // G_t
  for (size_t t = 0; t < p.channels.size(); ++t) {
    const Doubles query = Slice(p.channels[t], key_head * size, size);
    keys.push_back(Slice(p.channels[t], (sizes.num_key_heads + key_head) * size, size));
    const double gamma = p.log_decay[t][static_cast<size_t>(v)];
    sums.push_back(t == 0 ? gamma : sums[t - 1] + gamma);
    Doubles update = Slice(p.channels[t], (2 * sizes.num_key_heads + v) * size, size);
    for (size_t s = 0; s < t; ++s) {
      const double weight = std::exp(sums[t] - sums[s]) * DotProduct(keys[t], keys[s]);
      for (size_t j = 0; j < update.size(); ++j) update[j] -= weight * updates[s][j];
    }
    for (double& x : update) x *= p.beta[t][static_cast<size_t>(v)];
    updates.push_back(update);
    Doubles o(static_cast<size_t>(size), 0.0);
    for (size_t s = 0; s <= t; ++s) {
      const double weight = std::exp(sums[t] - sums[s]) * DotProduct(query, keys[s]);
      for (size_t j = 0; j < o.size(); ++j) o[j] += weight * updates[s][j];
    }
    out.push_back(o);
  }
  return out;
}

std::vector<Doubles> ChunkedLayer(const LayerSizes& sizes, const DeltaNetTensors& tensors,
                                  const FloatRows& u) {
  const Projected p = Project(sizes, tensors, u);
  const DoubleMatrix norm(tensors.norm), output(tensors.output);
  std::vector<Doubles> gated(p.channels.size());
  for (int64_t v = 0; v < sizes.num_value_heads; ++v) {
    const std::vector<Doubles> out = ChunkedHead(sizes, p, v);
    for (size_t t = 0; t < out.size(); ++t) {
      Doubles n = fixtures::GroupedRms(out[t], norm.values(), double{sizes.rms_epsilon},
                                       sizes.delta_head_dim);
      for (size_t j = 0; j < n.size(); ++j) {
        const double z = p.z[t][static_cast<size_t>(v) * n.size() + j];
        gated[t].push_back(n[j] * (sizes.silu_gate ? Silu(z) : Sigmoid(z)));
      }
    }
  }
  std::vector<Doubles> y;
  for (const Doubles& x : gated) y.push_back(output(x));
  return y;
}

class DeltaNetFixture {
 public:
  explicit DeltaNetFixture(const LayerSizes& sizes) : sizes_(sizes) {
    Random random(11);
    tensors_ = fixtures::RandomDeltaNet(random, sizes);
    loaded_ = fixtures::Load(*backend_, sizes, tensors_);
    SWITCHYARD_CHECK(backend_->Prepare(sizes.limits(300, 4, 512)).ok());
  }

  FloatRows Run(const std::vector<DeltaNetSequence>& sequences, const FloatRows& u) {
    FloatRows y(u.rows(), u.cols);
    LedgerSlot ledger;
    backend_->GatedDeltaNet(ledger, loaded_.weights, sizes_.delta_shape(), sequences, u.view(),
                            y.view());
    return y;
  }
  // Feeds `u` in steps of `num_rows` rows; leaves the state in `state`.
  FloatRows RunInSteps(const FloatRows& u, int num_rows, DeltaNetState& state) {
    SequenceCursor cursor;
    FloatRows y = FloatRows::Of(u.cols, {});
    while (cursor.position() < u.rows()) {
      const int64_t first = cursor.position();
      const int count = static_cast<int>(std::min<int64_t>(num_rows, u.rows() - first));
      const FloatRows rows = FloatRows::Of(
          u.cols, {u.values.begin() + first * u.cols, u.values.begin() + (first + count) * u.cols});
      const FloatRows out = Run({state.Sequence(cursor.Next(0, count))}, rows);
      y.values.insert(y.values.end(), out.values.begin(), out.values.end());
    }
    return y;
  }

  const LayerSizes& sizes() const { return sizes_; }
  const DeltaNetTensors& tensors() const { return tensors_; }

 private:
  LayerSizes sizes_;
  std::unique_ptr<Backend> backend_ = CreateReferenceBackend();
  DeltaNetTensors tensors_;
  fixtures::Loaded<DeltaNetWeights> loaded_;
};

struct DeltaNetCase {
  int num_key_heads, num_value_heads;
  bool tiled_heads, silu_gate;
  int conv_kernel;
};

class ReferenceDeltaNetTest : public testing::TestWithParam<DeltaNetCase> {
 protected:
  static LayerSizes Sizes() {
    const DeltaNetCase& c = GetParam();
    LayerSizes sizes;
    sizes.num_key_heads = c.num_key_heads;
    sizes.num_value_heads = c.num_value_heads;
    sizes.tiled_heads = c.tiled_heads;
    sizes.silu_gate = c.silu_gate;
    sizes.conv_kernel = c.conv_kernel;
    return sizes;
  }
};

TEST_P(ReferenceDeltaNetTest, RecurrenceEqualsTheChunkedForm) {
  DeltaNetFixture fixture(Sizes());
  Random random(12);
  // With the small inputs the epsilon in the norm of queries and keys, 1e-6, is not small.
  for (double deviation : {1.0, 1e-3}) {
    const FloatRows u = RandomRows(random, 70, fixture.sizes().hidden_size, deviation);
    DeltaNetState state(fixture.sizes());
    const FloatRows y = fixture.RunInSteps(u, 33, state);
    const std::vector<Doubles> expected = ChunkedLayer(fixture.sizes(), fixture.tensors(), u);
    // The state is rounded to float 70 times, the inputs once: relative errors of 71 * 2^-24 at
    // most in a sum that cancels. Its RMS norm scales up what is small, here by the ratio of
    // |S| |q| to |o|: 16 covers it. Outputs are about 1.
    const double tolerance = 71 * 0x1p-24 * 16;
    for (int64_t t = 0; t < u.rows(); ++t) {
      for (int64_t e = 0; e < u.cols; ++e) {
        ASSERT_NEAR(y.Row(t)[static_cast<size_t>(e)],
                    expected[static_cast<size_t>(t)][static_cast<size_t>(e)], tolerance)
            << "token " << t;
      }
    }
  }
}

TEST_P(ReferenceDeltaNetTest, StepsOfAnySizeGiveTheSameBits) {
  DeltaNetFixture fixture(Sizes());
  Random random(13);
  const FloatRows u = RandomRows(random, 150, fixture.sizes().hidden_size);
  DeltaNetState state(fixture.sizes());
  const FloatRows y = fixture.RunInSteps(u, 1, state);
  for (int num_rows : {2, 7, 64, 150}) {
    DeltaNetState other(fixture.sizes());
    EXPECT_EQ(fixture.RunInSteps(u, num_rows, other).values, y.values) << num_rows;
    EXPECT_EQ(other.state, state.state) << num_rows;
    EXPECT_EQ(other.tail, state.tail) << num_rows;
  }
}

TEST_P(ReferenceDeltaNetTest, RejectedRowsLeaveNoTrace) {
  DeltaNetFixture fixture(Sizes());
  Random random(14);
  const FloatRows u = RandomRows(random, 60, fixture.sizes().hidden_size);
  DeltaNetState plain(fixture.sizes());
  const FloatRows expected = fixture.RunInSteps(u, 1, plain);
  for (int round = 0; round < 4; ++round) {
    DeltaNetState state(fixture.sizes());
    const FloatRows y = fixtures::RunWindows(fixtures::RandomWindows(random, 60), u, random,
                                             [&](const SequenceRows& rows, const FloatRows& input) {
                                               return fixture.Run({state.Sequence(rows)}, input);
                                             });
    EXPECT_EQ(y.values, expected.values);
    EXPECT_EQ(state.state, plain.state);
    EXPECT_EQ(state.tail, plain.tail);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, ReferenceDeltaNetTest,
    testing::Values(DeltaNetCase{2, 6, true, false, 4},  // tiled by 3: its own inverse nowhere
                    DeltaNetCase{2, 6, false, true, 4},  // grouped, SiLU gate
                    DeltaNetCase{3, 3, true, false, 3}, DeltaNetCase{1, 4, true, false, 2}));

TEST(ReferenceDeltaNetMixTest, SequencesTogetherEqualSequencesAlone) {
  DeltaNetFixture fixture{LayerSizes()};
  const LayerSizes& sizes = fixture.sizes();
  Random random(15);
  // Rows of three sequences in two steps; in the second all of one sequence is provisional.
  const std::vector<std::vector<int>> counts = {{1, 20, 3}, {2, 0, 5}};
  std::vector<DeltaNetState> together(3, DeltaNetState(sizes)), alone(3, DeltaNetState(sizes));
  std::vector<SequenceCursor> cursors(3), alone_cursors(3);
  for (const std::vector<int>& step : counts) {
    std::vector<DeltaNetSequence> sequences;
    int num_rows = 0;
    for (size_t s = 0; s < 3; ++s) {
      const int committed = s == 2 ? 0 : step[s];
      sequences.push_back(together[s].Sequence(cursors[s].Next(num_rows, step[s], committed)));
      num_rows += step[s];
    }
    const FloatRows u = RandomRows(random, num_rows, sizes.hidden_size);
    const FloatRows y = fixture.Run(sequences, u);
    for (size_t s = 0; s < 3; ++s) {
      const int64_t first = sequences[s].row_begin * u.cols;
      const int64_t last = first + sequences[s].num_rows * u.cols;
      const FloatRows own =
          FloatRows::Of(u.cols, {u.values.begin() + first, u.values.begin() + last});
      const FloatRows expected = fixture.Run(
          {alone[s].Sequence(alone_cursors[s].Next(0, step[s], sequences[s].num_committed))}, own);
      EXPECT_TRUE(
          std::equal(expected.values.begin(), expected.values.end(), y.values.begin() + first));
      EXPECT_EQ(together[s].state, alone[s].state);
      EXPECT_EQ(together[s].tail, alone[s].tail);
      EXPECT_EQ(together[s].pending, alone[s].pending);
      EXPECT_EQ(together[s].pending_gates, alone[s].pending_gates);
    }
    cursors[2].Accept(2);
    alone_cursors[2].Accept(2);
  }
}

}  // namespace
}  // namespace switchyard::kernels::reference
