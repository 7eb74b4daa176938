// What a sequence yields does not depend on its company, on the pieces in which it arrives, or on
// the number of threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine_harness.h"

namespace switchyard::worker {
namespace {

struct Case {
  std::string model;
  Device device;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.model << (c.device.reference ? " reference" : " cpu");
}

std::string Name(const testing::TestParamInfo<Case>& info) {
  return info.param.model + (info.param.device.reference ? "Reference" : "Cpu");
}

// Repeats a fixture's tokens up to `size`: longer than three pages.
std::vector<int32_t> Tokens(const std::string& model, size_t size) {
  const std::vector<int32_t> tokens = ReadTokens(FixturePath(model + ".tokens.txt"));
  std::vector<int32_t> result;
  for (size_t i = 0; i < size; ++i) result.push_back(tokens[(i * 7 + i / 11) % tokens.size()]);
  return result;
}

float MaxDifference(absl::Span<const float> a, absl::Span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float difference = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float d = std::abs(a[i] - b[i]);
    if (!(d <= difference)) difference = d;
  }
  return difference;
}

double RmsDifference(absl::Span<const float> a, absl::Span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) sum += std::pow(double{a[i]} - b[i], 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

class InvarianceTest : public testing::TestWithParam<Case> {
 protected:
  static constexpr size_t kTokens = 210;
  static constexpr int64_t kContext = 256;

  InvarianceTest() : tokens_(Tokens(GetParam().model, kTokens)) {}

  EngineHarness Open(int num_slots = 1, int num_threads = 1) {
    Device device = GetParam().device;
    device.num_threads = num_threads;
    return {FixtureModel(GetParam().model), device, TestOptions(kContext, num_slots)};
  }

  std::vector<int32_t> tokens_;
};

TEST_P(InvarianceTest, ChunksOf64And128GiveTheBitsOfOneChunk) {
  EngineHarness engine = Open();
  const std::vector<float> whole = engine.PrefillLogits(0, tokens_);
  EXPECT_EQ(engine.PrefillLogits(0, tokens_, 64), whole);
  EXPECT_EQ(engine.PrefillLogits(0, tokens_, 128), whole);
}

TEST_P(InvarianceTest, OtherChunksAgreeWithinRounding) {
  EngineHarness engine = Open();
  const std::vector<float> whole = engine.PrefillLogits(0, tokens_);
  // Sums in another order differ by rounding. Where activations are quantised, rounding may put one
  // on the other side of a step, and that moves logits as quantising them at all does: by an RMS of
  // at most 0.1 (golden_test.cc). A wrong state at a border gives an RMS above 1.
  const bool exact =
      GetParam().device.reference || (GetParam().model != "mixed" && GetParam().model != "shards");
  for (const int64_t chunk : {1, 7, 100}) {
    const std::vector<float> pieces = engine.PrefillLogits(0, tokens_, chunk);
    if (exact) {
      EXPECT_LE(MaxDifference(pieces, whole), 1e-3f) << chunk;
    } else {
      EXPECT_LE(RmsDifference(pieces, whole), 0.1) << chunk;
    }
  }
}

class ThreadInvarianceTest : public InvarianceTest {};  // the reference has one thread

TEST_P(ThreadInvarianceTest, ThreadsDoNotMatter) {
  const std::vector<float> one = Open(1, 1).PrefillLogits(0, tokens_);
  EXPECT_EQ(Open(1, 2).PrefillLogits(0, tokens_), one);
  EXPECT_EQ(Open(1, 3).PrefillLogits(0, tokens_), one);
}

// Two sequences prefill and decode beside a third, which must not notice.
TEST_P(InvarianceTest, CompanyDoesNotMatter) {
  const absl::Span<const int32_t> tokens = tokens_;
  const auto generate = [&](bool in_company) {
    EngineHarness engine = Open(3);
    if (in_company) {
      v1::StepPlan before = engine.NewPlan();
      engine.AddStart(before, 0);
      engine.AddChunk(before, 0, 0, tokens.subspan(3, 37)).set_sample(true);
      engine.Run(before);
    }
    std::vector<float> logits;
    const auto keep = [&](const v1::StepResult& result) {
      for (int i = 0; i < result.slots_size(); ++i) {
        if (result.slots(i).slot() != 1) continue;
        const absl::Span<const float> part = LogitsOf(result, i);
        logits.insert(logits.end(), part.begin(), part.end());
      }
    };
    v1::StepPlan plan = engine.NewPlan();
    if (in_company) {
      engine.AddStart(plan, 2);
      engine.AddChunk(plan, 2, 0, tokens.subspan(50, 64));
    }
    engine.AddStart(plan, 1).set_return_logits(true);
    engine.AddChunk(plan, 1, 0, tokens.subspan(0, 128)).set_return_all_logits(true);
    if (in_company) engine.AddDecode(plan, 0);
    keep(engine.Run(plan));
    v1::StepPlan rest = engine.NewPlan();
    engine.AddChunk(rest, 1, 128, tokens.subspan(128, 20)).set_sample(true);
    if (in_company) {
      engine.AddChunk(rest, 2, 64, tokens.subspan(0, 30)).set_sample(true);
      engine.AddDecode(rest, 0);
      engine.AddDecode(rest, 2);
    }
    engine.AddDecode(rest, 1);
    rest.set_run_ahead(12);
    engine.Begin(rest);
    for (uint32_t step = 0; step < 12; ++step) keep(engine.Step(rest, step));
    return logits;
  };
  const std::vector<float> alone = generate(false);
  EXPECT_EQ(generate(true), alone);
}

TEST_P(InvarianceTest, RestoredCheckpointContinuesWithTheBitsOfTheColdRun) {
  const absl::Span<const int32_t> tokens = tokens_;
  EngineHarness engine = Open(2);
  EngineHarness other = Open();
  const auto vocab = static_cast<size_t>(engine.vocab_size());

  // The prompts that share the prefix end a few rows behind the border: the tail may be one row.
  v1::StepPlan first = engine.NewPlan();
  engine.AddStart(first, 0);
  engine.AddChunk(first, 0, 0, tokens.subspan(0, 128)).set_save_checkpoint(2);
  engine.Run(first);
  v1::StepPlan more = engine.NewPlan();  // the state goes on; the checkpoint must not
  engine.AddChunk(more, 0, 128, tokens.subspan(40, 70));
  engine.Run(more);
  for (const size_t tail : {size_t{1}, size_t{2}, size_t{63}, size_t{64}, kTokens - 128}) {
    v1::StepPlan hit = engine.NewPlan();
    engine.AddStart(hit, 1);
    // Shares the pages of the prefix with slot 0, as the coordinator does.
    v1::PageTableUpdate& pages = *hit.mutable_page_tables(0);
    pages.set_pages(0, 3);
    pages.set_pages(1, 2);
    engine.AddRestore(hit, 1, 2, 128);
    engine.AddChunk(hit, 1, 128, tokens.subspan(128, tail)).set_return_all_logits(true);
    const v1::StepResult result = engine.Run(hit);
    const absl::Span<const float> logits = LogitsOf(result);
    const std::vector<float> cold = other.PrefillLogits(0, tokens.subspan(0, 128 + tail));
    EXPECT_EQ(std::vector<float>(logits.begin(), logits.end()),
              std::vector<float>(cold.begin() + static_cast<int64_t>(128 * vocab), cold.end()))
        << tail;
  }
}

// Windows of drafts, of which none to all are accepted, against feeding the accepted tokens only.
TEST_P(InvarianceTest, AcceptedDraftsGiveTheLogitsOfSingleRows) {
  const absl::Span<const int32_t> tokens = tokens_;
  constexpr int64_t kPrompt = 50;
  constexpr size_t kEnd = 140;
  EngineHarness engine = Open(2);
  const auto vocab = static_cast<size_t>(engine.vocab_size());
  engine.PrefillLogits(0, tokens.subspan(0, kPrompt));
  const std::vector<float> single =
      engine.FeedOneByOne(0, kPrompt, tokens.subspan(kPrompt, kEnd - kPrompt));

  engine.PrefillLogits(1, tokens.subspan(0, kPrompt));
  std::vector<float> windows;  // of the accepted rows
  int64_t position = kPrompt;
  for (int round = 0; position < static_cast<int64_t>(kEnd); ++round) {
    const int width = round % 16 + 1;              // 1 to 16 rows
    const int accepted = (round * 5) % width + 1;  // the first row always is
    std::vector<int32_t> window;
    for (int i = 0; i < width; ++i) {
      const bool right = i < accepted;
      const size_t index = static_cast<size_t>(position + i);
      window.push_back(right ? tokens[index] : tokens[(index + 13) % 60]);
    }
    v1::StepPlan plan = engine.NewPlan();
    v1::PrefillChunk& chunk = engine.AddChunk(plan, 1, position, window);
    chunk.set_num_provisional_rows(static_cast<uint32_t>(width - 1));
    chunk.set_return_all_logits(true);
    const v1::StepResult result = engine.Run(plan);
    const absl::Span<const float> logits = LogitsOf(result);
    windows.insert(windows.end(), logits.begin(),
                   logits.begin() + static_cast<int64_t>(static_cast<size_t>(accepted) * vocab));
    position += accepted;
  }
  windows.resize(single.size());
  EXPECT_EQ(windows, single);
}

// Every architecture in F32; block selection; quantised weights.
std::vector<Case> Cases(const Device& device, const std::vector<std::string>& models) {
  std::vector<Case> cases;
  for (const std::string& model : models) cases.push_back({model, device});
  return cases;
}

std::vector<Case> CpuCases() {
  return Cases(kCpu, {"base", "qsa", "mixed", "shards", "qwen3moe", "qwen3next", "qwen35moe"});
}

INSTANTIATE_TEST_SUITE_P(OnReference, InvarianceTest,
                         testing::ValuesIn(Cases(kReference, {"base", "qsa", "qwen3moe",
                                                              "qwen3next", "qwen35moe"})),
                         Name);

INSTANTIATE_TEST_SUITE_P(OnCpu, InvarianceTest, testing::ValuesIn(CpuCases()), Name);

INSTANTIATE_TEST_SUITE_P(OnCpu, ThreadInvarianceTest, testing::ValuesIn(CpuCases()), Name);

}  // namespace
}  // namespace switchyard::worker
