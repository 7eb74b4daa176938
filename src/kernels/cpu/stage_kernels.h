// Single-threaded inner loops of the stages other than quantised products: one table of functions
// per instruction set, chosen once at start.
//
// Every function is deterministic per element: the order of its sums depends on the inner length
// only, never on how many rows, heads or keys share a call. All tables give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/stage_types.h"

namespace switchyard::kernels::cpu {

// Consecutive cached tokens of one page and one key/value head: row i of the keys starts at
// keys + i * row bytes, the values alike.
struct KeyRun {
  const std::byte* keys = nullptr;
  const std::byte* values = nullptr;
  int64_t count = 0;
};

// Softmax attention over some keys, not yet divided: sums [num_heads, head_dim] of e^(score - max)
// values, and the exponentials' total.
struct Attended {
  float* sums = nullptr;
  float* max = nullptr;    // [num_heads]
  float* total = nullptr;  // [num_heads]
};

// Keys that one AttendTask may have.
inline constexpr int64_t kAttendKeys = 256;

// Query heads of one row that share a key/value head, over some of its keys.
struct AttendTask : Attended {
  KvType type = KvType::kF16;
  int64_t head_dim = 0;
  int64_t num_heads = 0;
  const float* query = nullptr;  // [num_heads, head_dim]
  const KeyRun* runs = nullptr;
  int64_t num_runs = 0;
  int64_t num_keys = 0;     // sum of the counts, in [1, kAttendKeys]
  float* scores = nullptr;  // scratch [num_heads, kAttendKeys]
};

// One head and up to kPageTokens rows of the chunked delta rule.
struct DeltaChunk {
  int64_t num_rows = 0;
  int64_t head_dim = 0;          // D
  float* state = nullptr;        // [D value, D key]
  const float* query = nullptr;  // [num_rows, D], normalised and scaled
  const float* key = nullptr;    // [num_rows, D], normalised
  const float* value = nullptr;  // rows `value_stride` apart
  int64_t value_stride = 0;
  const float* beta = nullptr;       // [num_rows]
  const float* log_decay = nullptr;  // [num_rows], <= 0; -inf forgets all
  float* out = nullptr;              // rows `out_stride` apart
  int64_t out_stride = 0;
  float* scratch = nullptr;  // DeltaChunkScratch(D) floats
};
// Floats of scratch of one DeltaChunk.
inline constexpr int64_t DeltaChunkScratch(int64_t head_dim) {
  return head_dim * head_dim + 3 * kPageTokens * head_dim + 2 * kPageTokens * (kPageTokens + 1);
}

struct StageKernels {
  const char* name;

  // ---- elementwise --------------------------------------------------------------------------
  float (*dot)(const float* a, const float* b, int64_t n);
  // out = x / sqrt(mean x^2 + eps) * weight; `out` may be `x`.
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* out);
  // x = silu(x / divisor)
  void (*silu)(float* x, int64_t n, float divisor);
  // out = silu(gate) * up; `out` may be either.
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);
  // x *= sigmoid(gate), x *= silu(gate)
  void (*mul_sigmoid)(const float* gate, int64_t n, float* x);
  void (*mul_silu)(const float* gate, int64_t n, float* x);
  // y += a * x
  void (*add_scaled)(float a, const float* x, int64_t n, float* y);
  // out = a * x
  void (*scale)(float a, const float* x, int64_t n, float* out);
  // y = (a + b) + (c + d)
  void (*sum4)(const float* a, const float* b, const float* c, const float* d, int64_t n, float* y);
  // u[i] = mean over s of sigmoid(gate[s * gate_stride + i]) * x[s * x_stride + i]
  void (*gated_mean)(const float* gate, int64_t gate_stride, const float* x, int64_t x_stride,
                     int num_streams, int64_t n, float* u);
  // x = e^(x - max x); returns the sum. n > 0.
  float (*softmax_exp)(float* x, int64_t n);
  // Rotates pairs (i, i + half) by the angles with these cosines and sines.
  void (*rotate)(const float* cosine, const float* sine, int64_t half, float* x);
  // out[c] = silu(sum over i of weight[i * weight_stride + c] * taps[i][c]), i ascending; `out` may
  // be the last tap.
  void (*conv_silu)(const float* const* taps, const float* weight, int64_t weight_stride,
                    int num_taps, int64_t n, float* out);
  // Writes a key or value row of `n` elements in the cache's type.
  void (*store_kv)(KvType type, const float* x, int64_t n, std::byte* out);

  // ---- delta rule ---------------------------------------------------------------------------
  // q = q / sqrt(|q|^2 + 1e-6) / sqrt(D), k = k / sqrt(|k|^2 + 1e-6)
  void (*delta_normalize)(const float* q, const float* k, int64_t head_dim, float* q_out,
                          float* k_out);
  // One token of one head: decay, correct, read. state [D value, D key], D a multiple of 8.
  void (*delta_step)(float* state, const float* q, const float* k, const float* v, float decay,
                     float beta, int64_t head_dim, float* out);
  void (*delta_chunk)(const DeltaChunk& chunk);

  // ---- attention ----------------------------------------------------------------------------
  void (*attend)(const AttendTask& task);
  // Adds what was attended to over other keys.
  void (*merge_attended)(const Attended& from, int64_t num_heads, int64_t head_dim,
                         const Attended& into);
  // out = sums / total, times sigmoid(gate) if there is one. gate and out [num_heads, head_dim].
  void (*finish_attended)(const Attended& attended, int64_t num_heads, int64_t head_dim,
                          const float* gate, float* out);
  // scores[i] = sum over index heads of relu(query_a . key_i), a ascending.
  // query [num_heads, dim]; keys [count, dim], F16 or (wide) F32.
  void (*score_blocks)(const float* query, int64_t num_heads, int64_t dim, const std::byte* keys,
                       bool wide, int64_t count, float* scores);
};

const StageKernels& PortableStageKernels();
// REQUIRES: the CPU has AVX2, FMA and F16C.
const StageKernels& Avx2StageKernels();
// REQUIRES: the CPU has AVX-512 F, BW, DQ and VL.
const StageKernels& Avx512StageKernels();

}  // namespace switchyard::kernels::cpu
