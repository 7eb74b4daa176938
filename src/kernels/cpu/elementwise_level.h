// Norms, activations, softmax, rotation and convolution on rows of floats. Level code: see simd.h.
#pragma once

#include <cstddef>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/quant/quantize.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::cpu::SWITCHYARD_SIMD_NAMESPACE {

// Four chains of eight lanes: chain j takes the vectors j, j + 4, ...; the rest goes to chain 0.
inline float Dot(const float* a, const float* b, int64_t n) {
  F8 s0 = Zero(), s1 = Zero(), s2 = Zero(), s3 = Zero();
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    s0 = MulAdd(Load(a + i), Load(b + i), s0);
    s1 = MulAdd(Load(a + i + 8), Load(b + i + 8), s1);
    s2 = MulAdd(Load(a + i + 16), Load(b + i + 16), s2);
    s3 = MulAdd(Load(a + i + 24), Load(b + i + 24), s3);
  }
  ForEachEight(n - i, [&](int64_t j, auto load, auto) {
    s0 = MulAdd(load(a + i + j), load(b + i + j), s0);
  });
  return Sum((s0 + s1) + (s2 + s3));
}

inline void RmsNorm(const float* x, const float* weight, int64_t n, float eps, float* out) {
  const float scale = 1.0f / sqrtf(Dot(x, x, n) / static_cast<float>(n) + eps);
  ForEachVector(n, [&]<typename V>(int64_t i, auto load, auto store) {
    store(out + i, load(x + i) * Splat<V>(scale) * load(weight + i));
  });
}

inline void SiluDivided(float* x, int64_t n, float divisor) {
  ForEachVector(n, [&]<typename V>(int64_t i, auto load, auto store) {
    store(x + i, Silu(load(x + i) / Splat<V>(divisor)));
  });
}

inline void SiluMul(const float* gate, const float* up, int64_t n, float* out) {
  ForEachVector(n, [&]<typename V>(int64_t i, auto load, auto store) {
    store(out + i, Silu(load(gate + i)) * load(up + i));
  });
}

inline void MulSigmoid(const float* gate, int64_t n, float* x) {
  ForEachVector(n, [&]<typename V>(int64_t i, auto load, auto store) {
    store(x + i, load(x + i) * Sigmoid(load(gate + i)));
  });
}

inline void MulSilu(const float* gate, int64_t n, float* x) {
  ForEachVector(n, [&]<typename V>(int64_t i, auto load, auto store) {
    store(x + i, load(x + i) * Silu(load(gate + i)));
  });
}

inline void AddScaled(float a, const float* x, int64_t n, float* y) {
  ForEachVector(n, [&]<typename V>(int64_t i, auto load, auto store) {
    store(y + i, MulAdd(Splat<V>(a), load(x + i), load(y + i)));
  });
}

inline void Scale(float a, const float* x, int64_t n, float* out) {
  ForEachVector(n, [&]<typename V>(int64_t i, auto load, auto store) {
    store(out + i, Splat<V>(a) * load(x + i));
  });
}

inline void SumFour(const float* a, const float* b, const float* c, const float* d, int64_t n,
                    float* y) {
  ForEachVector(n, [&]<typename V>(int64_t i, auto load, auto store) {
    store(y + i, (load(a + i) + load(b + i)) + (load(c + i) + load(d + i)));
  });
}

inline void GatedMean(const float* gate, int64_t gate_stride, const float* x, int64_t x_stride,
                      int num_streams, int64_t n, float* u) {
  const float mean = 1.0f / static_cast<float>(num_streams);
  ForEachVector(n, [&]<typename V>(int64_t i, auto load, auto store) {
    V sum = Splat<V>(0);
    for (int s = 0; s < num_streams; ++s) {
      sum = MulAdd(Sigmoid(load(gate + s * gate_stride + i)), load(x + s * x_stride + i), sum);
    }
    store(u + i, sum * Splat<V>(mean));
  });
}

inline float SoftmaxExp(float* x, int64_t n) {
  float max = x[0];
  for (int64_t i = 1; i < n; ++i) max = x[i] > max ? x[i] : max;
  const F8 top = Set(max);
  F8 sum = Zero();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const F8 e = Exp(Load(x + i) - top);
    Store(x + i, e);
    sum = sum + e;
  }
  if (i < n) {
    // Unused lanes must add nothing: their exponentials are dropped by the partial store and load.
    StorePartial(x + i, Exp(LoadPartial(x + i, n - i) - top), n - i);
    sum = sum + LoadPartial(x + i, n - i);
  }
  return Sum(sum);
}

inline void Rotate(const float* cosine, const float* sine, int64_t half, float* x) {
  ForEachVector(half, [&]<typename V>(int64_t i, auto load, auto store) {
    const V a = load(x + i), b = load(x + half + i);
    const V c = load(cosine + i), s = load(sine + i);
    store(x + i, NegMulAdd(b, s, a * c));
    store(x + half + i, MulAdd(a, s, b * c));
  });
}

inline void ConvSilu(const float* const* taps, const float* weight, int64_t weight_stride,
                     int num_taps, int64_t n, float* out) {
  ForEachVector(n, [&]<typename V>(int64_t i, auto load, auto store) {
    V sum = Splat<V>(0);
    for (int tap = 0; tap < num_taps; ++tap) {
      sum = MulAdd(load(weight + tap * weight_stride + i), load(taps[tap] + i), sum);
    }
    store(out + i, Silu(sum));
  });
}

inline void StoreKv(KvType type, const float* x, int64_t n, std::byte* out) {
  switch (type) {
    case KvType::kF32:
      std::memcpy(out, x, static_cast<size_t>(n) * sizeof(float));
      return;
    case KvType::kF16:
      for (int64_t i = 0; i < n; i += kLanes) {
        StoreHalf(reinterpret_cast<uint16_t*>(out) + i, Load(x + i));
      }
      return;
    case KvType::kQ8_0:
      QuantizeRow(DType::kQ8_0, x, n, out);
      return;
  }
}

}  // namespace switchyard::kernels::cpu::SWITCHYARD_SIMD_NAMESPACE
