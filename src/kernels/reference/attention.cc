#include "kernels/reference/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/kv_layout.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/quantize.h"
#include "kernels/reference/math.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/qsa.h"
#include "kernels/reference/weight.h"
#include "kernels/rope.h"

namespace switchyard::kernels::reference {
namespace {

struct Rotation {
  float* cosines;  // [num_rotary_dims / 2]
  float* sines;
};

// x = rope(rms(x)) for each head of a row. Shapes: x [num_heads * size], out the same.
void NormAndRotate(const AttentionShape& shape, const float* norm, const Rotation& rotation,
                   int64_t num_heads, int64_t size, double* x) {
  for (int64_t head = 0; head < num_heads; ++head) {
    double* row = x + head * size;
    if (norm != nullptr) {
      RmsNorm(row, norm, static_cast<double>(shape.rms_epsilon), size, row);
    }
    RopeRotate(shape.num_rotary_dims, rotation.cosines, rotation.sines, row);
  }
}

// Separates each head's query from its output gate.
// Shapes: projected [num_heads * (2 with gate) * head_dim], query and gate [num_heads * head_dim].
void SplitQuery(const AttentionShape& shape, const double* projected, double* query, float* gate) {
  const int64_t size = shape.head_dim, stride = shape.output_gate ? 2 * size : size;
  for (int64_t head = 0; head < shape.num_heads; ++head) {
    std::copy_n(projected + head * stride, size, query + head * size);
    if (shape.output_gate) Convert(projected + head * stride + size, size, gate + head * size);
  }
}

// Rounds one token's keys (values) into the cache. Shape: x [num_kv_heads * head_dim].
void StoreRows(const AttentionShape& shape, const KvLayer& cache, const KvLayout& layout,
               const AttentionSequence& sequence, int64_t position, const double* x, float* scratch,
               std::byte* rows) {
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    Convert(x + int64_t{head} * shape.head_dim, shape.head_dim, scratch);
    QuantizeRow(KvDType(cache.type), scratch, shape.head_dim,
                rows + layout.Row(sequence, head, position));
  }
}

// Positions that a row may read, ascending; returns their number. Shape: out [position + 1].
int64_t AllowedPositions(const AttentionShape& shape, const QsaSelection& selection, int64_t row,
                         int64_t position, int32_t* out) {
  const int32_t count = selection.counts.empty() ? -1 : selection.counts[static_cast<size_t>(row)];
  int64_t size = 0;
  int64_t first = 0;  // of the positions that are read without having been selected
  if (count >= 0) {
    for (int32_t i = 0; i < count; ++i) {
      const int32_t block = selection.blocks.row(row)[i];
      for (int32_t j = 0; j < shape.qsa_ratio; ++j) out[size++] = block * shape.qsa_ratio + j;
    }
    first = (position + 1) / shape.qsa_ratio * shape.qsa_ratio;
  }
  for (int64_t p = first; p <= position; ++p) out[size++] = static_cast<int32_t>(p);
  return size;
}

void Softmax(int64_t size, double* x) {
  const double largest = *std::max_element(x, x + size);
  double sum = 0;
  for (int64_t i = 0; i < size; ++i) {
    x[i] = std::exp(x[i] - largest);
    sum += x[i];
  }
  for (int64_t i = 0; i < size; ++i) x[i] /= sum;
}

// Reads the cached rows of one kv head.
class RowReader {
 public:
  RowReader(const AttentionShape& shape, const KvLayer& cache, const KvLayout& layout,
            const AttentionSequence& sequence, int head, float* scratch)
      : dtype_(KvDType(cache.type)),
        size_(shape.head_dim),
        layout_(layout),
        sequence_(sequence),
        head_(head),
        scratch_(scratch) {}

  // Shape: out [head_dim].
  void Read(const std::byte* rows, int64_t position, double* out) const {
    DequantizeRow(dtype_, rows + layout_.Row(sequence_, head_, position), size_, scratch_);
    Convert(scratch_, size_, out);
  }

 private:
  DType dtype_;
  int64_t size_;
  const KvLayout& layout_;
  const AttentionSequence& sequence_;
  int head_;
  float* scratch_;
};

}  // namespace

