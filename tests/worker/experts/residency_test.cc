// Whole models whose experts do not all fit: the same logits for every budget, and exact counters.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "worker/engine_harness.h"
#include "worker/experts/expert_profile.h"
#include "worker/rank_executor.h"

namespace switchyard::worker {
namespace {

constexpr size_t kTokens = 150;

struct ResidencyCase {
  std::string model;
  Device device;
};

std::string PathOf(const std::string& model) {
  return model == "demo" ? DemoModel() : FixtureModel(model);
}

std::vector<int32_t> TokensOf(const std::string& model, int32_t vocab_size) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < kTokens; ++i) {
    tokens.push_back(static_cast<int32_t>((i * i * 31 + 7 * i + model.size()) % 200) % vocab_size);
  }
  return tokens;
}

WorkerOptions WithBudget(int64_t fast_bytes) {
  WorkerOptions options = TestOptions(256);
  options.residency.fast_bytes = fast_bytes;
  // Restless, so that experts move in a short run.
  options.residency.policy.half_life_tokens = 32;
  options.residency.policy.min_gain = 1;
  options.residency.policy.min_deviations = 0;
  return options;
}

int64_t CountInShard(const ResidencySnapshot& now) {
  return static_cast<int64_t>(now.states.size()) - now.Count(ExpertState::kAbsent);
}

void ExpectConserved(const ResidencySnapshot& now) {
  uint64_t uses = 0;
  for (const uint64_t count : now.uses) uses += count;
  EXPECT_EQ(uses, now.Total().hits + now.Total().misses);
  EXPECT_EQ(now.Count(ExpertState::kFile) + now.Count(ExpertState::kHost) +
                now.Count(ExpertState::kLoading),
            CountInShard(now));
}

class ResidencyTest : public testing::TestWithParam<ResidencyCase> {};

TEST_P(ResidencyTest, SameLogitsForEveryBudgetAndExactCounters) {
  const std::string path = PathOf(GetParam().model);
  EngineHarness whole(path, GetParam().device, TestOptions(256));
  const std::vector<int32_t> tokens = TokensOf(GetParam().model, whole.spec().vocab_size);
  const absl::Span<const int32_t> prompt = absl::MakeConstSpan(tokens).first(100);
  const absl::Span<const int32_t> rest = absl::MakeConstSpan(tokens).subspan(100);
  const std::vector<float> prefill = whole.PrefillLogits(0, prompt);
  const std::vector<float> decode = whole.FeedOneByOne(0, 100, rest);
  const ResidencySnapshot all = whole.executor().rank().residency();
  EXPECT_EQ(all.Total().misses, 0u);
  EXPECT_EQ(all.Count(ExpertState::kHost), CountInShard(all));
  // The last layer computes rows whose logits are wanted: here all of them.
  const auto uses_per_layer =
      static_cast<uint64_t>(kTokens) * static_cast<uint64_t>(whole.spec().moe.top_k);
  for (const ExpertCounters& layer : all.counters) EXPECT_EQ(layer.hits, uses_per_layer);

  for (const double part : {0.0, 0.1, 0.4, 0.7, 0.999, 1.0}) {
    const auto budget = static_cast<int64_t>(part * static_cast<double>(all.budget_bytes));
    EngineHarness tiered(path, GetParam().device, WithBudget(budget));
    RankExecutor& rank = tiered.executor().rank();
    EXPECT_LE(rank.residency().fast_bytes, budget);
    EXPECT_EQ(tiered.PrefillLogits(0, prompt), prefill) << part;
    for (size_t i = 0; i < rest.size(); i += 10) {
      const size_t count = std::min<size_t>(10, rest.size() - i);
      const std::vector<float> logits =
          tiered.FeedOneByOne(0, static_cast<int64_t>(100 + i), rest.subspan(i, count));
      EXPECT_TRUE(std::equal(logits.begin(), logits.end(),
                             decode.begin() + static_cast<int64_t>(i) * whole.vocab_size()))
          << part << ", token " << i;
      rank.experts().WaitForCopies();
    }
    const ResidencySnapshot now = rank.residency();
    ExpectConserved(now);
    EXPECT_EQ(now.uses, all.uses);
    EXPECT_LE(now.fast_bytes, budget);
    EXPECT_EQ(now.Total().misses == 0, part == 1.0) << part;
    if (part == 0) {
      EXPECT_EQ(now.Total().hits, 0u);
    }
    if (part == 0.4) {
      EXPECT_GT(now.Total().promotions, 0u);
      EXPECT_GT(now.Total().hits, 0u);
    }
  }
}

std::vector<ResidencyCase> AllCases() {
  std::vector<ResidencyCase> cases;
  for (const char* model : {"base", "mixed", "shards", "e512", "qwen3moe", "qwen3next", "demo"}) {
    cases.push_back({model, kCpu});
    cases.push_back({model, {.reference = false, .num_threads = 2}});
  }
  cases.push_back({"base", kReference});
  cases.push_back({"mixed", kReference});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, ResidencyTest, testing::ValuesIn(AllCases()), [](const auto& info) {
  return info.param.model + (info.param.device.reference
                                 ? std::string("Reference")
                                 : "Cpu" + std::to_string(info.param.device.num_threads));
});

