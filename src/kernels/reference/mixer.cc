#include "kernels/reference/mixer.h"

#include <algorithm>

#include "kernels/reference/math.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/weight.h"

namespace switchyard::kernels::reference {

void HcMix(const MixerWeights& w, MatrixView<const float> h, MatrixView<float> u,
           MatrixView<float> inject, Workspace& workspace) {
  const Workspace::Frame frame(workspace);
  const int64_t num_streams = w.num_streams, hidden_size = h.cols / num_streams;
  const MatrixView<double> normed = workspace.TakeMatrix<double>(h.rows, h.cols);
  for (int64_t t = 0; t < h.rows; ++t) {
    for (int64_t s = 0; s < num_streams; ++s) {
      const int64_t at = s * hidden_size;
      RmsNorm(h.row(t) + at, Values(w.norm) + at, static_cast<double>(w.rms_epsilon), hidden_size,
              normed.row(t) + at);
    }
  }
  if (inject.data != nullptr) MatMul<float>(*w.inject, 0, normed, inject, workspace);

  MatrixView<double> gate;
  if (w.down != nullptr) {
    const MatrixView<double> low = workspace.TakeMatrix<double>(h.rows, w.down->rows());
    MatMul<double>(*w.down, 0, normed, low, workspace);
    std::transform(low.data, low.data + low.rows * low.cols, low.data,
                   [num_streams](double x) { return Silu(x / static_cast<double>(num_streams)); });
    gate = workspace.TakeMatrix<double>(h.rows, h.cols);
    MatMul<double>(*w.up, 0, low, gate, workspace);
  }
  for (int64_t t = 0; t < h.rows; ++t) {
    for (int64_t e = 0; e < hidden_size; ++e) {
      double sum = 0;
      for (int64_t i = e; i < h.cols; i += hidden_size) {
        sum += (gate.data == nullptr ? 1.0 : Sigmoid(gate.row(t)[i])) * normed.row(t)[i];
      }
      u.row(t)[e] = static_cast<float>(sum / static_cast<double>(num_streams));
    }
  }
}

void HcCombine(MatrixView<const float> inject, MatrixView<const float> y, MatrixView<float> h) {
  if (h.rows == 0) return;
  const int64_t num_streams = h.cols / y.cols;
  SWITCHYARD_DCHECK(inject.data == nullptr || inject.cols == num_streams);
  for (int64_t t = 0; t < h.rows; ++t) {
    for (int64_t s = 0; s < num_streams; ++s) {
      const double weight = inject.data == nullptr
                                ? 1.0
                                : 2 * Sigmoid(static_cast<double>(inject.row(t)[s]) /
                                              static_cast<double>(num_streams));
      float* stream = h.row(t) + s * y.cols;
      for (int64_t e = 0; e < y.cols; ++e) {
        stream[e] = static_cast<float>(static_cast<double>(stream[e]) +
                                       weight * static_cast<double>(y.row(t)[e]));
      }
    }
  }
}

int64_t HcMixWorkspaceBytes(const StepLimits& limits) {
  const int64_t wide = limits.num_streams * limits.hidden_size;
  return 2 * TakenBytes<double>(limits.max_rows * wide) +
         TakenBytes<double>(limits.max_rows * limits.hc_low_rank) +
         MatMulWorkspaceBytes(std::max(wide, limits.hc_low_rank));
}

}  // namespace switchyard::kernels::reference
