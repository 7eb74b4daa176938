// The whole engine against recorded logits of small models with every part of their architecture.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine_harness.h"

namespace switchyard::worker {
namespace {

// Reads a fixture's expected results.
struct Expected {
  explicit Expected(const std::string& name)
      : tokens(ReadTokens(FixturePath(name + ".tokens.txt"))),
        logits(ReadFloats(FixturePath(name + ".logits.f32"))),
        blocks(ReadFloats(FixturePath(name + ".blocks.f32"))),
        greedy(ReadTokens(FixturePath(name + ".greedy.txt"))) {}
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // [tokens, vocab_size]
  std::vector<float> blocks;  // [num_layers, num_streams * hidden_size]
  std::vector<int32_t> greedy;
};

int64_t ContextFor(const Expected& expected) {
  return static_cast<int64_t>(expected.tokens.size() + expected.greedy.size());
}

float MaxDifference(absl::Span<const float> a, absl::Span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float difference = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    // Not std::max: a NaN must not get lost.
    const float d = std::abs(a[i] - b[i]);
    if (!(d <= difference)) difference = d;
  }
  return difference;
}

std::vector<float> ReadGaps(const std::string& name) {
  std::ifstream stream(FixturePath(name + ".gaps.txt"));
  std::vector<float> gaps(std::istream_iterator<float>(stream), {});
  EXPECT_EQ(gaps.size(), 32u);
  return gaps;
}

// Prefills in chunks, of which only the last samples, and decodes with run-ahead.
std::vector<int32_t> Continue(EngineHarness& engine, const Expected& expected) {
  constexpr size_t kChunk = 512;
  const absl::Span<const int32_t> tokens = expected.tokens;
  std::vector<int32_t> ids;
  for (size_t first = 0; first < tokens.size(); first += kChunk) {
    const bool last = first + kChunk >= tokens.size();
    v1::StepPlan plan = engine.NewPlan();
    if (first == 0) {
      engine.AddStart(plan, 0).set_max_new_tokens(static_cast<uint32_t>(expected.greedy.size()));
    }
    engine.AddChunk(plan, 0, static_cast<int64_t>(first), tokens.subspan(first, kChunk))
        .set_sample(last);
    if (last) {
      engine.AddDecode(plan, 0);
      plan.set_run_ahead(1000);
    }
    engine.Begin(plan);
    for (uint32_t step = 0;; ++step) {
      const v1::StepResult result = engine.Step(plan, step);
      for (const uint32_t id : result.slots(0).token_ids()) ids.push_back(static_cast<int32_t>(id));
      if (engine.executor().HasStepAfter(plan, step)) continue;
      EXPECT_EQ(result.slots(0).stop(), last ? v1::SLOT_STOP_LENGTH : v1::SLOT_STOP_UNSPECIFIED);
      break;
    }
  }
  return ids;
}

class GoldenTest : public testing::TestWithParam<std::string> {};

// A float32 evaluation of these models differs from the recorded float64 results by at most 1e-4;
// the rest allows for another order of the sums.
constexpr float kExactTolerance = 1e-3f;

TEST_P(GoldenTest, ReferenceGivesTheRecordedLogits) {
  const Expected expected(GetParam());
  EngineHarness engine(FixtureModel(GetParam()), kReference, TestOptions(ContextFor(expected)));
  const std::vector<float> logits = engine.PrefillLogits(0, expected.tokens);
  EXPECT_LE(MaxDifference(logits, expected.logits), kExactTolerance);
}

TEST_P(GoldenTest, ReferenceContinuesAsRecorded) {
  const Expected expected(GetParam());
  EngineHarness engine(FixtureModel(GetParam()), kReference, TestOptions(ContextFor(expected)));
  EXPECT_EQ(Continue(engine, expected), expected.greedy);
}

// Layer by layer, so that a fault shows where it is.
TEST_P(GoldenTest, ReferenceGivesTheRecordedResiduals) {
  const Expected expected(GetParam());
  EngineHarness engine(FixtureModel(GetParam()), kReference, TestOptions(ContextFor(expected)));
  const auto wide = static_cast<size_t>(engine.spec().num_residual_streams) *
                    static_cast<size_t>(engine.spec().hidden_size);
  std::vector<float> residuals(expected.blocks.size());
  engine.executor().forward().set_layer_observer([&](int layer, MatrixView<const float> residual) {
    std::copy_n(residual.row(residual.rows - 1), wide,
                residuals.begin() + layer * static_cast<int64_t>(wide));
  });
  engine.PrefillLogits(0, expected.tokens);
  for (size_t begin = 0; begin < residuals.size(); begin += wide) {
    double difference = 0, total = 0;
    for (size_t i = begin; i < begin + wide; ++i) {
      difference += std::pow(residuals[i] - expected.blocks[i], 2);
      total += std::pow(expected.blocks[i], 2);
    }
    // Float evaluations differ by a relative RMS of 2e-7 after the first layer and 4e-6 after the
    // eighth; the margin of 10 is that of the logits.
    EXPECT_LE(std::sqrt(difference / total), 4e-5) << "layer " << begin / wide;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, GoldenTest,
                         testing::Values("base", "base_eos", "mixed", "split", "shards", "qsa",
                                         "qsa_ties", "qsa_2048", "e512", "mtp", "qwen3moe",
                                         "qwen3next", "qwen35moe"));

// Differences of two [rows, vocab_size] arrays of logits.
struct Differences {
  double max = 0;
  double rms = 0;
  double mean_kl = 0;  // of the softmax distributions, in nats; expected ones first
};

Differences Compare(absl::Span<const float> logits, absl::Span<const float> expected,
                    size_t vocab_size) {
  Differences result;
  EXPECT_EQ(logits.size(), expected.size());
  const auto log_total = [](absl::Span<const float> row) {
    double total = 0;
    for (const float logit : row) total += std::exp(double{logit});
    return std::log(total);
  };
  for (size_t begin = 0; begin < expected.size(); begin += vocab_size) {
    const absl::Span<const float> got = logits.subspan(begin, vocab_size);
    const absl::Span<const float> want = expected.subspan(begin, vocab_size);
    const double got_total = log_total(got), want_total = log_total(want);
    for (size_t i = 0; i < vocab_size; ++i) {
      const double d = std::abs(double{got[i]} - want[i]);
      if (!(d <= result.max)) result.max = d;  // a NaN must not get lost
      result.rms += d * d;
      const double want_log = want[i] - want_total;
      result.mean_kl += std::exp(want_log) * (want_log - (got[i] - got_total));
    }
  }
  const auto count = static_cast<double>(expected.size());
  result.rms = std::sqrt(result.rms / count);
  result.mean_kl /= count / static_cast<double>(vocab_size);
  return result;
}

Differences CompareOn(const std::string& name, const Device& device, kernels::KvType kv_type) {
  const Expected expected(name);
  WorkerOptions options = TestOptions(ContextFor(expected));
  options.kv_type = kv_type;
  EngineHarness engine(FixtureModel(name), device, options);
  return Compare(engine.PrefillLogits(0, expected.tokens), expected.logits,
                 static_cast<size_t>(engine.vocab_size()));
}

// F32 weights are multiplied with activations that are not rounded.
class CpuFloatTest : public testing::TestWithParam<std::string> {};

TEST_P(CpuFloatTest, GivesTheRecordedLogits) {
  EXPECT_LE(CompareOn(GetParam(), kCpu, kernels::KvType::kF32).max, kExactTolerance);
}

TEST_P(CpuFloatTest, ContinuesAsRecorded) {
  const Expected expected(GetParam());
  EngineHarness engine(FixtureModel(GetParam()), kCpu, TestOptions(ContextFor(expected)));
  EXPECT_EQ(Continue(engine, expected), expected.greedy);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CpuFloatTest,
                         testing::Values("base", "base_eos", "qsa", "qsa_ties", "qsa_2048", "e512",
                                         "mtp", "qwen3moe", "qwen3next", "qwen35moe"));

// Products with quantised weights round their activations to 8 bits.
class CpuQuantisedTest : public testing::TestWithParam<std::string> {};

TEST_P(CpuQuantisedTest, StaysWithinTheNoiseOfEightBitActivations) {
  const Differences differences = CompareOn(GetParam(), kCpu, kernels::KvType::kF32);
  RecordProperty("rms", std::to_string(differences.rms));
  RecordProperty("mean_kl", std::to_string(differences.mean_kl));
  // Another engine that rounds activations to 8 bits measures RMS 0.029 to 0.038 and mean KL 4e-4
  // to 8e-4 on these files, at a deviation of the logits of 2.2. A wrong scale or a skipped block
  // gives an RMS above 1.
  EXPECT_LE(differences.rms, 0.1);
  EXPECT_LE(differences.mean_kl, 3e-3);
}

TEST_P(CpuQuantisedTest, ChoosesTheRecordedIdsWhereTheGapIsWide) {
  const Expected expected(GetParam());
  const std::vector<float> gaps = ReadGaps(GetParam());
  EngineHarness engine(FixtureModel(GetParam()), kCpu, TestOptions(ContextFor(expected)));
  // The recorded ids are fed, so that one flip does not hide the rest.
  std::vector<float> logits = engine.PrefillLogits(0, expected.tokens);
  const std::vector<float> rest =
      engine.FeedOneByOne(0, static_cast<int64_t>(expected.tokens.size()),
                          absl::MakeSpan(expected.greedy).subspan(0, expected.greedy.size() - 1));
  const auto vocab = static_cast<size_t>(engine.vocab_size());
  logits.erase(logits.begin(), logits.end() - static_cast<int64_t>(vocab));
  logits.insert(logits.end(), rest.begin(), rest.end());
  int num_wide = 0;
  for (size_t i = 0; i < expected.greedy.size(); ++i) {
    if (gaps[i] <= 0.3f) continue;
    ++num_wide;
    EXPECT_EQ(ArgMax(absl::MakeSpan(logits).subspan(i * vocab, vocab)), expected.greedy[i])
        << "step " << i << ", gap " << gaps[i];
  }
  EXPECT_GT(num_wide, 15);  // of 32, or the test says little
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CpuQuantisedTest, testing::Values("mixed", "split", "shards"));

struct KvCase {
  const char* name;
  const char* model;
  kernels::KvType type;
  double rms;  // bound
};

std::ostream& operator<<(std::ostream& out, const KvCase& c) { return out << c.name; }

class KvTypeTest : public testing::TestWithParam<KvCase> {};

TEST_P(KvTypeTest, CostsAsMuchAsItsRounding) {
  const KvCase& c = GetParam();
  for (const Device& device : {kReference, kCpu}) {
    const Differences differences = CompareOn(c.model, device, c.type);
    std::printf("%s, %s: rms %.5f, max %.5f, mean KL %.2e\n", c.name,
                device.reference ? "reference" : "cpu", differences.rms, differences.max,
                differences.mean_kl);
    EXPECT_LE(differences.rms, c.rms);
    EXPECT_GT(differences.rms, 1e-5);  // above F32 rounding: the type was used
  }
}

// F16: another engine measures a largest difference of 0.003 to 0.008 on the models of 64 and 200
// tokens (RMS below a fourth of that), and RMS 0.0019 on the one of 2200, where a near tie of a
// router moves one position by 0.28.
// Q8_0: the step is max / 127 of 32 values, an RMS error of 2^-7.5 / sqrt(3) of a typical value
// when the largest of 32 is 2.5 times as large; F16 has 2^-12.5 / sqrt(3). So 32 times the F16
// figure of the same model, 0.0008, and half as much again. Models with block selection are left
// out: small changes of a layer's input choose other blocks, which is no measure of the cache's
// rounding.
INSTANTIATE_TEST_SUITE_P(Types, KvTypeTest,
                         testing::Values(KvCase{"BaseF16", "base", kernels::KvType::kF16, 0.002},
                                         KvCase{"QsaF16", "qsa", kernels::KvType::kF16, 0.002},
                                         KvCase{"Qsa2048F16", "qsa_2048", kernels::KvType::kF16,
                                                0.004},
                                         KvCase{"BaseQ80", "base", kernels::KvType::kQ8_0, 0.04}));

}  // namespace
}  // namespace switchyard::worker
