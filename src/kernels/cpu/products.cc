#include "kernels/cpu/products.h"

#include <algorithm>

#include "base/check.h"

namespace switchyard::kernels::cpu {

bool AnyTakesQuantized(std::initializer_list<const Weight*> weights) {
  return std::any_of(weights.begin(), weights.end(), [](const Weight* weight) {
    return weight != nullptr && CpuWeight::From(*weight).takes_quantized();
  });
}

ActivationRows TakeActivations(Scratch& scratch, int64_t rows, int64_t cols, bool quantized) {
  ActivationRows x;
  if (!quantized) return x;
  std::byte* memory = scratch.Take<std::byte>(QuantizedRows::Bytes(rows, cols));
  if (memory != nullptr) x.quantized = QuantizedRows::Place(memory, rows, cols);
  return x;
}

void FillActivations(const StageContext& context, MatrixView<const float> values,
                     ActivationRows& x) {
  x.values = values;
  if (x.quantized.quants == nullptr) return;
  ForEach(context, values.rows, values.cols, [&](int64_t row, int) {
    QuantizeActivationRow(context.level, values.row(row), x.quantized, row);
  });
}

ActivationRows Activate(const StageContext& context, MatrixView<const float> values,
                        bool quantized) {
  ActivationRows x = TakeActivations(context.scratch, values.rows, values.cols, quantized);
  FillActivations(context, values, x);
  return x;
}

void ProductGroup::Add(const Weight* weight, MatrixView<float> y) {
  if (weight == nullptr || y.rows == 0) return;
  SWITCHYARD_DCHECK(num_products_ < static_cast<int>(products_.size()));
  const CpuWeight& w = CpuWeight::From(*weight);
  SWITCHYARD_DCHECK(y.cols == w.rows());
  Product& product = products_[static_cast<size_t>(num_products_++)];
  product.w = w.matrix();
  product.y = y;
  product.rows_per_task = std::min(kMaxTaskRows, RowsPerTask(product.w, context_.num_threads()));
  product.task_begin = num_tasks_;
  num_tasks_ += (product.w.rows + product.rows_per_task - 1) / product.rows_per_task;
  product.task_end = num_tasks_;
  weight_bytes_ += w.slab_bytes();
}

void ProductGroup::RunTask(const Product& product, int64_t begin, int64_t end,
                           const ActivationRows& x, int thread) {
  const std::array<int64_t, 2> borders = {0, product.w.cols};
  MatMulRows(context_.level, {product.w, begin, end, nullptr, product.y.rows}, borders, x,
             {product.y.data + begin, product.y.row_stride, 0},
             context_.matmul[static_cast<size_t>(thread)]);
}

}  // namespace switchyard::kernels::cpu
