#include "testing/attention_fixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "kernels/kv_layout.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/quantize.h"

namespace switchyard::fixtures {
namespace {

using kernels::BlockKeyDType;
using kernels::KvDType;
using kernels::KvType;

Doubles RoundTo(DType dtype, const Doubles& x) {
  const std::vector<float> values(x.begin(), x.end());
  std::vector<std::byte> bytes(
      static_cast<size_t>(RowBytes(dtype, static_cast<int64_t>(x.size()))));
  std::vector<float> rounded(x.size());
  kernels::QuantizeRow(dtype, values.data(), static_cast<int64_t>(x.size()), bytes.data());
  kernels::DequantizeRow(dtype, bytes.data(), static_cast<int64_t>(x.size()), rounded.data());
  return ToDoubles(rounded);
}

// x = rotate(rms(x) * norm), head by head.
Doubles NormAndRotate(const LayerSizes& sizes, const Doubles& x, const Doubles& norm,
                      int64_t position) {
  Doubles y = GroupedRms(x, norm, double{sizes.rms_epsilon}, static_cast<int64_t>(norm.size()));
  const int half = sizes.num_rotary_dims / 2;
  for (size_t head = 0; head < y.size(); head += norm.size()) {
    for (int i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) *
                           std::pow(double{sizes.rope_base}, -2.0 * i / sizes.num_rotary_dims);
      const double c = static_cast<float>(std::cos(angle));
      const double s = static_cast<float>(std::sin(angle));
      double& a = y[head + static_cast<size_t>(i)];
      double& b = y[head + static_cast<size_t>(i + half)];
      const double rotated = a * c - b * s;
      b = b * c + a * s;
      a = rotated;
    }
  }
  return y;
}

// Blocks that the query at `position` reads; empty if it reads everything.
std::vector<int32_t> SelectBlocks(const LayerSizes& sizes, const Doubles& index_query,
                                  const std::vector<Doubles>& block_keys, int64_t position) {
  const int64_t num_blocks = (position + 1) / sizes.qsa_ratio;
  const int64_t num_chosen = sizes.qsa_budget / sizes.qsa_ratio;
  if (num_blocks <= num_chosen) return {};
  Doubles scores;
  for (int64_t b = 0; b < num_blocks; ++b) {
    double score = 0;
    for (int64_t head = 0; head < sizes.num_index_heads; ++head) {
      score += std::max(
          0.0, DotProduct(Slice(index_query, head * sizes.index_head_dim, sizes.index_head_dim),
                          block_keys[static_cast<size_t>(b)]));
    }
    scores.push_back(score);
  }
  std::vector<int32_t> order(static_cast<size_t>(num_blocks));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(num_chosen));
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<int64_t> Positions(const LayerSizes& sizes, const std::vector<int32_t>& blocks,
                               int64_t position) {
  std::vector<int64_t> positions;
  for (int32_t block : blocks) {
    for (int i = 0; i < sizes.qsa_ratio; ++i) {
      positions.push_back(int64_t{block} * sizes.qsa_ratio + i);
    }
  }
  const int64_t tail = blocks.empty() ? 0 : (position + 1) / sizes.qsa_ratio * sizes.qsa_ratio;
  for (int64_t p = tail; p <= position; ++p) positions.push_back(p);
  return positions;
}

}  // namespace

AttentionLayer::AttentionLayer(kernels::Backend& backend, const LayerSizes& sizes,
                               const AttentionTensors& tensors, KvType type, int num_pages,
                               uint64_t page_seed)
    : backend_(backend),
      sizes_(sizes),
      loaded_(Load(backend, sizes, tensors)),
      pages_(sizes, type, num_pages, page_seed) {}

AttentionResult AttentionLayer::Run(const std::vector<kernels::AttentionSequence>& sequences,
                                    const FloatRows& u) {
  const kernels::AttentionShape shape = sizes_.attention_shape();
  const int64_t num_rows = u.rows(), query_size = int64_t{shape.num_heads} * shape.head_dim;
  const int64_t max_blocks = shape.qsa_ratio == 0 ? 1 : shape.qsa_budget / shape.qsa_ratio;
  FloatRows query(num_rows, query_size), gate(num_rows, query_size);
  FloatRows index_query(num_rows, std::max(1, shape.num_index_heads * shape.index_head_dim));
  Rows<int32_t> blocks(num_rows, max_blocks);
  std::vector<int32_t> counts(static_cast<size_t>(num_rows), 12345);
  kernels::AttentionInputs inputs{query.view(), {}, {}};
  if (shape.output_gate) inputs.gate = gate.view();
  kernels::QsaSelection selection;
  kernels::LedgerSlot ledger;
  const bool sparse = shape.qsa_ratio != 0;
  if (sparse) {
    inputs.index_query = index_query.view();
    selection = {blocks.view(), absl::MakeSpan(counts)};
  }
  backend_.AttentionQkv(ledger, loaded_.weights, shape, pages_.layer(), sequences, u.view(),
                        inputs);
  if (sparse) {
    backend_.QsaSelect(ledger, shape, pages_.layer(), sequences, inputs.index_query, selection);
  }
  AttentionResult result{FloatRows(num_rows, query_size), {}};
  backend_.Attention(ledger, shape, pages_.layer(), sequences, inputs, selection,
                     result.out.view());
  for (int64_t t = 0; t < num_rows; ++t) {
    const int32_t count = sparse ? counts[static_cast<size_t>(t)] : -1;
    std::vector<int32_t> row = blocks.Row(t);
    SWITCHYARD_CHECK(count >= -1 && count <= max_blocks);
    row.resize(static_cast<size_t>(std::max(count, 0)));
    result.blocks.push_back(std::move(row));
  }
  return result;
}

