// The inner loops of the cpu stages: against formulas in double, and the same bits at all levels.
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/stage_kernels.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/quantize.h"
#include "kernels/rope.h"
#include "testing/double_math.h"
#include "testing/tensor_data.h"

namespace switchyard::kernels::cpu {
namespace {

using fixtures::Doubles;
using fixtures::Random;
using Floats = std::vector<float>;

std::vector<const StageKernels*> AllTables() {
  std::vector<const StageKernels*> tables = {&PortableStageKernels()};
  if (RunsCpuLevel(CpuLevel::kAvx2)) tables.push_back(&Avx2StageKernels());
  if (RunsCpuLevel(CpuLevel::kAvx512Vnni)) tables.push_back(&Avx512StageKernels());
  return tables;
}

// Runs `f` with each table and expects the bits of the first.
Floats SameOnAll(const std::function<Floats(const StageKernels&)>& f) {
  const std::vector<const StageKernels*> tables = AllTables();
  const Floats expected = f(*tables[0]);
  for (const StageKernels* table : tables) {
    const Floats result = f(*table);
    EXPECT_EQ(result.size(), expected.size());
    EXPECT_EQ(0, std::memcmp(result.data(), expected.data(), expected.size() * sizeof(float)))
        << table->name;
  }
  return expected;
}

// ---- elementwise ----------------------------------------------------------------------------

TEST(StageKernelsTest, ExponentialIsAccurateOverItsRange) {
  // The largest element's own exponential is 1, so the others are plain exponentials of x - 0.
  Floats x;
  for (double v = 0; v > -87.2; v -= 0.0137) x.push_back(static_cast<float>(v));
  const Floats e = SameOnAll([&](const StageKernels& k) {
    Floats y = x;
    k.softmax_exp(y.data(), static_cast<int64_t>(y.size()));
    return y;
  });
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp(static_cast<double>(x[i]));
    ASSERT_NEAR(e[i], expected, expected * 0x1p-22) << x[i];
  }
}

TEST(StageKernelsTest, ExponentialVanishesFarBelow) {
  const Floats e = SameOnAll([&](const StageKernels& k) {
    Floats y = {0, -88, -1000, -INFINITY};
    EXPECT_EQ(k.softmax_exp(y.data(), 4), 1);
    return y;
  });
  EXPECT_EQ(e, (Floats{1, 0, 0, 0}));
}

TEST(StageKernelsTest, SiluIsAccurateAndFiniteAtTheEnds) {
  Floats x = {-200, -100, -89, -88, -87.4f, 87.4f, 88, 89, 100, 200};
  for (double v = -40; v < 40; v += 0.0091) x.push_back(static_cast<float>(v));
  const Floats y = SameOnAll([&](const StageKernels& k) {
    Floats z = x;
    k.silu(z.data(), static_cast<int64_t>(z.size()), 1);
    return z;
  });
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = fixtures::Silu(static_cast<double>(x[i]));
    // Below -87.3 the exponential is capped, the result is below 1e-35 either way.
    ASSERT_NEAR(y[i], expected, std::abs(expected) * 0x1p-21 + 1e-35) << x[i];
  }
}

class StageKernelsLengthTest : public testing::TestWithParam<int> {
 protected:
  StageKernelsLengthTest() : random_(static_cast<uint64_t>(GetParam()) + 1) {}
  Floats Normals() { return random_.Normals(GetParam()); }
  double n() const { return GetParam(); }

  Random random_;
};

TEST_P(StageKernelsLengthTest, SumsMatchDouble) {
  const Floats a = Normals(), b = Normals(), weight = Normals();
  const int64_t length = GetParam();
  const Floats dot =
      SameOnAll([&](const StageKernels& k) { return Floats{k.dot(a.data(), b.data(), length)}; });
  const Doubles wide_a = fixtures::ToDoubles(a), wide_b = fixtures::ToDoubles(b);
  double magnitude = 0;
  for (size_t i = 0; i < a.size(); ++i) magnitude += std::abs(wide_a[i] * wide_b[i]);
  EXPECT_NEAR(dot[0], fixtures::DotProduct(wide_a, wide_b), n() * 0x1p-24 * magnitude);

  const Floats norm = SameOnAll([&](const StageKernels& k) {
    Floats y(a.size());
    k.rms_norm(a.data(), weight.data(), length, 1e-6f, y.data());
    return y;
  });
  const Doubles expected = fixtures::GroupedRms(wide_a, fixtures::ToDoubles(weight), 1e-6, length);
  for (size_t i = 0; i < norm.size(); ++i) {
    EXPECT_NEAR(norm[i], expected[i], (n() + 8) * 0x1p-24 * std::abs(expected[i]));
  }
}

