#include "kernels/reference/gated_delta_net.h"

#include <algorithm>
#include <cmath>

#include "kernels/reference/math.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/sequence_window.h"
#include "kernels/reference/weight.h"

namespace switchyard::kernels::reference {
namespace {

// Added to the sum of squares of queries and keys before the root.
constexpr double kL2Epsilon = 1e-6;

void L2Normalize(double scale, int64_t size, double* x) {
  const double factor = scale / std::sqrt(Dot(x, x, size) + kL2Epsilon);
  for (int64_t i = 0; i < size; ++i) x[i] *= factor;
}

int64_t NumChannels(const DeltaNetShape& shape) {
  return int64_t{2 * shape.num_key_heads + shape.num_value_heads} * shape.head_dim;
}

// Queries, keys and values of one token: convolution, SiLU, norms. Shape: out [channels].
void ConvolveToken(const DeltaNetShape& shape, const float* taps, const SequenceWindow& window,
                   int64_t newest, double* out) {
  const int64_t num_channels = NumChannels(shape);
  window.Convolve(taps, shape.conv_kernel, 1, newest, out);
  std::transform(out, out + num_channels, out, Silu);
  const double query_scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  for (int64_t head = 0; head < 2 * shape.num_key_heads; ++head) {
    L2Normalize(head < shape.num_key_heads ? query_scale : 1, shape.head_dim,
                out + head * shape.head_dim);
  }
}

// Advances one head's state by one token and reads it with the query.
// Shapes: state [D value, D key]; query, key, value and out [D]; decayed [D] is scratch.
void DeltaStep(int64_t size, double beta, double log_decay, const double* query, const double* key,
               const double* value, float* state, double* decayed, double* out) {
  const double decay = std::exp(log_decay);
  for (int64_t j = 0; j < size; ++j) {
    float* row = state + j * size;
    for (int64_t i = 0; i < size; ++i) decayed[i] = decay * static_cast<double>(row[i]);
    const double error = beta * (value[j] - Dot(decayed, key, size));
    for (int64_t i = 0; i < size; ++i) decayed[i] += error * key[i];
    out[j] = Dot(decayed, query, size);
    Convert(decayed, size, row);
  }
}

struct Scratch {
  double* channels;          // [channels]: queries, keys, values
  double* decayed;           // [D]
  double* replayed_out;      // [Hv * D]: was delivered by the step that the row came in
  float* provisional_state;  // [Hv, D, D]
};

// Advances all heads by one token. Shapes: gates [2 * Hv], out [Hv * D].
void AdvanceToken(const DeltaNetShape& shape, const float* taps, const SequenceWindow& window,
                  int64_t newest, const float* gates, const Scratch& scratch, float* state,
                  double* out) {
  ConvolveToken(shape, taps, window, newest, scratch.channels);
  const int64_t size = shape.head_dim;
  const double* keys = scratch.channels + shape.num_key_heads * size;
  const double* values = keys + shape.num_key_heads * size;
  for (int64_t v = 0; v < shape.num_value_heads; ++v) {
    const int64_t key_head = shape.tiled_heads ? v % shape.num_key_heads
                                               : v / (shape.num_value_heads / shape.num_key_heads);
    DeltaStep(size, static_cast<double>(gates[v]),
              static_cast<double>(gates[shape.num_value_heads + v]),
              scratch.channels + key_head * size, keys + key_head * size, values + v * size,
              state + v * size * size, scratch.decayed, out + v * size);
  }
}

// Runs one sequence over its pending rows and the step's, and leaves its state as
// DeltaNetSequence says. Shapes: step, gates and out hold the sequence's rows only.
void AdvanceSequence(const DeltaNetShape& shape, const float* taps,
                     const DeltaNetSequence& sequence, MatrixView<const float> step,
                     MatrixView<const float> gates, MatrixView<double> out,
                     const Scratch& scratch) {
  SequenceWindow window(sequence, shape.conv_kernel - 1, sequence.tail, sequence.pending, step);
  for (int r = 0; r < sequence.num_replay; ++r) {
    AdvanceToken(shape, taps, window, r, sequence.pending_gates + r * gates.cols, scratch,
                 sequence.state, scratch.replayed_out);
  }
  float* state = sequence.state;
  for (int r = 0; r < sequence.num_rows; ++r) {
    if (r == sequence.num_committed) {
      state = scratch.provisional_state;
      std::copy_n(sequence.state, int64_t{shape.num_value_heads} * shape.head_dim * shape.head_dim,
                  state);
    }
    AdvanceToken(shape, taps, window, sequence.num_replay + r, gates.row(r), scratch, state,
                 out.row(r));
  }
  window.Commit();
  for (int r = sequence.num_committed; r < sequence.num_rows; ++r) {
    std::copy_n(gates.row(r), gates.cols,
                sequence.pending_gates + (r - sequence.num_committed) * gates.cols);
  }
}

// Write strength and log decay of every token. Shapes: beta and alpha [T, Hv], gates [T, 2 * Hv].
void FormGates(const DeltaNetWeights& w, MatrixView<const double> beta,
               MatrixView<const double> alpha, MatrixView<float> gates) {
  const float* a = Values(w.a);
  const float* dt_bias = Values(w.dt_bias);
  for (int64_t t = 0; t < gates.rows; ++t) {
    for (int64_t v = 0; v < beta.cols; ++v) {
      const double step = Softplus(alpha.row(t)[v] + static_cast<double>(dt_bias[v]));
      gates.row(t)[v] = static_cast<float>(Sigmoid(beta.row(t)[v]));
      gates.row(t)[beta.cols + v] = static_cast<float>(static_cast<double>(a[v]) * step);
    }
  }
}

// out = rms(out) * norm * gate(z), head by head. Shapes: z and out [T, Hv * D].
void NormAndGate(const DeltaNetWeights& w, const DeltaNetShape& shape, MatrixView<const double> z,
                 MatrixView<double> out) {
  for (int64_t t = 0; t < out.rows; ++t) {
    for (int64_t at = 0; at < out.cols; at += shape.head_dim) {
      RmsNorm(out.row(t) + at, Values(w.norm), static_cast<double>(shape.rms_epsilon),
              shape.head_dim, out.row(t) + at);
    }
    for (int64_t i = 0; i < out.cols; ++i) {
      out.row(t)[i] *= shape.silu_gate ? Silu(z.row(t)[i]) : Sigmoid(z.row(t)[i]);
    }
  }
}

}  // namespace

void GatedDeltaNet(const DeltaNetWeights& w, const DeltaNetShape& shape,
                   absl::Span<const DeltaNetSequence> sequences, MatrixView<const float> u,
                   MatrixView<float> y, Workspace& workspace) {
  const Workspace::Frame frame(workspace);
  const int64_t num_heads = shape.num_value_heads, value_size = num_heads * shape.head_dim;
  const MatrixView<const double> x = Widen(u, workspace);
  // Inputs of the convolution and gates are float, as pending rows and tails keep them: a row is
  // the same in its own step and when it is replayed.
  const MatrixView<float> qkv = workspace.TakeMatrix<float>(u.rows, NumChannels(shape));
  MatMul<float>(*w.qkv, 0, x, qkv, workspace);
  const MatrixView<double> z = workspace.TakeMatrix<double>(u.rows, value_size);
  MatMul<double>(*w.gate, 0, x, z, workspace);
  const MatrixView<double> beta = workspace.TakeMatrix<double>(u.rows, num_heads);
  MatMul<double>(*w.beta, 0, x, beta, workspace);
  const MatrixView<double> alpha = workspace.TakeMatrix<double>(u.rows, num_heads);
  MatMul<double>(*w.alpha, 0, x, alpha, workspace);
  const MatrixView<float> gates = workspace.TakeMatrix<float>(u.rows, 2 * num_heads);
  FormGates(w, beta, alpha, gates);

  const MatrixView<double> out = workspace.TakeMatrix<double>(u.rows, value_size);
  const Scratch scratch = {workspace.Take<double>(qkv.cols), workspace.Take<double>(shape.head_dim),
                           workspace.Take<double>(value_size),
                           workspace.Take<float>(value_size * shape.head_dim)};
  for (const DeltaNetSequence& sequence : sequences) {
    AdvanceSequence(shape, Values(w.conv), sequence,
                    qkv.Rows(sequence.row_begin, sequence.num_rows),
                    gates.Rows(sequence.row_begin, sequence.num_rows),
                    out.Rows(sequence.row_begin, sequence.num_rows), scratch);
  }
  NormAndGate(w, shape, z, out);
  MatMulSharded(*w.output, w.output_shards, out, y, workspace);
}

int64_t GatedDeltaNetWorkspaceBytes(const StepLimits& limits) {
  const int64_t rows = limits.max_rows, size = limits.delta_head_dim;
  const int64_t values = limits.num_value_heads * size;
  const int64_t channels = 2 * limits.num_key_heads * size + values;
  return TakenBytes<double>(rows * limits.hidden_size) + TakenBytes<float>(rows * channels) +
         2 * TakenBytes<double>(rows * values) +
         2 * TakenBytes<double>(rows * limits.num_value_heads) +
         TakenBytes<float>(rows * 2 * limits.num_value_heads) + TakenBytes<double>(channels) +
         TakenBytes<double>(size) + TakenBytes<double>(values) + TakenBytes<float>(values * size) +
         MatMulWorkspaceBytes(std::max(limits.hidden_size, values), limits.hidden_size, rows);
}

}  // namespace switchyard::kernels::reference
