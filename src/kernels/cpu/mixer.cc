#include "kernels/cpu/mixer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/cpu_weight.h"
#include "kernels/cpu/products.h"

namespace switchyard::kernels::cpu {
namespace {

// Elements of a stream that one task takes: whole panels. Few calls of long ranges cost less than
// many, and leave less to share at the end: with 128 elements a task of decode reads about 180 KiB.
constexpr int64_t kMinGateElements = 32;
constexpr int64_t kMaxGateElements = 128;
constexpr int64_t kTasksPerThread = 8;
// Gates that a task holds at a time, of each stream.
constexpr int64_t kHeldGates = 2048;

struct MixBuffers {
  MatrixView<float> normalized;  // [T, S * hidden_size]
  MatrixView<float> low;         // [T, low rank]
  MatrixView<float> gates;       // per thread [rows, S, elements]
  ActivationRows x, low_x;

  MixBuffers(Scratch& scratch, int num_threads, int64_t rows, int64_t wide, int64_t low_rank,
             int64_t num_streams, bool quantized, bool low_quantized)
      : normalized(scratch.TakeMatrix<float>(rows, wide)),
        low(scratch.TakeMatrix<float>(rows, low_rank)),
        gates(scratch.TakePerThread<float>(num_threads, num_streams * kHeldGates)),
        x(TakeActivations(scratch, rows, wide, quantized)),
        low_x(TakeActivations(scratch, rows, low_rank, low_quantized)) {}
};

// u = mean over streams of sigmoid(up low) * normalized, for the elements [begin, end).
void MixElements(const StageContext& context, const WeightMatrix& up, int num_streams,
                 const MixBuffers& buffers, int64_t begin, int64_t end, MatrixView<float> u,
                 int thread) {
  const int64_t hidden_size = u.cols;
  const std::array<int64_t, 2> borders = {0, up.cols};
  float* gates = buffers.gates.row(thread);
  const int64_t size = end - begin, gate_row = num_streams * size;
  const int64_t rows_at_once = kHeldGates / size;
  for (int64_t row = 0; row < u.rows; row += rows_at_once) {
    const int64_t count = std::min(rows_at_once, u.rows - row);
    ActivationRows low = buffers.low_x;
    low.values = low.values.Rows(row, count);
    if (low.quantized.quants != nullptr) low.quantized = low.quantized.Rows(row, count);
    for (int s = 0; s < num_streams; ++s) {
      MatMulRows(context.level,
                 {up, s * hidden_size + begin, s * hidden_size + end, nullptr, count}, borders, low,
                 {gates + s * size, gate_row, 0}, context.matmul[static_cast<size_t>(thread)]);
    }
    for (int64_t t = 0; t < count; ++t) {
      context.kernels.gated_mean(gates + t * gate_row, size,
                                 buffers.normalized.row(row + t) + begin, hidden_size, num_streams,
                                 size, u.row(row + t) + begin);
    }
  }
}

}  // namespace

void MeasureHcMix(Scratch& scratch, int num_threads, const StepLimits& limits) {
  Scratch::Frame frame(scratch);
  MixBuffers(scratch, num_threads, limits.max_rows, limits.num_streams * limits.hidden_size,
             limits.hc_low_rank, limits.num_streams, true, true);
}

int64_t HcMix(const StageContext& context, const MixerWeights& w, MatrixView<const float> h,
              MatrixView<float> u, MatrixView<float> inject) {
  const CpuWeight& norm = CpuWeight::From(*w.norm);
  const int64_t rows = h.rows, hidden_size = u.cols;
  const auto normalize = [&](int64_t row, float* out) {
    for (int s = 0; s < w.num_streams; ++s) {
      const int64_t begin = s * hidden_size;
      context.kernels.rms_norm(h.row(row) + begin, norm.values() + begin, hidden_size,
                               w.rms_epsilon, out + begin);
    }
  };
  if (w.down == nullptr) {
    SWITCHYARD_DCHECK(w.num_streams == 1);
    ForEach(context, rows, hidden_size, [&](int64_t row, int) { normalize(row, u.row(row)); });
    return norm.resident_bytes();
  }

  Scratch::Frame frame(context.scratch);
  const CpuWeight& up = CpuWeight::From(*w.up);
  MixBuffers buffers(context.scratch, context.num_threads(), rows, h.cols, w.down->rows(),
                     w.num_streams, AnyTakesQuantized({w.down, w.inject}), up.takes_quantized());
  ForEach(context, rows, 2 * h.cols, [&](int64_t row, int) {
    normalize(row, buffers.normalized.row(row));
    if (buffers.x.quantized.quants != nullptr) {
      QuantizeActivationRow(context.level, buffers.normalized.row(row), buffers.x.quantized, row);
    }
  });
  buffers.x.values = buffers.normalized;

  ProductGroup products(context);
  products.Add(w.down, buffers.low);
  if (inject.data != nullptr) products.Add(w.inject, inject);
  products.Run(buffers.x);

  const float num_streams = static_cast<float>(w.num_streams);
  ForEach(context, rows, 4 * buffers.low.cols, [&](int64_t row, int) {
    context.kernels.silu(buffers.low.row(row), buffers.low.cols, num_streams);
    if (buffers.low_x.quantized.quants != nullptr) {
      QuantizeActivationRow(context.level, buffers.low.row(row), buffers.low_x.quantized, row);
    }
  });
  buffers.low_x.values = buffers.low;

  const int64_t elements = std::clamp(
      hidden_size / (context.num_threads() * kTasksPerThread) / kMinGateElements * kMinGateElements,
      kMinGateElements, kMaxGateElements);
  context.pool.ParallelFor((hidden_size + elements - 1) / elements, [&](int64_t task, int thread) {
    const int64_t begin = task * elements;
    MixElements(context, up.matrix(), w.num_streams, buffers, begin,
                std::min(begin + elements, hidden_size), u, thread);
  });
  return norm.resident_bytes() + products.weight_bytes() + up.resident_bytes();
}

void HcCombine(const StageContext& context, MatrixView<const float> inject,
               MatrixView<const float> y, MatrixView<float> h) {
  const int64_t hidden_size = y.cols;
  ForEach(context, h.rows, h.cols, [&](int64_t row, int) {
    if (inject.data == nullptr) {
      context.kernels.add_scaled(1.0f, y.row(row), hidden_size, h.row(row));
      return;
    }
    const float num_streams = static_cast<float>(inject.cols);
    for (int64_t s = 0; s < inject.cols; ++s) {
      const float weight = 2.0f / (1.0f + std::exp(-inject.row(row)[s] / num_streams));
      context.kernels.add_scaled(weight, y.row(row), hidden_size, h.row(row) + s * hidden_size);
    }
  });
}

}  // namespace switchyard::kernels::cpu