TEST(ResidencyBudgetTest, BelowOneExpertIsRefusedWithWhatWorks) {
  const auto file = model::GgufFile::Open(FixtureModel("base"));
  ASSERT_TRUE(file.ok());
  const auto spec = model::LoadModelSpec(*file);
  ASSERT_TRUE(spec.ok());
  const auto executor = StepExecutor::Create(*file, *spec, MakeBackend(kCpu), WithBudget(10), {});
  EXPECT_EQ(executor.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(executor.status())),
              testing::HasSubstr("budget is below one expert: host-expert-bytes, got: 10"));
}

TEST(ResidencyBudgetTest, AFileThatIsCutWhileInUseEndsTheStepWithAReason) {
  // A model without n-gram table, which is gathered from the map.
  const std::string path = testing::TempDir() + "residency_cut.gguf";
  std::filesystem::copy_file(FixtureModel("qwen3moe"), path,
                             std::filesystem::copy_options::overwrite_existing);
  {
    EngineHarness engine(path, kCpu, WithBudget(0));
    const std::vector<int32_t> tokens = TokensOf("qwen3moe", engine.spec().vocab_size);
    engine.PrefillLogits(0, tokens);
    std::filesystem::resize_file(path, 4096);
    v1::StepPlan plan = engine.NewPlan();
    engine.AddChunk(plan, 0, kTokens, {1, 2, 3});
    engine.Begin(plan);
    v1::StepResult result;
    const absl::Status status = engine.executor().RunStep(plan, 0, result);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(Message(status)), testing::HasSubstr("truncated while in use"));
  }
  std::filesystem::remove(path);
}

TEST(ResidencyBudgetTest, EarlierUsesDecideWhatIsLoadedFirst) {
  WorkerOptions options = TestOptions(256);
  EngineHarness first(DemoModel(), kCpu, options);
  const std::vector<int32_t> tokens = TokensOf("demo", first.spec().vocab_size);
  first.PrefillLogits(0, tokens);
  const ResidencySnapshot seen = first.executor().rank().residency();
  options.residency.fast_bytes = seen.budget_bytes / 2;
  EngineHarness cold(DemoModel(), kCpu, options);
  cold.PrefillLogits(0, tokens);
  options.residency.earlier_uses = seen.uses;
  EngineHarness warm(DemoModel(), kCpu, options);
  warm.PrefillLogits(0, tokens);
  // The best half of the experts for just these tokens.
  std::vector<uint64_t> best = seen.uses;
  std::sort(best.rbegin(), best.rend());
  uint64_t most = 0;
  for (size_t i = 0; i < best.size() / 2; ++i) most += best[i];
  // Slots are given by uses per byte, and experts of some layers are larger: a few uses of the
  // least used of them are lost.
  const uint64_t warm_hits = warm.executor().rank().residency().Total().hits;
  EXPECT_GE(warm_hits, most - most / 100);
  EXPECT_LT(cold.executor().rank().residency().Total().hits, most - most / 20);
}

TEST(ResidencyProfileTest, IsWrittenAtTheEndAndWarmsTheNextStart) {
  const std::string path = testing::TempDir() + "warm.profile";
  std::filesystem::remove(path);
  WorkerOptions options = TestOptions(256);
  options.residency.profile_path = path;
  std::vector<uint64_t> uses;
  int64_t all_bytes = 0;
  {
    EngineHarness engine(DemoModel(), kCpu, options);
    engine.PrefillLogits(0, TokensOf("demo", engine.spec().vocab_size));
    uses = engine.executor().rank().residency().uses;
    all_bytes = engine.executor().rank().residency().budget_bytes;
  }
  const auto profile = ReadExpertProfile(path);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->uses, uses);
  options.residency.fast_bytes = all_bytes / 2;
  {
    EngineHarness engine(DemoModel(), kCpu, options);
    const ResidencySnapshot now = engine.executor().rank().residency();
    // In each layer those in memory were used at least as much as the others.
    for (int l = 0; l < now.num_layers; ++l) {
      uint64_t least_in = UINT64_MAX, most_out = 0;
      for (int e = 0; e < now.num_experts; ++e) {
        const auto i = static_cast<size_t>(l * now.num_experts + e);
        if (now.states[i] == ExpertState::kHost) least_in = std::min(least_in, uses[i]);
        if (now.states[i] == ExpertState::kFile) most_out = std::max(most_out, uses[i]);
      }
      EXPECT_GE(least_in, most_out) << l;
    }
  }
  // Nothing ran: the profile stays.
  EXPECT_EQ(ReadExpertProfile(path)->uses, uses);
  std::filesystem::remove(path);
}

TEST(ResidencyProfileTest, OfAnotherModelIsRefused) {
  const std::string path = testing::TempDir() + "foreign.profile";
  ASSERT_TRUE(
      WriteExpertProfile(
          path, {.model_digest = "sha256:other", .num_layers = 1, .num_experts = 1, .uses = {1}})
          .ok());
  const auto file = model::GgufFile::Open(FixtureModel("base"));
  const auto spec = model::LoadModelSpec(*file);
  WorkerOptions options = TestOptions(256);
  options.residency.profile_path = path;
  const auto executor = StepExecutor::Create(*file, *spec, MakeBackend(kCpu), options, {});
  EXPECT_EQ(executor.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(executor.status())),
              testing::HasSubstr("expert profile is of another model"));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace switchyard::worker