TEST_P(StageKernelsLengthTest, ElementsMatchDoubleAndNothingBeyondIsTouched) {
  const Floats a = Normals(), b = Normals(), c = Normals(), d = Normals();
  const int64_t length = GetParam();
  // Runs on a row with two guards behind it.
  const auto on_row = [&](Floats row, const std::function<void(const StageKernels&, float*)>& f) {
    row.push_back(77);
    row.push_back(78);
    Floats result = SameOnAll([&](const StageKernels& k) {
      Floats y = row;
      f(k, y.data());
      return y;
    });
    EXPECT_EQ(result[row.size() - 2], 77);
    EXPECT_EQ(result[row.size() - 1], 78);
    result.resize(row.size() - 2);
    return result;
  };
  const auto check = [&](const Floats& result, const std::function<double(size_t)>& formula) {
    for (size_t i = 0; i < result.size(); ++i) {
      // A few roundings of terms of size up to about 10.
      EXPECT_NEAR(result[i], formula(i), 16 * 0x1p-24 * 10) << i;
    }
  };
  const auto at = [](const Floats& x, size_t i) { return static_cast<double>(x[i]); };
  check(on_row(a,
               [&](const StageKernels& k, float* y) { k.silu_mul(b.data(), c.data(), length, y); }),
        [&](size_t i) { return fixtures::Silu(at(b, i)) * at(c, i); });
  check(on_row(a, [&](const StageKernels& k, float* y) { k.mul_sigmoid(b.data(), length, y); }),
        [&](size_t i) { return at(a, i) * fixtures::Sigmoid(at(b, i)); });
  check(on_row(a, [&](const StageKernels& k, float* y) { k.mul_silu(b.data(), length, y); }),
        [&](size_t i) { return at(a, i) * fixtures::Silu(at(b, i)); });
  check(on_row(a, [&](const StageKernels& k, float* y) { k.silu(y, length, 4); }),
        [&](size_t i) { return fixtures::Silu(at(a, i) / 4); });
  check(on_row(a, [&](const StageKernels& k, float* y) { k.add_scaled(3, b.data(), length, y); }),
        [&](size_t i) { return at(a, i) + 3 * at(b, i); });
  check(on_row(a, [&](const StageKernels& k, float* y) { k.scale(3, b.data(), length, y); }),
        [&](size_t i) { return 3 * at(b, i); });
  check(on_row(a, [&](const StageKernels& k,
                      float* y) { k.sum4(a.data(), b.data(), c.data(), d.data(), length, y); }),
        [&](size_t i) { return at(a, i) + at(b, i) + at(c, i) + at(d, i); });
  // Two streams whose gates and values lie one after the other.
  Floats gates = a, values = c;
  gates.insert(gates.end(), b.begin(), b.end());
  values.insert(values.end(), d.begin(), d.end());
  check(on_row(a,
               [&](const StageKernels& k, float* y) {
                 k.gated_mean(gates.data(), length, values.data(), length, 2, length, y);
               }),
        [&](size_t i) {
          return (fixtures::Sigmoid(at(a, i)) * at(c, i) + fixtures::Sigmoid(at(b, i)) * at(d, i)) /
                 2;
        });
  const float* taps[] = {b.data(), c.data()};
  check(on_row(a, [&](const StageKernels& k,
                      float* y) { k.conv_silu(taps, gates.data(), length, 2, length, y); }),
        [&](size_t i) { return fixtures::Silu(at(a, i) * at(b, i) + at(b, i) * at(c, i)); });
}

INSTANTIATE_TEST_SUITE_P(Lengths, StageKernelsLengthTest,
                         testing::Values(1, 7, 8, 9, 31, 32, 33, 40, 63, 64, 65, 2560));

TEST(StageKernelsTest, RotatesAsTheSharedFormula) {
  for (const int num_rotary_dims : {2, 16, 20, 64}) {
    Random random(2);
    const Floats x = random.Normals(70);
    Floats cosines(static_cast<size_t>(num_rotary_dims / 2)), sines = cosines;
    RopeAngles(12345, num_rotary_dims, 1e7f, cosines.data(), sines.data());
    Doubles expected = fixtures::ToDoubles(x);
    RopeRotate(num_rotary_dims, cosines.data(), sines.data(), expected.data());
    const Floats y = SameOnAll([&](const StageKernels& k) {
      Floats z = x;
      k.rotate(cosines.data(), sines.data(), num_rotary_dims / 2, z.data());
      return z;
    });
    for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], expected[i], 4 * 0x1p-24 * 4);
  }
}

