// The gated delta rule of one value head, token by token and in chunks. Level code: see simd.h.
//
// State S [D value, D key] in F32; with decay a_t, strength beta_t:
//   S' = a_t S;  err = beta_t (v_t - S' k_t);  S = S' + err k_t^T;  o_t = S q_t
// Source: Yang et al., 2024, arXiv:2412.06464 (gated delta rule); chunked form: section 3.3.
#pragma once

#include "kernels/cpu/elementwise_level.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/stage_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace switchyard::kernels::cpu::SWITCHYARD_SIMD_NAMESPACE {

inline void DeltaNormalize(const float* q, const float* k, int64_t head_dim, float* q_out,
                           float* k_out) {
  const float q_scale =
      1.0f / sqrtf(Dot(q, q, head_dim) + 1e-6f) / sqrtf(static_cast<float>(head_dim));
  const float k_scale = 1.0f / sqrtf(Dot(k, k, head_dim) + 1e-6f);
  Scale(q_scale, q, head_dim, q_out);
  Scale(k_scale, k, head_dim, k_out);
}

// In decode the states come from memory and go back there. The hardware's own prefetching stops at
// every page; asking this far ahead, also into the next head's state, takes less than half the time
// (288 heads of 128 x 128 on one Zen 5 core: 1.31 ms without, 0.85 with 2 KiB, 0.58 with 8 KiB).
inline constexpr uintptr_t kStatePrefetchBytes = 8192;

// Reads both products of a state row in one pass over the old state,
//   o_t = a_t (S q_t) + err (k_t . q_t),
// then updates it while it is in the first-level cache. Four rows share the loads of q and k.
inline void DeltaStep(float* state, const float* q, const float* k, const float* v, float decay,
                      float beta, int64_t head_dim, float* out) {
  const float kq = Dot(k, q, head_dim);
  const F8 decays = Set(decay);
  for (int64_t row = 0; row < head_dim; row += 4) {
    float* s0 = state + row * head_dim;
    float* s1 = s0 + head_dim;
    float* s2 = s1 + head_dim;
    float* s3 = s2 + head_dim;
    F8 k0 = Zero(), k1 = Zero(), k2 = Zero(), k3 = Zero();
    F8 q0 = Zero(), q1 = Zero(), q2 = Zero(), q3 = Zero();
    for (int64_t i = 0; i < head_dim; i += kLanes) {
      if (i % 16 == 0) {
        PrefetchAfter(s0 + i, kStatePrefetchBytes);
        PrefetchAfter(s1 + i, kStatePrefetchBytes);
        PrefetchAfter(s2 + i, kStatePrefetchBytes);
        PrefetchAfter(s3 + i, kStatePrefetchBytes);
      }
      const F8 kv = Load(k + i), qv = Load(q + i);
      const F8 a = Load(s0 + i), b = Load(s1 + i), c = Load(s2 + i), d = Load(s3 + i);
      k0 = MulAdd(a, kv, k0);
      k1 = MulAdd(b, kv, k1);
      k2 = MulAdd(c, kv, k2);
      k3 = MulAdd(d, kv, k3);
      q0 = MulAdd(a, qv, q0);
      q1 = MulAdd(b, qv, q1);
      q2 = MulAdd(c, qv, q2);
      q3 = MulAdd(d, qv, q3);
    }
    float sk[4], sq[4], err[4];
    Sum4(k0, k1, k2, k3, sk);
    Sum4(q0, q1, q2, q3, sq);
    for (int j = 0; j < 4; ++j) {
      err[j] = beta * (v[row + j] - decay * sk[j]);
      out[row + j] = decay * sq[j] + err[j] * kq;
    }
    const F8 e0 = Set(err[0]), e1 = Set(err[1]), e2 = Set(err[2]), e3 = Set(err[3]);
    for (int64_t i = 0; i < head_dim; i += kLanes) {
      const F8 kv = Load(k + i);
      Store(s0 + i, MulAdd(e0, kv, decays * Load(s0 + i)));
      Store(s1 + i, MulAdd(e1, kv, decays * Load(s1 + i)));
      Store(s2 + i, MulAdd(e2, kv, decays * Load(s2 + i)));
      Store(s3 + i, MulAdd(e3, kv, decays * Load(s3 + i)));
    }
  }
}

// C[m, n] (+)= sum over k of A[m, k] B[k, n], k ascending in one chain per element.
// A(m, k) = a[m * a_row + k * a_col]; b and c are row-major; n is a multiple of 8.
struct Product {
  int64_t m, n, k;
  const float* a;
  int64_t a_row, a_col;
  const float* b;
  int64_t ldb;
  float* c;
  int64_t ldc;
  bool accumulate;
};

