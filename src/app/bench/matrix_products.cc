#include "app/bench/matrix_products.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include "app/synth/random_blocks.h"
#include "app/synth/random_source.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cpu_weight.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/quantize.h"

namespace switchyard::app {
namespace {

using kernels::cpu::ActivationRows;
using kernels::cpu::CpuLevel;
using kernels::cpu::QuantizedRows;
using kernels::cpu::WeightMatrix;

// Matrices above this are no weights of a model.
constexpr int64_t kMaxRowsOrCols = 1 << 20;

std::vector<std::byte> RandomMatrix(DType dtype, const MatrixShape& shape) {
  RandomSource random(/*seed=*/1, Traits(dtype).name);
  std::vector<std::byte> stored(static_cast<size_t>(shape.rows * RowBytes(dtype, shape.cols)));
  if (kernels::IsBlockFormat(dtype)) {
    FillBlocks(dtype, 0.01f, random, absl::MakeSpan(stored));
    return stored;
  }
  std::vector<float> row(static_cast<size_t>(shape.cols));
  for (int64_t r = 0; r < shape.rows; ++r) {
    for (float& value : row) value = 0.1f * random.Normal();
    kernels::QuantizeRow(dtype, row.data(), shape.cols,
                         stored.data() + r * RowBytes(dtype, shape.cols));
  }
  return stored;
}

}  // namespace

absl::StatusOr<MatrixShape> ParseMatrixShape(const std::string& text) {
  MatrixShape shape;
  const char* const end = text.data() + text.size();
  const auto rows = std::from_chars(text.data(), end, shape.rows);
  if (rows.ec == std::errc() && rows.ptr != end && *rows.ptr == 'x') {
    const auto cols = std::from_chars(rows.ptr + 1, end, shape.cols);
    const auto fits = [](int64_t size) { return size >= 1 && size <= kMaxRowsOrCols; };
    if (cols.ec == std::errc() && cols.ptr == end && fits(shape.rows) && fits(shape.cols)) {
      return shape;
    }
  }
  return InvalidArgument("wants a shape such as 640x2560, got: {}", text);
}

std::vector<DType> KernelFormats() {
  return {DType::kQ8_0,  DType::kQ6_K,    DType::kQ5_K, DType::kQ4_K,   DType::kQ5_1,
          DType::kQ5_0,  DType::kQ4_1,    DType::kQ4_0, DType::kIQ4_XS, DType::kIQ4_NL,
          DType::kIQ3_S, DType::kIQ3_XXS, DType::kF32,  DType::kF16,    DType::kBF16};
}

bool FitsFormat(const MatrixShape& shape, DType dtype) {
  return shape.cols % Traits(dtype).block_length == 0;
}

absl::StatusOr<MatrixSet> MatrixSet::Create(DType dtype, const MatrixShape& shape, int64_t count,
                                            int num_threads) {
  MatrixSet set;
  set.dtype_ = dtype;
  set.shape_ = shape;
  set.count_ = count;
  set.stored_ = RandomMatrix(dtype, shape);
  SWITCHYARD_ASSIGN_OR_RETURN(set.backend_, kernels::cpu::CreateCpuBackend(
                                                {.num_threads = num_threads, .huge_pages = true}));
  const int64_t row_bytes = RowBytes(dtype, shape.cols);
  kernels::WeightSource source;
  source.name = "matrices";
  source.view.dtype = dtype;
  source.view.num_slabs = count;
  source.view.rows = shape.rows;
  source.view.cols = shape.cols;
  source.read = [&](int64_t first, int64_t num_rows, std::byte* out) {
    for (int64_t row = first; row < first + num_rows; ++row, out += row_bytes) {
      std::memcpy(out, set.stored_.data() + row % shape.rows * row_bytes,
                  static_cast<size_t>(row_bytes));
    }
    return absl::OkStatus();
  };
  const kernels::WeightRequest request = {source.view, kernels::WeightUse::kMatrix};
  SWITCHYARD_RETURN_IF_ERROR(set.backend_->ReserveWeights({&request, 1}));
  SWITCHYARD_ASSIGN_OR_RETURN(set.weight_,
                              set.backend_->LoadWeight(source, kernels::WeightUse::kMatrix));
  set.memory_bytes_ = set.weight_->resident_bytes() / count;
  return set;
}

int64_t MatrixSet::file_bytes() const { return static_cast<int64_t>(stored_.size()); }

WeightMatrix MatrixSet::matrix(int64_t i) const {
  return kernels::cpu::CpuWeight::From(*weight_).matrix(i);
}

void MatrixSet::DecodeRow(int64_t row, absl::Span<float> out) const {
  kernels::DequantizeRow(dtype_, stored_.data() + row * RowBytes(dtype_, shape_.cols), shape_.cols,
                         out.data());
}

absl::StatusOr<ActivationSet> ActivationSet::Create(int64_t rows, int64_t cols) {
  const int64_t value_bytes = ArenaBytes(rows * cols * static_cast<int64_t>(sizeof(float)) + 64);
  const int64_t quantized_bytes = ArenaBytes(QuantizedRows::Bytes(rows, cols));
  SWITCHYARD_ASSIGN_OR_RETURN(Arena arena, Arena::Create(value_bytes + quantized_bytes, {}));
  ActivationSet set(std::move(arena));
  auto* values = reinterpret_cast<float*>(set.arena_.Allocate(value_bytes));
  RandomSource random(/*seed=*/1, "activations");
  for (int64_t i = 0; i < rows * cols; ++i) values[i] = random.Normal();
  set.rows_.values = {values, rows, cols, cols};
  set.rows_.quantized = QuantizedRows::Place(set.arena_.Allocate(quantized_bytes), rows, cols);
  for (int64_t row = 0; row < rows; ++row) {
    kernels::cpu::QuantizeActivationRow(CpuLevel::kScalar, values + row * cols, set.rows_.quantized,
                                        row);
  }
  return set;
}

float ActivationSet::Value(DType weights, int64_t row, int64_t col) const {
  if (!kernels::IsBlockFormat(weights)) return rows_.values.row(row)[col];
  const QuantizedRows& quantized = rows_.quantized;
  const int64_t at = row * quantized.padded_cols + col;
  return quantized.scales[at / kernels::cpu::kGroupLength] *
         static_cast<float>(quantized.quants[at]);
}

ProductRun::ProductRun(const MatrixSet& matrices, const ActivationSet& activations,
                       int64_t max_rows)
    : matrices_(matrices),
      activations_(activations),
      max_rows_(max_rows),
      products_(static_cast<size_t>(matrices.count() * max_rows * matrices.shape().rows)) {}

absl::Status ProductRun::Check(CpuLevel level, int64_t num_rows, int64_t row_step) {
  const MatrixShape& shape = matrices_.shape();
  TimedPool pool(1);
  const WeightMatrix w = matrices_.matrix(0);
  checked_.assign(static_cast<size_t>(max_rows_ * shape.rows), NAN);
  std::vector<kernels::cpu::MatMulScratch> scratch;
  scratch.emplace_back(shape.cols);
  kernels::cpu::MatMul(pool.pool(), level, w, activations_.rows(),
                       {checked_.data(), num_rows, shape.rows, shape.rows},
                       absl::MakeSpan(scratch));
  std::vector<float> row(static_cast<size_t>(shape.cols));
  for (int64_t r = 0; r < shape.rows; r += row_step) {
    matrices_.DecodeRow(r, absl::MakeSpan(row));
    for (int64_t b = 0; b < num_rows; ++b) {
      double sum = 0, magnitude = 0;
      for (int64_t c = 0; c < shape.cols; ++c) {
        const double term =
            double{row[static_cast<size_t>(c)]} * activations_.Value(matrices_.dtype(), b, c);
        sum += term;
        magnitude += std::abs(term);
      }
      // Kernels add at least 16 columns exactly and then round: the product with the factors, the
      // minimum and the sum, each by 2^-24 of at most all terms together. Floats are added one by
      // one in 16 lanes, whose sums take four roundings more.
      const double num_roundings = 4.0 * static_cast<double>(shape.cols) / 16 + 8;
      const double bound = num_roundings * 0x1p-24 * magnitude;
      const double got = checked_[static_cast<size_t>(b * shape.rows + r)];
      if (!(std::abs(got - sum) <= bound)) {
        return Internal("the product is wrong: {}, level {}, row {}, wanted: {}, got: {}",
                        Traits(matrices_.dtype()).name, CpuLevelName(level), r, sum, got);
      }
    }
  }
  return absl::OkStatus();
}

StageTime ProductRun::Run(TimedPool& pool, CpuLevel level, int64_t num_rows,
                          bool only_first_matrix) {
  const MatrixShape& shape = matrices_.shape();
  while (static_cast<int>(scratch_.size()) < pool.num_threads()) scratch_.emplace_back(shape.cols);
  std::fill(products_.begin(), products_.end(), NAN);
  const int64_t rows_per_task = RowsPerTask(matrices_.matrix(0), pool.num_threads());
  const int64_t tasks_per_matrix = (shape.rows + rows_per_task - 1) / rows_per_task;
  const std::array<int64_t, 2> borders = {0, shape.cols};
  return pool.Run(matrices_.count() * tasks_per_matrix, [&](int64_t task, int thread) {
    const int64_t matrix = task / tasks_per_matrix;
    const int64_t begin = task % tasks_per_matrix * rows_per_task;
    const int64_t end = std::min(begin + rows_per_task, shape.rows);
    float* const out = products_.data() + matrix * max_rows_ * shape.rows + begin;
    kernels::cpu::MatMulRows(
        level, {matrices_.matrix(only_first_matrix ? 0 : matrix), begin, end, nullptr, num_rows},
        borders, activations_.rows(), {out, shape.rows, 0}, scratch_[static_cast<size_t>(thread)]);
  });
}

absl::Status ProductRun::CheckLastRun(int64_t num_rows) const {
  const auto bytes = static_cast<size_t>(num_rows * matrices_.shape().rows) * sizeof(float);
  for (int64_t i = 0; i < matrices_.count(); ++i) {
    const float* products = products_.data() + i * max_rows_ * matrices_.shape().rows;
    if (std::memcmp(products, checked_.data(), bytes) != 0) {
      return Internal("the timed products are wrong: {}, matrix {}", Traits(matrices_.dtype()).name,
                      i);
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard::app