TEST(StageKernelsTest, StoresKeysAsTheQuantizer) {
  Random random(3);
  Floats x = random.Normals(64);
  x[0] = 1e-7f;  // subnormal half
  x[1] = 65520;  // rounds to infinity
  x[2] = -1e9f;
  x[3] = 0x1.002p0f;  // a tie
  for (const auto& [type, dtype] :
       {std::pair{KvType::kF32, DType::kF32}, std::pair{KvType::kF16, DType::kF16},
        std::pair{KvType::kQ8_0, DType::kQ8_0}}) {
    std::vector<std::byte> expected(static_cast<size_t>(RowBytes(dtype, 64)));
    QuantizeRow(dtype, x.data(), 64, expected.data());
    for (const StageKernels* table : AllTables()) {
      std::vector<std::byte> stored(expected.size());
      table->store_kv(type, x.data(), 64, stored.data());
      EXPECT_EQ(stored, expected) << table->name;
    }
  }
}

// ---- delta rule -----------------------------------------------------------------------------

struct DeltaInput {
  int64_t rows, dim;
  Floats state, q, k, v, beta, log_decay;

  DeltaInput(int64_t rows, int64_t dim) : rows(rows), dim(dim) {
    Random random(4);
    state = random.Normals(dim * dim);
    q = random.Normals(rows * dim, 1 / std::sqrt(static_cast<double>(dim)));
    k = random.Normals(rows * dim, 1 / std::sqrt(static_cast<double>(dim)));
    v = random.Normals(rows * dim);
    for (int64_t t = 0; t < rows; ++t) {
      beta.push_back(static_cast<float>(random.Uniform()));
      log_decay.push_back(static_cast<float>(-random.Uniform()));
    }
  }

  // Outputs, then the state, by the recurrence in double.
  Doubles Expected() const {
    Doubles s = fixtures::ToDoubles(state), result;
    for (int64_t t = 0; t < rows; ++t) {
      const auto at = [&](const Floats& x, int64_t i) {
        return static_cast<double>(x[static_cast<size_t>(t * dim + i)]);
      };
      const double decay = std::exp(static_cast<double>(log_decay[static_cast<size_t>(t)]));
      for (int64_t j = 0; j < dim; ++j) {
        double* row = s.data() + j * dim;
        double sk = 0, sq = 0;
        for (int64_t i = 0; i < dim; ++i) sk += (row[i] *= decay) * at(k, i);
        const double err = static_cast<double>(beta[static_cast<size_t>(t)]) * (at(v, j) - sk);
        for (int64_t i = 0; i < dim; ++i) sq += (row[i] += err * at(k, i)) * at(q, i);
        result.push_back(sq);
      }
    }
    result.insert(result.end(), s.begin(), s.end());
    return result;
  }
};

class StageKernelsDeltaTest : public testing::TestWithParam<std::pair<int, int>> {};

// Terms are of size up to about 4, sums have `dim` and, in a chunk, 64 of them; the solution of the
// triangular system passes errors on, about twofold with beta < 1 and keys of length 1.
double DeltaTolerance(int64_t dim) { return 2 * static_cast<double>(dim + 64) * 0x1p-24 * 4; }

TEST_P(StageKernelsDeltaTest, StepsMatchTheRecurrence) {
  const DeltaInput in(GetParam().first, GetParam().second);
  const Floats result = SameOnAll([&](const StageKernels& kernels) {
    Floats state = in.state, out(in.v.size());
    for (int64_t t = 0; t < in.rows; ++t) {
      const int64_t at = t * in.dim;
      kernels.delta_step(state.data(), in.q.data() + at, in.k.data() + at, in.v.data() + at,
                         std::exp(in.log_decay[static_cast<size_t>(t)]),
                         in.beta[static_cast<size_t>(t)], in.dim, out.data() + at);
    }
    out.insert(out.end(), state.begin(), state.end());
    return out;
  });
  const Doubles expected = in.Expected();
  for (size_t i = 0; i < result.size(); ++i) {
    ASSERT_NEAR(result[i], expected[i], DeltaTolerance(in.dim)) << i;
  }
}

