// Attention over some cached keys and values, and the indexer's scores. Level code: see simd.h.
#pragma once

#include <cstddef>

#include "kernels/cpu/elementwise_level.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/stage_kernels.h"

namespace switchyard::kernels::cpu::SWITCHYARD_SIMD_NAMESPACE {

// How consecutive elements of a cached row become floats: eight, sixteen, or the same eight of two
// rows.
struct F32Row {
  static int64_t RowBytes(int64_t dim) { return dim * 4; }
  static SWITCHYARD_SIMD_INLINE F8 At(const std::byte* row, int64_t i) {
    return Load(reinterpret_cast<const float*>(row) + i);
  }
  static SWITCHYARD_SIMD_INLINE Wide WideAt(const std::byte* row, int64_t i) {
    return WideLoad(reinterpret_cast<const float*>(row) + i);
  }
  static SWITCHYARD_SIMD_INLINE Wide Pair(const std::byte* a, const std::byte* b, int64_t i) {
    return Join(At(a, i), At(b, i));
  }
};
struct F16Row {
  static int64_t RowBytes(int64_t dim) { return dim * 2; }
  static SWITCHYARD_SIMD_INLINE const uint16_t* Halves(const std::byte* row, int64_t i) {
    return reinterpret_cast<const uint16_t*>(row) + i;
  }
  static SWITCHYARD_SIMD_INLINE F8 At(const std::byte* row, int64_t i) {
    return LoadHalf(Halves(row, i));
  }
  static SWITCHYARD_SIMD_INLINE Wide WideAt(const std::byte* row, int64_t i) {
    return WideLoadHalf(Halves(row, i));
  }
  static SWITCHYARD_SIMD_INLINE Wide Pair(const std::byte* a, const std::byte* b, int64_t i) {
    return JoinHalves(Halves(a, i), Halves(b, i));
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
  static SWITCHYARD_SIMD_INLINE Wide WideAt(const std::byte* row, int64_t i) {
    return Join(At(row, i), At(row, i + kLanes));
  }
  static SWITCHYARD_SIMD_INLINE Wide Pair(const std::byte* a, const std::byte* b, int64_t i) {
    return Join(At(a, i), At(b, i));
  }
};

// Registers decide how much is computed at once; no result depends on it.
inline constexpr int kHeadTile = SWITCHYARD_SIMD_AVX512 ? 6 : 4;         // of scores
inline constexpr int kPairTile = SWITCHYARD_SIMD_AVX512 ? 2 : 1;         // pairs of keys
inline constexpr int kValueHeadTile = 6;                                 // of weighted values
inline constexpr int kValueVectorTile = SWITCHYARD_SIMD_AVX512 ? 2 : 1;  // of sixteen columns

// dots[2 * pair + i][head] of kHeads queries and row i of each pair: eight lanes per dot product,
// then Sum().
template <typename Row, int kHeads, int kPairs>
SWITCHYARD_SIMD_INLINE void DotKeys(const float* query, int64_t dim,
                                    const std::byte* const (*keys)[2],
                                    float dots[2 * kPairs][kHeads]) {
  Wide sum[kPairs * kHeads];
  for (Wide& s : sum) s = WideSet(0);
  for (int64_t i = 0; i < dim; i += kLanes) {
    Wide key[kPairs];
    for (int p = 0; p < kPairs; ++p) key[p] = Row::Pair(keys[p][0], keys[p][1], i);
    for (int h = 0; h < kHeads; ++h) {
      const Wide q = LoadTwice(query + h * dim + i);
      for (int p = 0; p < kPairs; ++p) {
        sum[p * kHeads + h] = MulAdd(q, key[p], sum[p * kHeads + h]);
      }
    }
  }
  constexpr int kSums = kPairs * kHeads;
  for (int j = 0; j < kSums; j += 4) {
    const auto at = [&](int k) { return sum[j + k < kSums ? j + k : j]; };
    float low[4], high[4];
    SumHalves4(at(0), at(1), at(2), at(3), low, high);
    for (int k = 0; k < 4 && j + k < kSums; ++k) {
      const int p = (j + k) / kHeads, h = (j + k) % kHeads;
      dots[2 * p][h] = low[k];
      dots[2 * p + 1][h] = high[k];
    }
  }
}

// Calls body.operator()<n>(first head) for tiles of up to kTile heads.
template <int kTile, typename Body>
SWITCHYARD_SIMD_INLINE void ForHeadTiles(int64_t num_heads, Body body) {
  int64_t head = 0;
  for (; head + kTile <= num_heads; head += kTile) body.template operator()<kTile>(head);
  static_assert(kTile <= 6);
  switch (num_heads - head) {
    case 5:
      if constexpr (kTile > 5) body.template operator()<5>(head);
      return;
    case 4:
      if constexpr (kTile > 4) body.template operator()<4>(head);
      return;
    case 3:
      return body.template operator()<3>(head);
    case 2:
      return body.template operator()<2>(head);
    case 1:
      return body.template operator()<1>(head);
    default:
      return;
  }
}

inline void PrefetchRow(const std::byte* row, int64_t row_bytes) {
  for (int64_t i = 0; i < row_bytes; i += 64) PrefetchAfter(row, static_cast<uintptr_t>(i));
}

// scores[h, at + i] = q_h . key_i / sqrt(dim) for a few adjacent keys. Fetches their values, and
// the keys at `next`.
template <typename Row, int kPairs>
inline void ScoreKeys(const AttendTask& task, float scale, const std::byte* keys,
                      const std::byte* values, int64_t count, const std::byte* next, int64_t at) {
  const int64_t dim = task.head_dim, row_bytes = Row::RowBytes(dim);
  const std::byte* rows[kPairs][2];
  for (int64_t i = 0; i < 2 * kPairs; ++i) {
    // A row that is missing repeats the last one.
    rows[i / 2][i % 2] = keys + (i < count ? i : count - 1) * row_bytes;
    if (i < count) PrefetchRow(values + i * row_bytes, row_bytes);
    if (next != nullptr) PrefetchRow(next + i * row_bytes, row_bytes);
  }
  ForHeadTiles<kHeadTile>(
      task.num_heads, [&]<int kHeads>(int64_t head) __attribute__((always_inline)) {
        float dots[2 * kPairs][kHeads];
        DotKeys<Row, kHeads, kPairs>(task.query + head * dim, dim, rows, dots);
        for (int h = 0; h < kHeads; ++h) {
          float* scores = task.scores + (head + h) * kAttendKeys + at;
          for (int64_t i = 0; i < count; ++i) scores[i] = dots[i][h] * scale;
        }
      });
}

template <typename Row>
inline void ScoreRuns(const AttendTask& task) {
  constexpr int64_t kTile = 2 * kPairTile;
  const int64_t row_bytes = Row::RowBytes(task.head_dim);
  const float scale = 1.0f / sqrtf(static_cast<float>(task.head_dim));
  int64_t at = 0;
  for (int64_t r = 0; r < task.num_runs; ++r) {
    const KeyRun& run = task.runs[r];
    for (int64_t i = 0; i < run.count; i += kTile) {
      const int64_t count = run.count - i < kTile ? run.count - i : kTile;
      // Two tiles ahead in this run; at its end the start of the next. Selected blocks are short
      // and lie far apart: there a few runs ahead.
      constexpr int64_t kShortRunsAhead = 4;
      const int64_t next_run = r + (run.count <= kTile ? kShortRunsAhead : 1);
      const std::byte* next = nullptr;
      if (i + 2 * kTile < run.count) {
        next = run.keys + (i + 2 * kTile) * row_bytes;
      } else if (next_run < task.num_runs) {
        next = task.runs[next_run].keys + (i + 2 * kTile - run.count) / kTile * kTile * row_bytes;
        if (run.count <= kTile) next = task.runs[next_run].keys;
      }
      ScoreKeys<Row, kPairTile>(task, scale, run.keys + i * row_bytes, run.values + i * row_bytes,
                                count, next, at);
      at += count;
    }
  }
}

// scores[i] = e^(scores[i] - max) of `count` scores of one head; what follows up to a multiple of
// sixteen becomes 0.
inline void Exponentials(float* scores, int64_t count, float* max, float* total) {
  const int64_t padded = (count + kWideLanes - 1) / kWideLanes * kWideLanes;
  for (int64_t i = count; i < padded; ++i) scores[i] = -HUGE_VALF;
  Wide largest = WideSet(-HUGE_VALF);
  for (int64_t i = 0; i < padded; i += kWideLanes) largest = Max(WideLoad(scores + i), largest);
  float lanes[kWideLanes];
  Store(lanes, largest);
  float top = lanes[0];
  for (int64_t i = 1; i < kWideLanes; ++i) top = lanes[i] > top ? lanes[i] : top;
  Wide sum = WideSet(0);
  for (int64_t i = 0; i < padded; i += kWideLanes) {
    const Wide e = Exp(WideLoad(scores + i) - WideSet(top));
    Store(scores + i, e);
    sum = sum + e;
  }
  *max = top;
  *total = Sum(Low(sum) + High(sum));
}

// sums[h, col...] = sum over keys of scores[h, key] values[key, col...], keys ascending in one
// chain per element. V: vectors of eight or sixteen columns.
template <typename Row, typename V, int kHeads, int kVectors>
SWITCHYARD_SIMD_INLINE void SumValues(const AttendTask& task, int64_t head, int64_t col) {
  constexpr int64_t kStep = kLanesOf<V>;
  const int64_t row_bytes = Row::RowBytes(task.head_dim);
  V sum[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) sum[h][v] = Splat<V>(0);
  }
  const float* weights = task.scores + head * kAttendKeys;
  for (int64_t r = 0; r < task.num_runs; ++r) {
    const std::byte* values = task.runs[r].values;
    for (int64_t i = 0; i < task.runs[r].count; ++i, values += row_bytes, ++weights) {
      V value[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (kStep == kWideLanes) {
          value[v] = Row::WideAt(values, col + v * kStep);
        } else {
          value[v] = Row::At(values, col + v * kStep);
        }
      }
      for (int h = 0; h < kHeads; ++h) {
        const V w = Splat<V>(weights[h * kAttendKeys]);
        for (int v = 0; v < kVectors; ++v) sum[h][v] = MulAdd(w, value[v], sum[h][v]);
      }
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    float* out = task.sums + (head + h) * task.head_dim + col;
    for (int v = 0; v < kVectors; ++v) Store(out + v * kStep, sum[h][v]);
  }
}

template <typename Row>
inline void AttendRuns(const AttendTask& task) {
  ScoreRuns<Row>(task);
  for (int64_t h = 0; h < task.num_heads; ++h) {
    Exponentials(task.scores + h * kAttendKeys, task.num_keys, task.max + h, task.total + h);
  }
  ForHeadTiles<kValueHeadTile>(
      task.num_heads, [&]<int kHeads>(int64_t head) __attribute__((always_inline)) {
        constexpr int64_t kTile = kValueVectorTile * kWideLanes;
        int64_t col = 0;
        for (; col + kTile <= task.head_dim; col += kTile) {
          SumValues<Row, Wide, kHeads, kValueVectorTile>(task, head, col);
        }
        for (; col < task.head_dim; col += kLanes) SumValues<Row, F8, kHeads, 1>(task, head, col);
      });
}

inline void Attend(const AttendTask& task) {
  switch (task.type) {
    case KvType::kF32:
      return AttendRuns<F32Row>(task);
    case KvType::kF16:
      return AttendRuns<F16Row>(task);
    case KvType::kQ8_0:
      return AttendRuns<Q8Row>(task);
  }
}

inline void MergeAttended(const Attended& from, int64_t num_heads, int64_t head_dim,
                          const Attended& into) {
  for (int64_t h = 0; h < num_heads; ++h) {
    const float max = from.max[h] > into.max[h] ? from.max[h] : into.max[h];
    float factors[kLanes] = {from.max[h] - max, into.max[h] - max};
    Store(factors, Exp(Load(factors)));
    const F8 from_factor = Set(factors[0]), into_factor = Set(factors[1]);
    into.max[h] = max;
    into.total[h] = fmaf(factors[0], from.total[h], factors[1] * into.total[h]);
    const float* a = from.sums + h * head_dim;
    float* b = into.sums + h * head_dim;
    for (int64_t i = 0; i < head_dim; i += kLanes) {
      Store(b + i, MulAdd(from_factor, Load(a + i), into_factor * Load(b + i)));
    }
  }
}

inline void FinishAttended(const Attended& attended, int64_t num_heads, int64_t head_dim,
                           const float* gate, float* out) {
  for (int64_t h = 0; h < num_heads; ++h) {
    Scale(1.0f / attended.total[h], attended.sums + h * head_dim, head_dim, out + h * head_dim);
  }
  if (gate != nullptr) MulSigmoid(gate, num_heads * head_dim, out);
}

// Adds relu(query . key) of kHeads index heads to the scores, head by head.
template <typename Row, int kHeads, int kPairs>
SWITCHYARD_SIMD_INLINE void AddScores(const float* query, int64_t dim, const std::byte* keys,
                                      int64_t count, float* scores) {
  const int64_t row_bytes = Row::RowBytes(dim);
  const std::byte* rows[kPairs][2];
  for (int64_t i = 0; i < 2 * kPairs; ++i) {
    rows[i / 2][i % 2] = keys + (i < count ? i : count - 1) * row_bytes;
  }
  float dots[2 * kPairs][kHeads];
  DotKeys<Row, kHeads, kPairs>(query, dim, rows, dots);
  for (int64_t i = 0; i < 2 * kPairs && i < count; ++i) {
    for (int h = 0; h < kHeads; ++h) scores[i] += dots[i][h] > 0 ? dots[i][h] : 0.0f;
  }
}

template <typename Row>
inline void ScoreBlockRows(const float* query, int64_t num_heads, int64_t dim,
                           const std::byte* keys, int64_t count, float* scores) {
  constexpr int64_t kTile = 2 * kPairTile;
  const int64_t row_bytes = Row::RowBytes(dim);
  for (int64_t i = 0; i < count; ++i) scores[i] = 0;
  ForHeadTiles<4>(
      num_heads, [&]<int kHeads>(int64_t head) __attribute__((always_inline)) {
        for (int64_t i = 0; i < count; i += kTile) {
          AddScores<Row, kHeads, kPairTile>(query + head * dim, dim, keys + i * row_bytes,
                                            count - i, scores + i);
        }
      });
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
