// The products of a stage: several matrices times the same rows, as one fork-join.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "base/tensor_view.h"
#include "kernels/cpu/cpu_weight.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/stage_context.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::cpu {

// Whether any of these weights (null = absent) reads its activations as groups of 32 bytes.
bool AnyTakesQuantized(std::initializer_list<const Weight*> weights);

// Takes room for the quantised form of `rows` rows, if `quantized`. The floats stay where they are.
ActivationRows TakeActivations(Scratch& scratch, int64_t rows, int64_t cols, bool quantized);

// Sets the floats of `x` and quantises them row by row, if `x` has room for it.
void FillActivations(const StageContext& context, MatrixView<const float> values,
                     ActivationRows& x);

// Takes room and fills it.
ActivationRows Activate(const StageContext& context, MatrixView<const float> values,
                        bool quantized);

// Most weight rows of one task.
inline constexpr int64_t kMaxTaskRows = 256;

// y = x w^T for several weights w, cut into tasks of some rows each.
class ProductGroup {
 public:
  explicit ProductGroup(const StageContext& context) : context_(context) {}

  // Adds a product; a null weight or an empty matrix is left out. Weights must outlive the group.
  void Add(const Weight* weight, MatrixView<float> y);

  // Computes all products, about in the order in which they were added. After each task calls
  // epilogue(product, row_begin, row_end, thread) on the thread that ran it; product counts the
  // products that were added, rows are those of the weight, kMaxTaskRows at most. Last, each thread
  // that finds nothing else to do may call at_end(thread), num_ends times in all.
  template <typename Epilogue, typename AtEnd>
  void Run(const ActivationRows& x, Epilogue epilogue, int64_t num_ends, AtEnd at_end) {
    context_.pool.ParallelFor(num_tasks_ + num_ends, [&](int64_t task, int thread) {
      if (task >= num_tasks_) return at_end(thread);
      int index = 0;
      while (task >= products_[static_cast<size_t>(index)].task_end) ++index;
      const Product& product = products_[static_cast<size_t>(index)];
      const int64_t begin = (task - product.task_begin) * product.rows_per_task;
      const int64_t end = std::min(begin + product.rows_per_task, product.w.rows);
      RunTask(product, begin, end, x, thread);
      epilogue(index, begin, end, thread);
    });
  }
  template <typename Epilogue>
  void Run(const ActivationRows& x, Epilogue epilogue) {
    Run(x, epilogue, 0, [](int) {});
  }
  void Run(const ActivationRows& x) {
    Run(x, [](int, int64_t, int64_t, int) {});
  }

  int64_t weight_bytes() const { return weight_bytes_; }

 private:
  struct Product {
    WeightMatrix w;
    MatrixView<float> y;
    int64_t rows_per_task = 0;
    int64_t task_begin = 0;
    int64_t task_end = 0;
  };

  void RunTask(const Product& product, int64_t begin, int64_t end, const ActivationRows& x,
               int thread);

  const StageContext& context_;
  std::array<Product, 6> products_;
  int num_products_ = 0;
  int64_t num_tasks_ = 0;
  int64_t weight_bytes_ = 0;
};

}  // namespace switchyard::kernels::cpu
