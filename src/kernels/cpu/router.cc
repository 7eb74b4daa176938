#include "kernels/cpu/router.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/cpu_weight.h"
#include "kernels/cpu/products.h"

namespace switchyard::kernels::cpu {
namespace {

struct RouterBuffers {
  MatrixView<float> logits;  // [T, num_experts]
  ActivationRows u;

  RouterBuffers(Scratch& scratch, int64_t rows, int64_t num_experts, int64_t hidden_size,
                bool quantized)
      : logits(scratch.TakeMatrix<float>(rows, num_experts)),
        u(TakeActivations(scratch, rows, hidden_size, quantized)) {}
};

// Writes the ids of the `k` largest logits, best first; of equal ones the lower id. The softmax
// keeps the order, and logits do not lose differences by rounding.
void TopExperts(const float* logits, int64_t num_experts, int64_t k, int32_t* top) {
  int64_t size = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    if (size == k && !(logits[e] > logits[top[k - 1]])) continue;
    int64_t at = size < k ? size++ : k - 1;
    for (; at > 0 && logits[e] > logits[top[at - 1]]; --at) top[at] = top[at - 1];
    top[at] = static_cast<int32_t>(e);
  }
}

}  // namespace

void MeasureRouter(Scratch& scratch, const StepLimits& limits) {
  Scratch::Frame frame(scratch);
  RouterBuffers(scratch, limits.max_rows, limits.num_experts, limits.hidden_size, true);
}

int64_t Router(const StageContext& context, const Weight& router, MatrixView<const float> u,
               MatrixView<int32_t> experts, MatrixView<float> weights) {
  constexpr float kMinSum = 0x1p-14f;
  Scratch::Frame frame(context.scratch);
  RouterBuffers buffers(context.scratch, u.rows, router.rows(), u.cols,
                        AnyTakesQuantized({&router}));
  FillActivations(context, u, buffers.u);
  ProductGroup products(context);
  products.Add(&router, buffers.logits);
  products.Run(buffers.u);

  const int64_t top_k = experts.cols;
  SWITCHYARD_DCHECK(top_k <= router.rows());
  ForEach(context, u.rows, 4 * router.rows(), [&](int64_t row, int) {
    float* logits = buffers.logits.row(row);
    int32_t* chosen = experts.row(row);
    TopExperts(logits, router.rows(), top_k, chosen);
    std::sort(chosen, chosen + top_k);
    const float total = context.kernels.softmax_exp(logits, router.rows());
    float sum = 0;
    for (int64_t i = 0; i < top_k; ++i) {
      weights.row(row)[i] = logits[chosen[i]] / total;
      sum += weights.row(row)[i];
    }
    for (int64_t i = 0; i < top_k; ++i) weights.row(row)[i] /= std::max(sum, kMinSum);
  });
  return products.weight_bytes();
}

}  // namespace switchyard::kernels::cpu