AttentionResult AttentionLayer::RunInSteps(const FloatRows& u, int num_rows) {
  AttentionState state = NewSequence(u.rows());
  SequenceCursor cursor;
  AttentionResult all{FloatRows::Of(int64_t{sizes_.num_heads} * sizes_.head_dim, {}), {}};
  while (cursor.position() < u.rows()) {
    const int64_t first = cursor.position();
    const int count = static_cast<int>(std::min<int64_t>(num_rows, u.rows() - first));
    const FloatRows part = FloatRows::Of(
        u.cols, {u.values.begin() + first * u.cols, u.values.begin() + (first + count) * u.cols});
    AttentionResult step = Run({state.Sequence(cursor.Next(0, count))}, part);
    all.out.values.insert(all.out.values.end(), step.out.values.begin(), step.out.values.end());
    all.blocks.insert(all.blocks.end(), step.blocks.begin(), step.blocks.end());
  }
  return all;
}

AttentionOracle ComputeAttention(const LayerSizes& sizes, const AttentionTensors& tensors,
                                 KvType type, const FloatRows& u) {
  const DoubleMatrix query(tensors.query), key(tensors.key), value(tensors.value);
  const Doubles query_norm = DoubleMatrix(tensors.query_norm).values();
  const Doubles key_norm = DoubleMatrix(tensors.key_norm).values();
  const bool sparse = sizes.qsa_ratio != 0;
  const int64_t size = sizes.head_dim, group = sizes.num_heads / sizes.num_kv_heads;
  std::vector<Doubles> keys, values, raw_index_keys, block_keys;
  AttentionOracle oracle;
  for (int64_t t = 0; t < u.rows(); ++t) {
    const Doubles x = ToDoubles(u.Row(t));
    const Doubles projected = query(x);
    Doubles q, gate;
    for (int64_t head = 0; head < sizes.num_heads; ++head) {
      const int64_t first = head * size * (sizes.output_gate ? 2 : 1);
      const Doubles own = Slice(projected, first, size);
      q.insert(q.end(), own.begin(), own.end());
      if (!sizes.output_gate) continue;
      const Doubles g = Slice(projected, first + size, size);
      gate.insert(gate.end(), g.begin(), g.end());
    }
    q = RoundTo(DType::kF32, NormAndRotate(sizes, q, query_norm, t));
    keys.push_back(RoundTo(KvDType(type), NormAndRotate(sizes, key(x), key_norm, t)));
    values.push_back(RoundTo(KvDType(type), value(x)));
    std::vector<int32_t> blocks;
    if (sparse) {
      const Doubles raw = RoundTo(DType::kF32, DoubleMatrix(tensors.index_key)(x));
      raw_index_keys.push_back(raw);
      if ((t + 1) % sizes.qsa_ratio == 0) {
        Doubles mean(raw.size(), 0.0);
        for (int i = 0; i < sizes.qsa_ratio; ++i) {
          const Doubles& one = raw_index_keys[static_cast<size_t>(t - i)];
          for (size_t d = 0; d < mean.size(); ++d) mean[d] += one[d] / sizes.qsa_ratio;
        }
        block_keys.push_back(
            RoundTo(BlockKeyDType(type),
                    NormAndRotate(sizes, mean, DoubleMatrix(tensors.index_key_norm).values(),
                                  t + 1 - sizes.qsa_ratio)));
      }
      const Doubles index_query =
          RoundTo(DType::kF32, NormAndRotate(sizes, DoubleMatrix(tensors.index_query)(x),
                                             DoubleMatrix(tensors.index_query_norm).values(), t));
      blocks = SelectBlocks(sizes, index_query, block_keys, t);
    }
    oracle.blocks.push_back(blocks);
    const std::vector<int64_t> positions = Positions(sizes, blocks, t);
    Doubles out(q.size(), 0.0);
    for (int64_t head = 0; head < sizes.num_heads; ++head) {
      const int64_t kv_first = head / group * size;
      Doubles weights;
      double sum = 0;
      for (int64_t p : positions) {
        weights.push_back(std::exp(DotProduct(Slice(q, head * size, size),
                                              Slice(keys[static_cast<size_t>(p)], kv_first, size)) /
                                   std::sqrt(static_cast<double>(size))));
        sum += weights.back();
      }
      for (int64_t d = 0; d < size; ++d) {
        double& element = out[static_cast<size_t>(head * size + d)];
        for (size_t i = 0; i < positions.size(); ++i) {
          element += weights[i] / sum *
                     values[static_cast<size_t>(positions[i])][static_cast<size_t>(kv_first + d)];
        }
        if (sizes.output_gate) element *= Sigmoid(gate[static_cast<size_t>(head * size + d)]);
      }
    }
    oracle.out.push_back(out);
  }
  return oracle;
}

}  // namespace switchyard::fixtures