Floats RunChunk(const DeltaInput& in) {
  return SameOnAll([&](const StageKernels& kernels) {
    Floats state = in.state, out(in.v.size());
    Floats scratch(static_cast<size_t>(DeltaChunkScratch(in.dim)), NAN);
    DeltaChunk chunk;
    chunk.num_rows = in.rows;
    chunk.head_dim = in.dim;
    chunk.state = state.data();
    chunk.query = in.q.data();
    chunk.key = in.k.data();
    chunk.value = in.v.data();
    chunk.value_stride = in.dim;
    chunk.beta = in.beta.data();
    chunk.log_decay = in.log_decay.data();
    chunk.out = out.data();
    chunk.out_stride = in.dim;
    chunk.scratch = scratch.data();
    kernels.delta_chunk(chunk);
    out.insert(out.end(), state.begin(), state.end());
    return out;
  });
}

void ExpectChunkMatches(const DeltaInput& in) {
  const Floats result = RunChunk(in);
  const Doubles expected = in.Expected();
  for (size_t i = 0; i < result.size(); ++i) {
    ASSERT_NEAR(result[i], expected[i], DeltaTolerance(in.dim)) << i;
  }
}

TEST_P(StageKernelsDeltaTest, ChunkMatchesTheRecurrence) {
  ExpectChunkMatches(DeltaInput(GetParam().first, GetParam().second));
}

// The first half forgets about e^-50 a row, the second remembers: there a sum in float, of size
// 1600, would be off by 1e-4 in each exponent.
TEST_P(StageKernelsDeltaTest, ChunkMatchesTheRecurrenceAfterStrongDecays) {
  DeltaInput in(GetParam().first, GetParam().second);
  for (int64_t t = 0; t < in.rows; ++t) {
    float& log_decay = in.log_decay[static_cast<size_t>(t)];
    log_decay = t <= in.rows / 2 ? log_decay - 50 : log_decay / 16;
  }
  ExpectChunkMatches(in);
}

