// Attention of one row over cached keys and values, and the indexer's scores. Level code: see
// simd.h.
#pragma once

#include <cstddef>

#include "kernels/cpu/elementwise_level.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/stage_kernels.h"

namespace switchyard::kernels::cpu::SWITCHYARD_SIMD_NAMESPACE {

// How eight consecutive elements of a cached row become floats.
struct F32Row {
  static int64_t RowBytes(int64_t dim) { return dim * 4; }
  static SWITCHYARD_SIMD_INLINE F8 At(const std::byte* row, int64_t i) {
    return Load(reinterpret_cast<const float*>(row) + i);
  }
};
struct F16Row {
  static int64_t RowBytes(int64_t dim) { return dim * 2; }
  static SWITCHYARD_SIMD_INLINE F8 At(const std::byte* row, int64_t i) {
    return LoadHalf(reinterpret_cast<const uint16_t*>(row) + i);
  }
};
struct Q8Row {  // blocks of a half scale and 32 signed bytes
  static int64_t RowBytes(int64_t dim) { return dim / 32 * 34; }
  static SWITCHYARD_SIMD_INLINE F8 At(const std::byte* row, int64_t i) {
    const std::byte* block = row + i / 32 * 34;
    uint16_t scale[8];
    std::memcpy(scale, block, sizeof(scale));  // the scale and, ignored, some of the bytes
    float scales[8];
    Store(scales, LoadHalf(scale));
    return Set(scales[0]) * LoadInt8(reinterpret_cast<const int8_t*>(block + 2) + i % 32);
  }
};

// dots[key][head] for kHeads queries and kKeys adjacent rows: one chain per pair, then Sum().
template <typename Row, int kHeads, int kKeys>
SWITCHYARD_SIMD_INLINE void DotKeys(const float* query, int64_t dim, const std::byte* keys,
                                    int64_t row_bytes, float dots[kKeys][4]) {
  F8 sum[kKeys][4];
  for (int k = 0; k < kKeys; ++k) {
    for (int h = 0; h < 4; ++h) sum[k][h] = Zero();
  }
  for (int64_t i = 0; i < dim; i += kLanes) {
    F8 key[kKeys];
    for (int k = 0; k < kKeys; ++k) key[k] = Row::At(keys + k * row_bytes, i);
    for (int h = 0; h < kHeads; ++h) {
      const F8 q = Load(query + h * dim + i);
      for (int k = 0; k < kKeys; ++k) sum[k][h] = MulAdd(q, key[k], sum[k][h]);
    }
  }
  for (int k = 0; k < kKeys; ++k) Sum4(sum[k][0], sum[k][1], sum[k][2], sum[k][3], dots[k]);
}

template <typename Row, int kHeads>
SWITCHYARD_SIMD_INLINE void ScoreRuns(const AttendTask& task, const float* query, float scale) {
  const int64_t row_bytes = Row::RowBytes(task.head_dim);
  int64_t at = 0;
  for (int64_t r = 0; r < task.num_runs; ++r) {
    const KeyRun& run = task.runs[r];
    float dots[2][4];
    int64_t i = 0;
    for (; i + 2 <= run.count; i += 2, at += 2) {
      DotKeys<Row, kHeads, 2>(query, task.head_dim, run.keys + i * row_bytes, row_bytes, dots);
      for (int h = 0; h < kHeads; ++h) {
        task.scores[h * task.num_keys + at] = dots[0][h] * scale;
        task.scores[h * task.num_keys + at + 1] = dots[1][h] * scale;
      }
    }
    if (i < run.count) {
      DotKeys<Row, kHeads, 1>(query, task.head_dim, run.keys + i * row_bytes, row_bytes, dots);
      for (int h = 0; h < kHeads; ++h) task.scores[h * task.num_keys + at] = dots[0][h] * scale;
      ++at;
    }
  }
}

// out[h] += weight[h] * value rows of kKeys adjacent tokens, token by token, in 8 * kVectors
// columns.
template <typename Row, int kHeads, int kKeys, int kVectors>
SWITCHYARD_SIMD_INLINE void AddValues(const AttendTask& task, const float* weights,
                                      const std::byte* values, int64_t row_bytes, int64_t col,
                                      float* out) {
  F8 value[kKeys][kVectors];
  for (int k = 0; k < kKeys; ++k) {
    for (int v = 0; v < kVectors; ++v) {
      value[k][v] = Row::At(values + k * row_bytes, col + v * kLanes);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    float* o = out + h * task.head_dim + col;
    F8 sum[kVectors];
    for (int v = 0; v < kVectors; ++v) sum[v] = Load(o + v * kLanes);
    for (int k = 0; k < kKeys; ++k) {
      const F8 w = Set(weights[h * task.num_keys + k]);
      for (int v = 0; v < kVectors; ++v) sum[v] = MulAdd(w, value[k][v], sum[v]);
    }
    for (int v = 0; v < kVectors; ++v) Store(o + v * kLanes, sum[v]);
  }
}

template <typename Row, int kHeads, int kKeys>
SWITCHYARD_SIMD_INLINE void AddValueRows(const AttendTask& task, const float* weights,
                                         const std::byte* values, int64_t row_bytes, float* out) {
  int64_t col = 0;
  for (; col + 2 * kLanes <= task.head_dim; col += 2 * kLanes) {
    AddValues<Row, kHeads, kKeys, 2>(task, weights, values, row_bytes, col, out);
  }
  if (col < task.head_dim) {
    AddValues<Row, kHeads, kKeys, 1>(task, weights, values, row_bytes, col, out);
  }
}

template <typename Row, int kHeads>
inline void AttendHeads(const AttendTask& task, int64_t head) {
  const int64_t dim = task.head_dim, row_bytes = Row::RowBytes(dim);
  float* out = task.out + head * dim;
  ScoreRuns<Row, kHeads>(task, task.query + head * dim, 1.0f / sqrtf(static_cast<float>(dim)));
  float norm[kHeads];
  for (int h = 0; h < kHeads; ++h) {
    norm[h] = 1.0f / SoftmaxExp(task.scores + h * task.num_keys, task.num_keys);
    for (int64_t i = 0; i < dim; ++i) out[h * dim + i] = 0;
  }
  const float* weights = task.scores;
  for (int64_t r = 0; r < task.num_runs; ++r) {
    const KeyRun& run = task.runs[r];
    int64_t i = 0;
    for (; i + 4 <= run.count; i += 4, weights += 4) {
      AddValueRows<Row, kHeads, 4>(task, weights, run.values + i * row_bytes, row_bytes, out);
    }
    for (; i < run.count; ++i, ++weights) {
      AddValueRows<Row, kHeads, 1>(task, weights, run.values + i * row_bytes, row_bytes, out);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    Scale(norm[h], out + h * dim, dim, out + h * dim);
    if (task.gate != nullptr) MulSigmoid(task.gate + (head + h) * dim, dim, out + h * dim);
  }
}

template <typename Row>
inline void AttendRow(const AttendTask& task) {
  int64_t head = 0;
  for (; head + kAttendHeads <= task.num_heads; head += kAttendHeads) {
    AttendHeads<Row, kAttendHeads>(task, head);
  }
  switch (task.num_heads - head) {
    case 3:
      return AttendHeads<Row, 3>(task, head);
    case 2:
      return AttendHeads<Row, 2>(task, head);
    case 1:
      return AttendHeads<Row, 1>(task, head);
    default:
      return;
  }
}

inline void Attend(const AttendTask& task) {
  switch (task.type) {
    case KvType::kF32:
      return AttendRow<F32Row>(task);
    case KvType::kF16:
      return AttendRow<F16Row>(task);
    case KvType::kQ8_0:
      return AttendRow<Q8Row>(task);
  }
}

// Adds relu(query . key) of kHeads index heads to the scores, head by head.
template <typename Row, int kHeads>
SWITCHYARD_SIMD_INLINE void AddScores(const float* query, int64_t dim, const std::byte* keys,
                                      int64_t count, float* scores) {
  const int64_t row_bytes = Row::RowBytes(dim);
  float dots[2][4];
  int64_t i = 0;
  for (; i + 2 <= count; i += 2) {
    DotKeys<Row, kHeads, 2>(query, dim, keys + i * row_bytes, row_bytes, dots);
    for (int k = 0; k < 2; ++k) {
      for (int h = 0; h < kHeads; ++h) scores[i + k] += dots[k][h] > 0 ? dots[k][h] : 0.0f;
    }
  }
  if (i < count) {
    DotKeys<Row, kHeads, 1>(query, dim, keys + i * row_bytes, row_bytes, dots);
    for (int h = 0; h < kHeads; ++h) scores[i] += dots[0][h] > 0 ? dots[0][h] : 0.0f;
  }
}

template <typename Row>
inline void ScoreBlockRows(const float* query, int64_t num_heads, int64_t dim,
                           const std::byte* keys, int64_t count, float* scores) {
  for (int64_t i = 0; i < count; ++i) scores[i] = 0;
  int64_t head = 0;
  for (; head + 4 <= num_heads; head += 4) {
    AddScores<Row, 4>(query + head * dim, dim, keys, count, scores);
  }
  for (; head < num_heads; ++head) {
    AddScores<Row, 1>(query + head * dim, dim, keys, count, scores);
  }
}

inline void ScoreBlocks(const float* query, int64_t num_heads, int64_t dim, const std::byte* keys,
                        bool wide, int64_t count, float* scores) {
  if (wide) {
    ScoreBlockRows<F32Row>(query, num_heads, dim, keys, count, scores);
  } else {
    ScoreBlockRows<F16Row>(query, num_heads, dim, keys, count, scores);
  }
}

}  // namespace switchyard::kernels::cpu::SWITCHYARD_SIMD_NAMESPACE
