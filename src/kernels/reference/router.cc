#include "kernels/reference/router.h"

#include <algorithm>
#include <cmath>

#include "kernels/reference/math.h"
#include "kernels/reference/matmul.h"

namespace switchyard::kernels::reference {
namespace {

// Sum of the chosen probabilities that weights are divided by, at least.
constexpr double kMinProbabilitySum = 0x1p-14;

// Turns logits into exp(logit - largest); returns their sum.
double Exponentiate(int64_t size, double* logits) {
  const double largest = *std::max_element(logits, logits + size);
  double sum = 0;
  for (int64_t i = 0; i < size; ++i) {
    logits[i] = std::exp(logits[i] - largest);
    sum += logits[i];
  }
  return sum;
}

// The `top_k` largest of `probabilities`, the lower index on a tie, then ascending. Always distinct
// and in range, even if the probabilities are not numbers.
void ChooseLargest(const double* probabilities, int32_t size, int64_t top_k, int32_t* chosen) {
  for (int64_t i = 0; i < top_k; ++i) {
    int32_t best = -1;
    for (int32_t e = 0; e < size; ++e) {
      if (best >= 0 && !(probabilities[e] > probabilities[best])) continue;
      if (std::find(chosen, chosen + i, e) == chosen + i) best = e;
    }
    chosen[i] = best;
  }
  std::sort(chosen, chosen + top_k);
}

}  // namespace

void Router(const Weight& router, MatrixView<const float> u, MatrixView<int32_t> experts,
            MatrixView<float> weights, Workspace& workspace) {
  SWITCHYARD_DCHECK(experts.cols <= router.rows() && weights.cols == experts.cols);
  const Workspace::Frame frame(workspace);
  const MatrixView<double> probabilities = workspace.TakeMatrix<double>(u.rows, router.rows());
  MatMul<double>(router, 0, Widen(u, workspace), probabilities, workspace);
  for (int64_t t = 0; t < u.rows; ++t) {
    double* row = probabilities.row(t);
    const double total = Exponentiate(router.rows(), row);
    for (int64_t e = 0; e < router.rows(); ++e) row[e] /= total;
    int32_t* chosen = experts.row(t);
    ChooseLargest(row, static_cast<int32_t>(router.rows()), experts.cols, chosen);
    double sum = 0;
    for (int64_t i = 0; i < experts.cols; ++i) sum += row[chosen[i]];
    for (int64_t i = 0; i < experts.cols; ++i) {
      weights.row(t)[i] = static_cast<float>(row[chosen[i]] / std::max(sum, kMinProbabilitySum));
    }
  }
}

int64_t RouterWorkspaceBytes(const StepLimits& limits) {
  return TakenBytes<double>(limits.max_rows * limits.num_experts) +
         TakenBytes<double>(limits.max_rows * limits.hidden_size) +
         MatMulWorkspaceBytes(limits.hidden_size);
}

}  // namespace switchyard::kernels::reference
