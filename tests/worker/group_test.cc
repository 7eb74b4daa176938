// Several ranks against one: the topology does not change the text.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/rank_group.h"

namespace switchyard::worker {
namespace {

using placement::PlacementWish;

namespace pv1 = placement::v1;

constexpr int kNumNew = 32;

struct Topology {
  std::string name;
  PlacementWish wish;
  bool same_bits = true;  // as one rank; else another order of the sums
};

void PrintTo(const Topology& topology, std::ostream* out) { *out << topology.name; }

PlacementWish Wish(pv1::Mode mode, int world_size) {
  PlacementWish wish;
  wish.mode = mode;
  wish.world_size = world_size;
  return wish;
}

// Whether the ranks cut at borders of virtual shards.
bool CutsAtShards(int world_size) { return world_size == 2 || world_size == 4; }

Topology LayerSplit(int world_size) {
  return {"LayerSplit" + std::to_string(world_size), Wish(pv1::MODE_LAYER_SPLIT, world_size)};
}
Topology Experts(int world_size, pv1::Partition partition, pv1::DensePart dense) {
  const bool is_whole = partition == pv1::PARTITION_WHOLE;
  Topology topology;
  topology.name = std::string(is_whole ? "Whole" : "Sliced") +
                  (dense == pv1::DENSE_PART_OWNER ? "Owner" : "") + std::to_string(world_size);
  topology.wish = Wish(pv1::MODE_EXPERT_PARALLEL, world_size);
  topology.wish.partition = partition;
  topology.wish.dense = dense;
  topology.same_bits = !is_whole && CutsAtShards(world_size);
  return topology;
}
Topology Tensors(int world_size) {
  return {"Tensors" + std::to_string(world_size),
          Wish(pv1::MODE_TENSOR_EXPERT_PARALLEL, world_size), CutsAtShards(world_size)};
}

std::vector<Topology> Topologies() {
  std::vector<Topology> all;
  for (const int n : {2, 3, 4, 8}) {
    all.push_back(LayerSplit(n));
    for (const auto partition : {pv1::PARTITION_SLICED, pv1::PARTITION_WHOLE}) {
      all.push_back(Experts(n, partition, pv1::DENSE_PART_REPLICATED));
      all.push_back(Experts(n, partition, pv1::DENSE_PART_OWNER));
    }
    all.push_back(Tensors(n));
  }
  return all;
}

struct Outcome {
  RankGroup::Continuation out;
  int64_t vocab_size = 0;
};

// The demo model is the one with the formats of a real file and weights that were trained; its text
// is one of its recorded answers (tests/data/demo/expected.json).
std::vector<int32_t> TokensOf(const std::string& fixture) {
  if (fixture != "demo") return ReadTokens(FixturePath(fixture + ".tokens.txt"));
  std::ifstream file(SWITCHYARD_TEST_DATA "/demo/expected.json");
  const nlohmann::json answer = nlohmann::json::parse(file)["greedy"][0];
  std::vector<int32_t> tokens = answer["prompt_ids"];
  for (const int32_t id : answer["continuation_ids"]) tokens.push_back(id);
  return tokens;
}
std::string PathOf(const std::string& fixture) {
  return fixture == "demo" ? DemoModel() : FixtureModel(fixture);
}

Outcome RunTopology(const std::string& fixture, const PlacementWish& wish) {
  const std::vector<int32_t> tokens = TokensOf(fixture);
  const auto context = static_cast<int64_t>(tokens.size()) + kNumNew;
  RankGroup group(PathOf(fixture), kCpu, TestOptions(context), wish);
  return {group.Continue(tokens, kNumNew, 64), group.spec().vocab_size};
}

const Outcome& Single(const std::string& fixture) {
  static auto& outcomes = *new std::map<std::string, Outcome>;
  const auto known = outcomes.find(fixture);
  if (known != outcomes.end()) return known->second;
  return outcomes[fixture] = RunTopology(fixture, {});
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// Whether the model's products are exact but for rounding: all of its weights are floats.
bool IsF32(const std::string& fixture) {
  const auto file = model::GgufFile::Open(PathOf(fixture));
  return std::all_of(file->tensors().begin(), file->tensors().end(),
                     [](const model::TensorInfo& t) { return Traits(t.dtype).block_length == 1; });
}

float Gap(absl::Span<const float> logits) {
  std::vector<float> sorted(logits.begin(), logits.end());
  std::nth_element(sorted.begin(), sorted.begin() + 1, sorted.end(), std::greater<>());
  return sorted[0] - sorted[1];
}

class GroupTest : public testing::TestWithParam<std::tuple<std::string, Topology>> {};

TEST_P(GroupTest, GivesWhatOneRankGives) {
  const auto& [fixture, topology] = GetParam();
  const auto file = model::GgufFile::Open(PathOf(fixture));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto spec = model::LoadModelSpec(*file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto placement = placement::MakePlacement(*spec, topology.wish);
  if (!placement.ok()) {  // too few layers, or formats that forbid the cut
    EXPECT_EQ(placement.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(placement.status().message()), testing::HasSubstr("; at most "));
    return;
  }

  const Outcome& single = Single(fixture);
  const Outcome several = RunTopology(fixture, topology.wish);
  ASSERT_EQ(several.out.logits.size(), single.out.logits.size());
  if (topology.same_bits) {
    EXPECT_TRUE(SameBits(several.out.logits, single.out.logits));
    EXPECT_EQ(several.out.ids, single.out.ids);
    return;
  }
  // Sums in another order. With floats that is a rounding of the last place here and there; with
  // quantised activations a value on a border may fall to the other side, which moves others.
  double sum = 0, norm = 0;
  float largest = 0, difference = 0;
  for (size_t i = 0; i < single.out.logits.size(); ++i) {
    const float d = std::abs(several.out.logits[i] - single.out.logits[i]);
    if (!(d <= difference)) difference = d;
    largest = std::max(largest, std::abs(single.out.logits[i]));
    sum += static_cast<double>(d) * d;
    norm += static_cast<double>(single.out.logits[i]) * single.out.logits[i];
  }
  if (IsF32(fixture)) {
    EXPECT_LE(difference, 1e-4f * largest);
  } else {
    EXPECT_LE(std::sqrt(sum / norm), 0.01);
  }
  // The choice after the prompt, unless it is a close one.
  const auto vocab_size = static_cast<size_t>(single.vocab_size);
  const absl::Span<const float> last = absl::Span<const float>(single.out.logits).last(vocab_size);
  if (Gap(last) <= 0.05f) return;
  EXPECT_EQ(several.out.ids.front(), single.out.ids.front());
}

// ---- several sequences ------------------------------------------------------------------------

// What each slot got: its tokens, and the logits of its prompt.
using Outcomes = std::map<uint32_t, RankGroup::Continuation>;

class Script {
 public:
  static constexpr uint64_t kIncarnation = 1000;  // above those of RankGroup::Continue()

  explicit Script(RankGroup& group) : group_(group) {}

  v1::StepPlan& Plan(uint32_t run_ahead = 1) {
    plans_.push_back(group_.NewPlan());
    plans_.back().set_run_ahead(run_ahead);
    return plans_.back();
  }
  v1::SlotStart& Start(v1::StepPlan& plan, uint32_t slot, uint32_t max_new_tokens,
                       int pages_per_slot) {
    v1::SlotStart& start = *plan.add_starts();
    start.set_slot(slot);
    start.set_incarnation(kIncarnation);
    start.set_max_new_tokens(max_new_tokens);
    v1::PageTableUpdate& pages = *plan.add_page_tables();
    pages.set_slot(slot);
    for (int i = 0; i < pages_per_slot; ++i) {
      pages.add_pages(slot * static_cast<uint32_t>(pages_per_slot) + static_cast<uint32_t>(i));
    }
    return start;
  }
  // Tokens [begin, end) of the slot's prompt; the last ones of it are sampled after.
  v1::PrefillChunk& Chunk(v1::StepPlan& plan, uint32_t slot, uint32_t begin, uint32_t end,
                          bool sample = false) {
    v1::PrefillChunk& chunk = *plan.add_prefill();
    chunk.set_slot(slot);
    chunk.set_incarnation(kIncarnation);
    chunk.set_first_position(begin);
    const auto vocab_size = static_cast<uint32_t>(group_.spec().vocab_size);
    for (uint32_t t = begin; t < end; ++t) {
      chunk.add_token_ids((t * 7 + slot * 31 + 3) % vocab_size);
    }
    chunk.set_sample(sample);
    chunk.set_return_all_logits(slot == 0);  // of the others only the best are looked at
    return chunk;
  }
  void Decode(v1::StepPlan& plan, std::initializer_list<uint32_t> slots) {
    for (const uint32_t slot : slots) {
      plan.add_decode()->set_slot(slot);
      plan.mutable_decode(plan.decode_size() - 1)->set_incarnation(kIncarnation);
    }
  }

  Outcomes Run() {
    Outcomes outcomes;
    uint64_t last_plan = 0;
    for (const v1::StepResult& result : group_.Run(plans_)) {
      EXPECT_EQ(result.error(), "");
      EXPECT_GE(result.plan(), last_plan);  // in order, and each plan to its end
      last_plan = result.plan();
      std::vector<uint32_t> seen;
      for (const v1::SlotResult& slot : result.slots()) {
        seen.push_back(slot.slot());
        RankGroup::Continuation& out = outcomes[slot.slot()];
        for (const uint32_t id : slot.token_ids()) out.ids.push_back(static_cast<int32_t>(id));
        for (const v1::TokenLogprob& top : slot.top_logprobs()) out.logits.push_back(top.logprob());
        const auto* values = reinterpret_cast<const float*>(slot.logits().data());
        out.logits.insert(out.logits.end(), values, values + slot.logits().size() / sizeof(float));
      }
      std::sort(seen.begin(), seen.end());
      EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());  // once each
    }
    return outcomes;
  }

 private:
  RankGroup& group_;
  std::vector<v1::StepPlan> plans_;
};

// Prompts in chunks beside sequences that decode and end at different times, all plans at once.
Outcomes Converse(const PlacementWish& wish) {
  constexpr int kSlots = 5, kPages = 6;
  WorkerOptions options = TestOptions(kPages * kernels::kPageTokens, kSlots);
  // Masks what would be chosen most.
  for (int32_t id = 100; id < 140; ++id) options.never_sampled.push_back(id);
  RankGroup group(FixtureModel("shards"), kCpu, options, wish);
  Script script(group);
  v1::StepPlan& first = script.Plan();
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    v1::SlotStart& start = script.Start(first, slot, 5 + 9 * slot, kPages);
    v1::SamplingParams& sampling = *start.mutable_sampling();
    sampling.set_seed(slot);
    if (slot == 1 || slot == 2) sampling.set_temperature(1.5f);
    if (slot == 1) sampling.set_top_k(20);
    if (slot == 2) sampling.set_top_p(0.9f);
    if (slot == 3) {
      sampling.set_top_k(40);
      sampling.set_temperature(1);
      for (uint32_t id = 0; id < 20; ++id) start.add_stop_token_ids(id);
      start.set_min_new_tokens(1000);  // no stop: these ids are masked
    }
    if (slot == 4) start.set_num_logprobs(3);
  }
  script.Chunk(first, 0, 0, 64);
  script.Chunk(script.Plan(), 0, 64, 128).set_save_checkpoint(1);
  v1::StepPlan& third = script.Plan();
  script.Chunk(third, 0, 128, 130, true);
  script.Chunk(third, 1, 0, 64, true);
  script.Decode(third, {0, 1});
  v1::StepPlan& fourth = script.Plan();
  script.Chunk(fourth, 2, 0, 256);
  script.Decode(fourth, {0, 1});
  v1::StepPlan& fifth = script.Plan();
  script.Chunk(fifth, 2, 256, 300, true);
  script.Chunk(fifth, 3, 0, 7, true);
  script.Decode(fifth, {0, 1, 2, 3});
  v1::StepPlan& sixth = script.Plan(1000);
  script.Chunk(sixth, 4, 0, 20, true);
  script.Decode(sixth, {0, 1, 2, 3, 4});
  return script.Run();
}

class ConversationTest : public testing::TestWithParam<Topology> {};

TEST_P(ConversationTest, GivesEverySequenceWhatOneRankGives) {
  static const Outcomes& single = *new Outcomes(Converse({}));
  Outcomes several = Converse(GetParam().wish);
  ASSERT_EQ(several.size(), single.size());
  for (const auto& [slot, wanted] : single) {
    EXPECT_EQ(wanted.ids.size(), 5 + 9 * slot);
    EXPECT_TRUE(SameBits(several[slot].logits, wanted.logits)) << slot;
    EXPECT_EQ(several[slot].ids, wanted.ids) << slot;
  }
}

INSTANTIATE_TEST_SUITE_P(Topologies, ConversationTest,
                         testing::Values(LayerSplit(2), LayerSplit(3), LayerSplit(4),
                                         Experts(2, pv1::PARTITION_SLICED,
                                                 pv1::DENSE_PART_REPLICATED),
                                         Experts(4, pv1::PARTITION_SLICED, pv1::DENSE_PART_OWNER),
                                         Tensors(2), Tensors(4)),
                         [](const auto& info) { return info.param.name; });

// Experts that are computed from the file, on ranks that have slices or some of them.
TEST(GroupResidencyTest, EveryBudgetGivesTheSame) {
  const std::vector<int32_t> tokens = TokensOf("shards");
  for (const Topology& topology :
       {LayerSplit(3), Tensors(2), Experts(3, pv1::PARTITION_WHOLE, pv1::DENSE_PART_REPLICATED),
        Experts(2, pv1::PARTITION_SLICED, pv1::DENSE_PART_OWNER)}) {
    WorkerOptions options = TestOptions(512);
    RankGroup all(PathOf("shards"), kCpu, options, topology.wish);
    const RankGroup::Continuation wanted = all.Continue(tokens, 8);
    for (const int64_t budget : {int64_t{0}, int64_t{200000}}) {
      options.residency.fast_bytes = budget;
      RankGroup some(PathOf("shards"), kCpu, options, topology.wish);
      const RankGroup::Continuation got = some.Continue(tokens, 8);
      EXPECT_EQ(got.ids, wanted.ids) << topology.name << " " << budget;
      EXPECT_TRUE(SameBits(got.logits, wanted.logits)) << topology.name << " " << budget;
    }
  }
}

// ---- epochs -------------------------------------------------------------------------------------

std::vector<int32_t> ShardsTokens() { return ReadTokens(FixturePath("shards.tokens.txt")); }

TEST(GroupEpochTest, ANewEpochBeginsWithNothingAndGivesTheSame) {
  RankGroup group(FixtureModel("shards"), kCpu, TestOptions(512), Tensors(2).wish);
  const RankGroup::Continuation first = group.Continue(ShardsTokens(), 8);
  group.NextEpoch();
  const RankGroup::Continuation second = group.Continue(ShardsTokens(), 8);
  EXPECT_EQ(first.ids, second.ids);
  EXPECT_TRUE(SameBits(first.logits, second.logits));
}

// In a step each of the others waits for the one that has gone, wherever it is in the group.
TEST(GroupEpochTest, WhoLosesARankSaysSoAndServesTheNextEpoch) {
  for (const Topology& topology :
       {LayerSplit(3), Tensors(3), Experts(3, pv1::PARTITION_WHOLE, pv1::DENSE_PART_OWNER)}) {
    RankGroup group(FixtureModel("shards"), kCpu, TestOptions(512), topology.wish);
    const RankGroup::Continuation before = group.Continue(ShardsTokens(), 8);
    for (int lost = 0; lost < 3; ++lost) {
      if (lost == group.lead_rank()) continue;
      // As a process that dies: its links end while the others wait for it.
      WorkerOptions options = TestOptions(512);
      options.epoch = static_cast<uint64_t>(lost) + 2;
      ASSERT_TRUE(group.worker(lost).Reset(options).ok());
      Script script(group);
      v1::StepPlan& plan = script.Plan();
      script.Start(plan, 0, 4, 8);
      script.Chunk(plan, 0, 0, 60, true);
      script.Run();
      EXPECT_THAT(group.WaitForLosses(2), testing::Not(testing::Contains(lost))) << topology.name;
      group.NextEpoch();
      const RankGroup::Continuation after = group.Continue(ShardsTokens(), 8);
      EXPECT_EQ(after.ids, before.ids) << topology.name;
    }
  }
}

// ---- ledgers ------------------------------------------------------------------------------------

TEST(GroupLedgerTest, EveryRankTellsWhatItDidAndWhatItReceived) {
  RankGroup group(FixtureModel("shards"), kCpu, TestOptions(512), Tensors(2).wish);
  const model::ModelSpec& spec = group.spec();
  Script script(group);
  v1::StepPlan& plan = script.Plan();
  script.Start(plan, 0, 4, 8);
  script.Chunk(plan, 0, 0, 60, true);
  const std::vector<v1::StepResult> results = group.Run({plan});
  ASSERT_EQ(results.size(), 1u);
  ASSERT_EQ(results[0].ranks_size(), 2);
  for (int rank = 0; rank < 2; ++rank) {
    const v1::RankCost& cost = results[0].ranks(rank);
    EXPECT_EQ(cost.rank(), static_cast<uint32_t>(rank));
    double covered = 0;
    uint64_t peer_bytes = 0;
    for (const v1::StageCost& stage : cost.costs()) {
      covered += stage.seconds();
      peer_bytes += stage.peer_bytes();
    }
    EXPECT_NEAR(covered, cost.seconds(), 1e-6);
    // Two sums a layer, but for the last one's experts, which have one row's less.
    const auto row_bytes = static_cast<uint64_t>(spec.hidden_size) * sizeof(float);
    const auto num_layers = static_cast<uint64_t>(spec.num_layers);
    EXPECT_GE(peer_bytes, (2 * num_layers - 1) * 60 * row_bytes);
    ASSERT_EQ(cost.received_size(), 1);
    EXPECT_EQ(cost.received(0).peer(), static_cast<uint32_t>(1 - rank));
    EXPECT_GE(cost.received(0).bytes(), peer_bytes);
  }
}

// Without it a refusal of everything would pass above.
TEST(GroupRefusalTest, TheModelWithEnoughUnitsIsDividedInEveryMode) {
  const auto file = model::GgufFile::Open(FixtureModel("shards"));
  const auto spec = model::LoadModelSpec(*file);
  for (const Topology& topology : Topologies()) {
    if (topology.wish.world_size > 4) continue;
    const auto placement = placement::MakePlacement(*spec, topology.wish);
    EXPECT_TRUE(placement.ok()) << topology.name << ": " << placement.status();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, GroupTest,
    testing::Combine(testing::Values("base", "base_eos", "mixed", "qsa", "shards", "e512", "split",
                                     "qwen3moe", "qwen3next", "qwen35moe", "demo"),
                     testing::ValuesIn(Topologies())),
    [](const auto& info) { return std::get<0>(info.param) + std::get<1>(info.param).name; });

}  // namespace
}  // namespace switchyard::worker