template <typename V, int kRows, int kVectors>
SWITCHYARD_SIMD_INLINE void ProductTile(const Product& p, int64_t row, int64_t col) {
  V sum[kRows][kVectors];
  float* c = p.c + row * p.ldc + col;
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = p.accumulate ? LoadAs<V>(c + r * p.ldc + v * kLanesOf<V>) : Splat<V>(0);
    }
  }
  const float* a = p.a + row * p.a_row;
  const float* b = p.b + col;
  for (int64_t k = 0; k < p.k; ++k, a += p.a_col, b += p.ldb) {
    V bv[kVectors];
    for (int v = 0; v < kVectors; ++v) bv[v] = LoadAs<V>(b + v * kLanesOf<V>);
    for (int r = 0; r < kRows; ++r) {
      const V av = Splat<V>(a[r * p.a_row]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = MulAdd(av, bv[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) Store(c + r * p.ldc + v * kLanesOf<V>, sum[r][v]);
  }
}

template <typename V, int kVectors>
SWITCHYARD_SIMD_INLINE void ProductColumns(const Product& p, int64_t col) {
  int64_t row = 0;
  // With AVX-512 there are registers for twice the rows.
  if constexpr (SWITCHYARD_SIMD_AVX512) {
    for (; row + 8 <= p.m; row += 8) ProductTile<V, 8, kVectors>(p, row, col);
  }
  for (; row + 4 <= p.m; row += 4) ProductTile<V, 4, kVectors>(p, row, col);
  for (; row < p.m; ++row) ProductTile<V, 1, kVectors>(p, row, col);
}

inline void Multiply(const Product& p) {
  int64_t col = 0;
  if constexpr (SWITCHYARD_SIMD_AVX512) {
    for (; col + 2 * kWideLanes <= p.n; col += 2 * kWideLanes) ProductColumns<Wide, 2>(p, col);
  }
  for (; col + 2 * kLanes <= p.n; col += 2 * kLanes) ProductColumns<F8, 2>(p, col);
  for (; col < p.n; col += kLanes) ProductColumns<F8, 1>(p, col);
}

// out[c, r] = in[r, c]; rows and columns that do not fill eight are copied one by one.
inline void TransposeMatrix(const float* in, int64_t rows, int64_t cols, float* out,
                            int64_t out_stride) {
  int64_t r = 0;
  for (; r + kLanes <= rows; r += kLanes) {
    for (int64_t c = 0; c < cols; c += kLanes) {
      F8 block[8];
      for (int i = 0; i < 8; ++i) block[i] = Load(in + (r + i) * cols + c);
      Transpose(block);
      for (int i = 0; i < 8; ++i) Store(out + (c + i) * out_stride + r, block[i]);
    }
  }
  for (; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) out[c * out_stride + r] = in[r * cols + c];
  }
}

// x[t] = start_t + sign * sum over s below t (or t itself, if `inclusive`) of weight[t, s] u[s],
// s ascending, for kVectors vectors of columns from `col` on. With x == u and not inclusive this is
// the forward substitution.
template <typename V, int kVectors, bool kInclusive, bool kSubtract>
SWITCHYARD_SIMD_INLINE void TriangularColumns(const float* weight, const float* u, float* x,
                                              int64_t x_stride, int64_t n, int64_t head_dim,
                                              int64_t col) {
  for (int64_t t = 0; t < n; ++t) {
    V sum[kVectors];
    for (int v = 0; v < kVectors; ++v) sum[v] = LoadAs<V>(x + t * x_stride + col + v * kLanesOf<V>);
    const float* w = weight + t * kPageTokens;
    const int64_t end = kInclusive ? t + 1 : t;
    for (int64_t s = 0; s < end; ++s) {
      const V ws = Splat<V>(w[s]);
      const float* us = u + s * head_dim + col;
      for (int v = 0; v < kVectors; ++v) {
        // Not through a variable: then GCC 12 lets the plain level read rows before they are
        // stored.
        sum[v] = kSubtract ? NegMulAdd(ws, LoadAs<V>(us + v * kLanesOf<V>), sum[v])
                           : MulAdd(ws, LoadAs<V>(us + v * kLanesOf<V>), sum[v]);
      }
    }
    for (int v = 0; v < kVectors; ++v) Store(x + t * x_stride + col + v * kLanesOf<V>, sum[v]);
  }
}

template <bool kInclusive, bool kSubtract>
inline void Triangular(const float* weight, const float* u, float* x, int64_t x_stride, int64_t n,
                       int64_t head_dim) {
  int64_t col = 0;
  if constexpr (SWITCHYARD_SIMD_AVX512) {
    for (; col + 8 * kWideLanes <= head_dim; col += 8 * kWideLanes) {
      TriangularColumns<Wide, 8, kInclusive, kSubtract>(weight, u, x, x_stride, n, head_dim, col);
    }
  }
  for (; col + 8 * kLanes <= head_dim; col += 8 * kLanes) {
    TriangularColumns<F8, 8, kInclusive, kSubtract>(weight, u, x, x_stride, n, head_dim, col);
  }
  for (; col < head_dim; col += kLanes) {
    TriangularColumns<F8, 1, kInclusive, kSubtract>(weight, u, x, x_stride, n, head_dim, col);
  }
}

// Log decays between the rows of a chunk. Sums are kept in double: they reach thousands, of which a
// difference of size 1 must keep the precision of a float.
struct LogDecays {
  double total[kPageTokens];  // up to row t, without rows that forget everything
  int64_t cut[kPageTokens];   // the last row up to t whose log decay is -inf; -1 = none

  LogDecays(const float* log_decay, int64_t n) {
    double sum = 0;
    int64_t last_cut = -1;
    for (int64_t t = 0; t < n; ++t) {
      // Kept out of the sum: -inf minus -inf would be no number.
      if (log_decay[t] == -HUGE_VALF) {
        last_cut = t;
      } else {
        sum += static_cast<double>(log_decay[t]);
      }
      total[t] = sum;
      cut[t] = last_cut;
    }
  }
  // G_t - G_s for s <= t.
  float Since(int64_t s, int64_t t) const {
    return s < cut[t] ? -HUGE_VALF : static_cast<float>(total[t] - total[s]);
  }
  // G_t: since the state before the chunk.
  float SinceState(int64_t t) const {
    return cut[t] >= 0 ? -HUGE_VALF : static_cast<float>(total[t]);
  }
};

// With G_t the sum of the log decays up to t, S the state before the chunk:
//   u_t = beta_t (v_t - e^G_t S k_t) - sum_{s<t} A[t,s] u_s,  A = beta_t e^(G_t-G_s) (k_t . k_s)
//   o_t = e^G_t S q_t + sum_{s<=t} P[t,s] u_s,                P = e^(G_t-G_s) (q_t . k_s)
//   S'  = e^G_n S + sum_s e^(G_n-G_s) u_s k_s^T
// Only exponents <= 0 occur.
inline void DeltaChunkHead(const DeltaChunk& c) {
  const int64_t n = c.num_rows, dim = c.head_dim, page = kPageTokens;
  float* transposed_state = c.scratch;                   // [D key, D value]
  float* transposed_key = transposed_state + dim * dim;  // [D, page]
  float* u = transposed_key + dim * page;                // [page, D]
  float* scaled_u = u + page * dim;                      // [page, D]
  float* a = scaled_u + page * dim;                      // [page, page]
  float* p = a + page * page;                            // [page, page]
  float* ratio = p + page * page;                        // [page]
  float* exponent = ratio + page;                        // [page]: G_t - G_s of one t
  const LogDecays log_decays(c.log_decay, n);

  const int64_t padded = (n + kLanes - 1) / kLanes * kLanes;
  for (int64_t i = 0; i < dim; ++i) {
    for (int64_t t = n; t < padded; ++t) transposed_key[i * page + t] = 0;
  }
  TransposeMatrix(c.key, n, dim, transposed_key, page);
  TransposeMatrix(c.state, dim, dim, transposed_state, dim);
  Multiply({n, padded, dim, c.key, dim, 1, transposed_key, page, a, page, false});
  Multiply({n, padded, dim, c.query, dim, 1, transposed_key, page, p, page, false});
  Multiply({n, dim, dim, c.key, dim, 1, transposed_state, dim, u, dim, false});
  Multiply({n, dim, dim, c.query, dim, 1, transposed_state, dim, c.out, c.out_stride, false});

  for (int64_t t = 0; t < n; ++t) {
    const F8 beta = Set(c.beta[t]);
    for (int64_t s = 0; s <= t; ++s) exponent[s] = log_decays.Since(s, t);
    ForEachVector(t + 1, [&]<typename V>(int64_t s, auto load, auto store) {
      const V weight = Exp(load(exponent + s));
      store(a + t * page + s, weight * Splat<V>(c.beta[t]) * load(a + t * page + s));
      store(p + t * page + s, weight * load(p + t * page + s));
    });
    const F8 decay = Exp(Set(log_decays.SinceState(t)));
    const float* value = c.value + t * c.value_stride;
    float* out = c.out + t * c.out_stride;
    for (int64_t j = 0; j < dim; j += kLanes) {
      Store(u + t * dim + j, beta * NegMulAdd(decay, Load(u + t * dim + j), Load(value + j)));
      Store(out + j, decay * Load(out + j));
    }
  }
  Triangular<false, true>(a, u, u, dim, n, dim);
  Triangular<true, false>(p, u, c.out, c.out_stride, n, dim);

  for (int64_t s = 0; s < n; ++s) exponent[s] = log_decays.Since(s, n - 1);
  ForEachVector(n, [&]<typename V>(int64_t s, auto load, auto store) {
    store(ratio + s, Exp(load(exponent + s)));
  });
  for (int64_t s = 0; s < n; ++s) Scale(ratio[s], u + s * dim, dim, scaled_u + s * dim);
  const F8 decay = Exp(Set(log_decays.SinceState(n - 1)));
  for (int64_t i = 0; i < dim * dim; i += kLanes) Store(c.state + i, decay * Load(c.state + i));
  Multiply({dim, dim, n, scaled_u, 1, dim, c.key, dim, c.state, dim, true});
}

}  // namespace switchyard::kernels::cpu::SWITCHYARD_SIMD_NAMESPACE
