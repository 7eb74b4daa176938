#include "kernels/reference/ple.h"

#include <algorithm>
#include <cmath>

#include "kernels/reference/math.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/sequence_window.h"
#include "kernels/reference/weight.h"

namespace switchyard::kernels::reference {
namespace {

// sign(d) * sqrt(max(|d|, 1e-6)), with sign(0) = 0: the magnitude is 0 or at least 1e-3.
double SignedRoot(double d) {
  if (d == 0) return 0;
  return std::copysign(std::sqrt(std::max(std::abs(d), 1e-6)), d);
}

// Gated value of one token in all streams, and what it feeds to the convolution.
// Shapes: key, h, gated and conv_input [W], value [hidden_size]; key is overwritten.
void GateToken(const PleWeights& w, const PleShape& shape, int64_t hidden_size, const double* value,
               const float* h, double* key, double* query, double* gated, float* conv_input) {
  const double epsilon = static_cast<double>(shape.rms_epsilon);
  for (int64_t s = 0; s < shape.num_streams; ++s) {
    const int64_t at = s * hidden_size;
    RmsNorm(key + at, Values(w.norm_key) + at, epsilon, hidden_size, key + at);
    RmsNorm(h + at, Values(w.norm_query) + at, epsilon, hidden_size, query);
    const double match =
        Dot(key + at, query, hidden_size) / std::sqrt(static_cast<double>(hidden_size));
    const double gate = Sigmoid(SignedRoot(match));
    for (int64_t e = 0; e < hidden_size; ++e) gated[at + e] = gate * value[e];
    RmsNorm(gated + at, Values(w.norm_conv) + at, epsilon, hidden_size, query);
    Convert(query, hidden_size, conv_input + at);
  }
}

}  // namespace

void Ple(const PleWeights& w, const PleShape& shape, absl::Span<const ConvSequence> sequences,
         MatrixView<const float> e, MatrixView<float> h, Workspace& workspace) {
  const Workspace::Frame frame(workspace);
  const int64_t hidden_size = h.cols / shape.num_streams;
  const MatrixView<const double> rows = Widen(e, workspace);
  const MatrixView<double> key = workspace.TakeMatrix<double>(h.rows, h.cols);
  MatMul<double>(*w.key, 0, rows, key, workspace);
  const MatrixView<double> value = workspace.TakeMatrix<double>(h.rows, hidden_size);
  MatMul<double>(*w.value, 0, rows, value, workspace);

  const MatrixView<double> gated = workspace.TakeMatrix<double>(h.rows, h.cols);
  // Float, as pending rows and tails keep it: a row is the same in its own step and in later ones.
  const MatrixView<float> conv_input = workspace.TakeMatrix<float>(h.rows, h.cols);
  double* query = workspace.Take<double>(hidden_size);
  for (int64_t t = 0; t < h.rows; ++t) {
    GateToken(w, shape, hidden_size, value.row(t), h.row(t), key.row(t), query, gated.row(t),
              conv_input.row(t));
  }

  double* convolved = workspace.Take<double>(h.cols);
  const int tail_rows = (shape.conv_kernel - 1) * shape.dilation;
  for (const ConvSequence& sequence : sequences) {
    SequenceWindow window(sequence, tail_rows, sequence.tail, sequence.pending,
                          conv_input.Rows(sequence.row_begin, sequence.num_rows));
    for (int r = 0; r < sequence.num_rows; ++r) {
      const int64_t t = sequence.row_begin + r, newest = sequence.num_replay + r;
      window.Convolve(Values(w.conv), shape.conv_kernel, shape.dilation, newest, convolved);
      for (int64_t c = 0; c < h.cols; ++c) {
        h.row(t)[c] = static_cast<float>(static_cast<double>(h.row(t)[c]) + gated.row(t)[c] +
                                         Silu(convolved[c]));
      }
    }
    window.Commit();
  }
}

int64_t PleWorkspaceBytes(const StepLimits& limits) {
  if (limits.ple_row_size == 0) return 0;
  const int64_t wide = limits.num_streams * limits.hidden_size;
  return TakenBytes<double>(limits.max_rows * limits.ple_row_size) +
         2 * TakenBytes<double>(limits.max_rows * wide) +
         TakenBytes<double>(limits.max_rows * limits.hidden_size) +
         TakenBytes<float>(limits.max_rows * wide) + TakenBytes<double>(limits.hidden_size) +
         TakenBytes<double>(wide) + MatMulWorkspaceBytes(limits.ple_row_size);
}

}  // namespace switchyard::kernels::reference