void AttentionQkv(const AttentionWeights& w, const AttentionShape& shape, const KvLayer& cache,
                  absl::Span<const AttentionSequence> sequences, MatrixView<const float> u,
                  const AttentionInputs& out, Workspace& workspace) {
  const Workspace::Frame frame(workspace);
  const MatrixView<const double> x = Widen(u, workspace);
  auto project = [&](const Weight& weight) {
    const MatrixView<double> y = workspace.TakeMatrix<double>(u.rows, weight.rows());
    MatMul<double>(weight, 0, x, y, workspace);
    return y;
  };
  const MatrixView<double> queries = project(*w.query);
  const MatrixView<double> keys = project(*w.key);
  const MatrixView<double> values = project(*w.value);
  const bool sparse = shape.qsa_ratio != 0;
  const MatrixView<double> index_queries = sparse ? project(*w.index_query) : MatrixView<double>();
  const MatrixView<double> index_keys = sparse ? project(*w.index_key) : MatrixView<double>();

  const int64_t query_size = int64_t{shape.num_heads} * shape.head_dim;
  float* cosines = workspace.Take<float>(shape.num_rotary_dims / 2);
  float* sines = workspace.Take<float>(shape.num_rotary_dims / 2);
  const Rotation rotation = {cosines, sines};
  double* query = workspace.Take<double>(query_size);
  float* row = workspace.Take<float>(shape.head_dim);
  const KvLayout layout(shape, cache.type);
  for (const AttentionSequence& sequence : sequences) {
    for (int r = 0; r < sequence.num_rows; ++r) {
      const int64_t t = sequence.row_begin + r, position = sequence.first_position + r;
      RopeAngles(position, shape.num_rotary_dims, shape.rope_base, cosines, sines);
      SplitQuery(shape, queries.row(t), query, shape.output_gate ? out.gate.row(t) : nullptr);
      NormAndRotate(shape, Values(w.query_norm), rotation, shape.num_heads, shape.head_dim, query);
      Convert(query, query_size, out.query.row(t));
      NormAndRotate(shape, Values(w.key_norm), rotation, shape.num_kv_heads, shape.head_dim,
                    keys.row(t));
      StoreRows(shape, cache, layout, sequence, position, keys.row(t), row, cache.keys);
      StoreRows(shape, cache, layout, sequence, position, values.row(t), row, cache.values);
      if (!sparse) continue;
      NormAndRotate(shape, Values(w.index_query_norm), rotation, shape.num_index_heads,
                    shape.index_head_dim, index_queries.row(t));
      Convert(index_queries.row(t), index_queries.cols, out.index_query.row(t));
      StoreIndexKey(w, shape, cache, sequence, position, index_keys.row(t), workspace);
    }
  }
}

void Attention(const AttentionShape& shape, const KvLayer& cache,
               absl::Span<const AttentionSequence> sequences, const AttentionInputs& inputs,
               const QsaSelection& selection, MatrixView<float> out, Workspace& workspace) {
  const int64_t size = shape.head_dim, max_group = shape.group_size();
  const double scale = 1 / std::sqrt(static_cast<double>(size));
  const KvLayout layout(shape, cache.type);
  for (const AttentionSequence& sequence : sequences) {
    for (int r = 0; r < sequence.num_rows; ++r) {
      const Workspace::Frame frame(workspace);
      const int64_t t = sequence.row_begin + r, position = sequence.first_position + r;
      int32_t* positions = workspace.Take<int32_t>(position + 1);
      const int64_t count = AllowedPositions(shape, selection, t, position, positions);
      const MatrixView<double> weights = workspace.TakeMatrix<double>(max_group, count);
      const MatrixView<double> sums = workspace.TakeMatrix<double>(max_group, size);
      double* row = workspace.Take<double>(size);
      float* scratch = workspace.Take<float>(size);
      for (int kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
        const RowReader reader(shape, cache, layout, sequence, kv_head, scratch);
        const int64_t group = shape.end_head_of(kv_head) - shape.first_head_of(kv_head);
        const int64_t first = shape.first_head_of(kv_head) * size;  // of these values in a row
        for (int64_t i = 0; i < count; ++i) {
          reader.Read(cache.keys, positions[i], row);
          for (int64_t g = 0; g < group; ++g) {
            weights.row(g)[i] = scale * Dot(inputs.query.row(t) + first + g * size, row, size);
          }
        }
        for (int64_t g = 0; g < group; ++g) Softmax(count, weights.row(g));
        std::fill_n(sums.data, group * size, 0.0);
        for (int64_t i = 0; i < count; ++i) {
          reader.Read(cache.values, positions[i], row);
          for (int64_t g = 0; g < group; ++g) {
            const double weight = weights.row(g)[i];
            for (int64_t d = 0; d < size; ++d) sums.row(g)[d] += weight * row[d];
          }
        }
        for (int64_t i = 0; i < group * size; ++i) {
          const double gate =
              shape.output_gate ? Sigmoid(static_cast<double>(inputs.gate.row(t)[first + i])) : 1;
          out.row(t)[first + i] = static_cast<float>(sums.data[i] * gate);
        }
      }
    }
  }
}

int64_t AttentionQkvWorkspaceBytes(const StepLimits& limits) {
  const int64_t heads = limits.num_heads * limits.head_dim, rows = limits.max_rows;
  // Queries with gates take 2 heads; keys and values have at most as many heads as queries.
  return TakenBytes<double>(rows * limits.hidden_size) + TakenBytes<double>(rows * 2 * heads) +
         2 * TakenBytes<double>(rows * heads) +
         TakenBytes<double>(rows * limits.num_index_heads * limits.index_head_dim) +
         TakenBytes<double>(rows * limits.index_head_dim) + 2 * TakenBytes<float>(limits.head_dim) +
         TakenBytes<double>(heads) + TakenBytes<float>(limits.head_dim) +
         std::max(MatMulWorkspaceBytes(limits.hidden_size), StoreIndexKeyWorkspaceBytes(limits));
}

int64_t AttentionWorkspaceBytes(const StepLimits& limits) {
  return TakenBytes<int32_t>(limits.max_context) +
         TakenBytes<double>(limits.num_heads * limits.max_context) +
         TakenBytes<double>(limits.num_heads * limits.head_dim) +
         TakenBytes<double>(limits.head_dim) + TakenBytes<float>(limits.head_dim);
}

}  // namespace switchyard::kernels::reference