TEST_P(StageKernelsDeltaTest, ChunkForgetsAllBeforeAnInfiniteDecay) {
  const int64_t rows = GetParam().first;
  for (const int64_t row : {int64_t{0}, rows / 2, rows - 1}) {
    DeltaInput in(rows, GetParam().second);
    in.log_decay[static_cast<size_t>(row)] = -INFINITY;
    ExpectChunkMatches(in);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, StageKernelsDeltaTest,
                         testing::Values(std::pair{1, 8}, std::pair{17, 16}, std::pair{33, 24},
                                         std::pair{63, 128}, std::pair{64, 128},
                                         std::pair{64, 72}));

// ---- attention ------------------------------------------------------------------------------

// Keys and values of some tokens, and queries and gates of some heads.
struct AttendInput {
  int64_t num_heads, dim;
  DType type;
  std::vector<std::byte> stored_keys, stored_values;
  Floats keys, values, query, gate;

  AttendInput(int64_t heads, int64_t head_dim, int64_t tokens, DType dtype)
      : num_heads(heads), dim(head_dim), type(dtype) {
    Random random(5);
    const auto store = [&](std::vector<std::byte>& stored, Floats& values_of) {
      stored = fixtures::Encode("rows", random.Normals(tokens * dim), 1, tokens, dim, type).bytes;
      values_of.resize(static_cast<size_t>(tokens * dim));
      for (int64_t t = 0; t < tokens; ++t) {
        DequantizeRow(type, stored.data() + t * row_bytes(), dim, values_of.data() + t * dim);
      }
    };
    store(stored_keys, keys);
    store(stored_values, values);
    query = random.Normals(num_heads * dim);
    gate = random.Normals(num_heads * dim);
  }

  int64_t row_bytes() const { return RowBytes(type, dim); }

  using Runs = std::vector<std::pair<int64_t, int64_t>>;  // first token, count

  // Attends to the keys of each list of runs, and merges them in order.
  Floats Run(const StageKernels& kernels, const std::vector<Runs>& parts) const {
    Floats sums(query.size(), NAN), other_sums(query.size(), NAN), out(query.size(), NAN);
    const auto heads = static_cast<size_t>(num_heads);
    Floats max(heads), total(heads), other_max(heads), other_total(heads);
    const Attended result = {sums.data(), max.data(), total.data()};
    const Attended other = {other_sums.data(), other_max.data(), other_total.data()};
    Floats scores(heads * kAttendKeys, NAN);
    for (const Runs& runs : parts) {
      std::vector<KeyRun> list;
      AttendTask task;
      static_cast<Attended&>(task) = &runs == parts.data() ? result : other;
      task.type = type == DType::kF32   ? KvType::kF32
                  : type == DType::kF16 ? KvType::kF16
                                        : KvType::kQ8_0;
      task.head_dim = dim;
      task.num_heads = num_heads;
      task.query = query.data();
      for (const auto& [first, count] : runs) {
        list.push_back({stored_keys.data() + first * row_bytes(),
                        stored_values.data() + first * row_bytes(), count});
        task.num_keys += count;
      }
      task.runs = list.data();
      task.num_runs = static_cast<int64_t>(list.size());
      task.scores = scores.data();
      kernels.attend(task);
      if (&runs != parts.data()) kernels.merge_attended(other, num_heads, dim, result);
    }
    kernels.finish_attended(result, num_heads, dim, gate.data(), out.data());
    return out;
  }

  Doubles Expected(int64_t head, const std::vector<Runs>& parts) const {
    Doubles sums(static_cast<size_t>(dim), 0.0);
    double total = 0;
    for (const Runs& runs : parts) {
      for (const auto& [first, count] : runs) {
        for (int64_t row = first; row < first + count; ++row) {
          double score = 0;
          for (int64_t i = 0; i < dim; ++i) {
            score += static_cast<double>(query[static_cast<size_t>(head * dim + i)]) *
                     static_cast<double>(keys[static_cast<size_t>(row * dim + i)]);
          }
          const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
          total += weight;
          for (int64_t i = 0; i < dim; ++i) {
            sums[static_cast<size_t>(i)] +=
                weight * static_cast<double>(values[static_cast<size_t>(row * dim + i)]);
          }
        }
      }
    }
    for (int64_t i = 0; i < dim; ++i) {
      const auto at = static_cast<size_t>(head * dim + i);
      sums[static_cast<size_t>(i)] *= fixtures::Sigmoid(static_cast<double>(gate[at])) / total;
    }
    return sums;
  }

  void ExpectMatches(const std::vector<Runs>& parts) const {
    const Floats out = SameOnAll([&](const StageKernels& kernels) { return Run(kernels, parts); });
    for (int64_t head = 0; head < num_heads; ++head) {
      const Doubles expected = Expected(head, parts);
      for (int64_t i = 0; i < dim; ++i) {
        // Scores of size up to 4 sqrt(dim) / sqrt(dim), sums of `dim` products or up to 300 values;
        // outputs up to 4.
        ASSERT_NEAR(out[static_cast<size_t>(head * dim + i)], expected[static_cast<size_t>(i)],
                    static_cast<double>(dim + 300) * 0x1p-24 * 16);
      }
    }
  }
};

TEST(StageKernelsTest, AttendsOverRunsAsTheFormula) {
  // Between the runs lie rows that must not be read.
  const AttendInput::Runs runs = {{0, 5}, {9, 8}, {40, 1}};
  for (const DType type : {DType::kF32, DType::kF16, DType::kQ8_0}) {
    for (const int num_heads : {1, 2, 3, 4, 5, 6, 7, 12}) {
      for (const int dim : {32, 96, 256})
        AttendInput(num_heads, dim, 48, type).ExpectMatches({runs});
    }
  }
  for (const int dim : {8, 24, 72}) AttendInput(3, dim, 48, DType::kF16).ExpectMatches({runs});
}

TEST(StageKernelsTest, AttendsToPartsAsToTheWhole) {
  const AttendInput in(3, 32, 300, DType::kF16);
  in.ExpectMatches({{{0, kAttendKeys}}, {{kAttendKeys, 44}}});
  in.ExpectMatches({{{7, 1}}, {{100, 15}}, {{200, 64}}});
}

TEST(StageKernelsTest, OneKeyIsItsValue) {
  const AttendInput in(2, 32, 4, DType::kF32);
  const Floats out = SameOnAll([&](const StageKernels& kernels) {
    return in.Run(kernels, {{{2, 1}}});
  });
  for (size_t i = 0; i < out.size(); ++i) {
    const double value = in.values[64 + i % 32];
    // The sigmoid's relative error is a few roundings.
    EXPECT_NEAR(out[i], value * fixtures::Sigmoid(static_cast<double>(in.gate[i])),
                std::fabs(value) * 0x1p-21);
  }
}

}  // namespace
}  // namespace switchyard::kernels::cpu
