#include "placement/placement.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/status.h"
#include "model/model_summary.h"
#include "placement/placement_models.h"

namespace switchyard::placement {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Refusal(const model::ModelSpec& spec, const PlacementWish& wish) {
  const absl::StatusOr<v1::Placement> placement = MakePlacement(spec, wish);
  EXPECT_EQ(placement.status().code(), absl::StatusCode::kInvalidArgument) << placement.status();
  std::string message(Message(placement.status()));
  EXPECT_EQ(message.find('\n'), std::string::npos);
  return message;
}

std::string CutsRefusal(const model::ModelSpec& spec, int world_size, std::vector<int> cuts) {
  PlacementWish wish;
  wish.mode = v1::MODE_LAYER_SPLIT;
  wish.world_size = world_size;
  wish.layer_cuts = std::move(cuts);
  return Refusal(spec, wish);
}

TEST(PlacementTest, OneWorkerIsSingleWhateverTheMode) {
  const model::Model m = LoadFixture("qwen4exp/base");
  for (PlacementWish wish : AllWishes(1)) {
    const absl::StatusOr<v1::Placement> placement = MakePlacement(m.spec, wish);
    ASSERT_TRUE(placement.ok()) << placement.status();
    EXPECT_EQ(placement->mode(), v1::MODE_SINGLE);
    EXPECT_EQ(LeadRank(*placement), 0);
    EXPECT_EQ(Describe(*placement), "single");
  }
}

TEST(PlacementTest, NamesGoThereAndBack) {
  for (const v1::Mode mode : {v1::MODE_SINGLE, v1::MODE_LAYER_SPLIT, v1::MODE_EXPERT_PARALLEL,
                              v1::MODE_TENSOR_EXPERT_PARALLEL}) {
    EXPECT_EQ(ModeFromName(ModeName(mode)), mode);
  }
  for (const v1::Partition partition : {v1::PARTITION_WHOLE, v1::PARTITION_SLICED}) {
    EXPECT_EQ(PartitionFromName(PartitionName(partition)), partition);
  }
  EXPECT_EQ(ModeFromName("pipeline"), std::nullopt);
  EXPECT_EQ(ModeFromName("unspecified"), std::nullopt);
  EXPECT_EQ(PartitionFromName("unspecified"), std::nullopt);
}

// What MakePlacement() gives must pass the check that every rank makes on its own.
TEST(PlacementTest, WhatIsMadePassesTheCheck) {
  for (const std::string& name : FixtureNames()) {
    const model::Model m = LoadFixture(name);
    for (int world_size = 2; world_size <= 8; ++world_size) {
      for (const PlacementWish& wish : AllWishes(world_size)) {
        const absl::StatusOr<v1::Placement> placement = MakePlacement(m.spec, wish);
        if (!placement.ok()) continue;
        EXPECT_TRUE(CheckPlacement(m.spec, *placement).ok()) << name << Describe(*placement);
      }
    }
  }
}

TEST(PlacementTest, ShardsFixtureAllowsEveryModeWithTwoAndFourWorkers) {
  const model::Model m = LoadFixture("qwen4exp/shards");
  for (const int world_size : {2, 3, 4}) {
    for (const PlacementWish& wish : AllWishes(world_size)) {
      EXPECT_TRUE(MakePlacement(m.spec, wish).ok())
          << world_size << ModeName(wish.mode) << MakePlacement(m.spec, wish).status();
    }
  }
}

// ---- layer split ------------------------------------------------------------------------------

// Bytes that one token reads in each layer, and of the head.
std::vector<int64_t> LayerBytes(const model::ModelSpec& spec) {
  std::vector<int64_t> bytes;
  for (const model::LayerBytes& layer : model::Summarize(spec).layers) {
    bytes.push_back(layer.dense_bytes + layer.bytes_per_expert * spec.moe.top_k);
  }
  return bytes;
}

int64_t LargestStage(const model::ModelSpec& spec, const std::vector<int64_t>& bytes,
                     const std::vector<int>& cuts) {
  std::vector<int> borders = {0};
  borders.insert(borders.end(), cuts.begin(), cuts.end());
  borders.push_back(spec.num_layers);
  int64_t largest = 0;
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    int64_t stage =
        std::accumulate(bytes.begin() + borders[i], bytes.begin() + borders[i + 1], int64_t{0});
    if (i + 2 == borders.size()) stage += spec.output->bytes();
    largest = std::max(largest, stage);
  }
  return largest;
}

// Least largest stage over all cuts from `first` on.
int64_t BestOfAllCuts(const model::ModelSpec& spec, const std::vector<int64_t>& bytes,
                      std::vector<int>& cuts, int num_cuts) {
  if (static_cast<int>(cuts.size()) == num_cuts) return LargestStage(spec, bytes, cuts);
  int64_t best = INT64_MAX;
  for (int cut = cuts.empty() ? 1 : cuts.back() + 1; cut < spec.num_layers; ++cut) {
    if (spec.num_layers - cut < num_cuts - static_cast<int>(cuts.size())) break;
    cuts.push_back(cut);
    best = std::min(best, BestOfAllCuts(spec, bytes, cuts, num_cuts));
    cuts.pop_back();
  }
  return best;
}

TEST(PlacementTest, AutomaticCutsMinimiseTheLargestStage) {
  for (const std::string& name : FixtureNames()) {
    const model::Model m = LoadFixture(name);
    const std::vector<int64_t> bytes = LayerBytes(m.spec);
    for (int world_size = 2; world_size <= m.spec.num_layers; ++world_size) {
      PlacementWish wish;
      wish.mode = v1::MODE_LAYER_SPLIT;
      wish.world_size = world_size;
      const absl::StatusOr<v1::Placement> placement = MakePlacement(m.spec, wish);
      ASSERT_TRUE(placement.ok()) << placement.status();
      const std::vector<int> cuts(placement->layer_cuts().begin(), placement->layer_cuts().end());
      std::vector<int> none;
      EXPECT_EQ(LargestStage(m.spec, bytes, cuts),
                BestOfAllCuts(m.spec, bytes, none, world_size - 1))
          << name << " " << Describe(*placement);
      EXPECT_EQ(LeadRank(*placement), world_size - 1);
    }
  }
}

TEST(PlacementTest, CutsByHandAreKept) {
  const model::Model m = LoadFixture("qwen4exp/base");
  PlacementWish wish;
  wish.mode = v1::MODE_LAYER_SPLIT;
  wish.world_size = 3;
  wish.layer_cuts = {1, 7};
  const absl::StatusOr<v1::Placement> placement = MakePlacement(m.spec, wish);
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_THAT(placement->layer_cuts(), ElementsAre(1, 7));
  EXPECT_EQ(Describe(*placement), "layer_split, 3 workers, cut at 1,7");
}

TEST(PlacementTest, RefusesImpossibleCutsWithTheRangeThatWorks) {
  const model::Model m = LoadFixture("qwen4exp/base");  // 8 layers
  EXPECT_THAT(CutsRefusal(m.spec, 2, {0}), HasSubstr("0, wanted here: 1 to 7"));
  EXPECT_THAT(CutsRefusal(m.spec, 2, {8}), HasSubstr("8, wanted here: 1 to 7"));
  EXPECT_THAT(CutsRefusal(m.spec, 2, {-3}), HasSubstr("-3, wanted here: 1 to 7"));
  EXPECT_THAT(CutsRefusal(m.spec, 3, {3, 3}), HasSubstr("3, wanted here: 4 to 7"));
  EXPECT_THAT(CutsRefusal(m.spec, 3, {5, 3}), HasSubstr("3, wanted here: 6 to 7"));
  EXPECT_THAT(CutsRefusal(m.spec, 3, {7, 7}), HasSubstr("7, wanted here: 1 to 6"));
  EXPECT_THAT(CutsRefusal(m.spec, 3, {4}), HasSubstr("wants 2 cut points, got: 1"));
  EXPECT_THAT(CutsRefusal(m.spec, 9, {}), HasSubstr("at most 8 workers"));
  EXPECT_THAT(CutsRefusal(m.spec, 1, {4}), HasSubstr("one worker has all layers"));
}

// ---- divided experts ----------------------------------------------------------------------------

TEST(PlacementTest, RefusesSlicesThatTheFormatForbidsByTheTensorsName) {
  const model::Model m = LoadFixture("qwen4exp/mixed");  // inner width 32: one block
  PlacementWish wish;
  wish.mode = v1::MODE_EXPERT_PARALLEL;
  wish.world_size = 2;
  const std::string message = Refusal(m.spec, wish);
  EXPECT_THAT(message, HasSubstr("blk.0.ffn_down_exps.weight"));
  EXPECT_THAT(message, HasSubstr("at most 1 worker, or up to "));
}

TEST(PlacementTest, RefusesHeadsThatCannotBeDividedByTheTensorsName) {
  const model::Model m = LoadFixture("qwen4exp/base");  // 2 key heads, 4 query heads
  PlacementWish wish;
  wish.mode = v1::MODE_TENSOR_EXPERT_PARALLEL;
  wish.world_size = 3;
  const std::string message = Refusal(m.spec, wish);
  EXPECT_THAT(message, HasSubstr("blk.0.ssm_out.weight"));
  EXPECT_THAT(message, HasSubstr("at most 2 workers"));
}

TEST(PlacementTest, RefusesMoreWorkersThanWholeExperts) {
  const model::Model m = LoadFixture("qwen4exp/shards");  // 6 experts
  PlacementWish wish;
  wish.mode = v1::MODE_EXPERT_PARALLEL;
  wish.partition = v1::PARTITION_WHOLE;
  wish.world_size = 7;
  EXPECT_THAT(Refusal(m.spec, wish), HasSubstr("at most 6 workers"));
}

TEST(PlacementTest, RefusesWhatNoModeIs) {
  const model::Model m = LoadFixture("qwen4exp/shards");
  PlacementWish wish;
  wish.world_size = 2;
  EXPECT_THAT(Refusal(m.spec, wish), HasSubstr("mode single has one worker"));
  wish.world_size = 0;
  EXPECT_THAT(Refusal(m.spec, wish), HasSubstr("wanted: 1 to 64"));
  wish.world_size = 65;
  EXPECT_THAT(Refusal(m.spec, wish), HasSubstr("wanted: 1 to 64"));
  wish = {};
  wish.mode = v1::MODE_TENSOR_EXPERT_PARALLEL;
  wish.world_size = 2;
  wish.partition = v1::PARTITION_WHOLE;
  EXPECT_THAT(Refusal(m.spec, wish), HasSubstr("wanted: sliced"));
  wish.partition = v1::PARTITION_UNSPECIFIED;
  wish.layer_cuts = {2};
  EXPECT_THAT(Refusal(m.spec, wish), HasSubstr("cut points are for layer_split"));
}

TEST(PlacementTest, RefusesHomesOfAnotherModel) {
  const model::Model m = LoadFixture("qwen4exp/shards");
  PlacementWish wish;
  wish.mode = v1::MODE_EXPERT_PARALLEL;
  wish.partition = v1::PARTITION_WHOLE;
  wish.world_size = 2;
  const absl::StatusOr<v1::Placement> good = MakePlacement(m.spec, wish);
  ASSERT_TRUE(good.ok()) << good.status();
  v1::Placement fewer_layers = *good;
  fewer_layers.mutable_expert_homes()->RemoveLast();
  EXPECT_FALSE(CheckPlacement(m.spec, fewer_layers).ok());
  v1::Placement fewer_experts = *good;
  fewer_experts.mutable_expert_homes(1)->mutable_rank_of_expert()->pop_back();
  EXPECT_FALSE(CheckPlacement(m.spec, fewer_experts).ok());
  v1::Placement wrong_rank = *good;
  (*wrong_rank.mutable_expert_homes(0)->mutable_rank_of_expert())[3] = '\2';
  EXPECT_FALSE(CheckPlacement(m.spec, wrong_rank).ok());
}

std::vector<double> LoadOfRanks(const std::string& homes, const std::vector<double>& use,
                                int world_size) {
  std::vector<double> load(static_cast<size_t>(world_size), 0);
  for (size_t e = 0; e < homes.size(); ++e) load[static_cast<size_t>(homes[e])] += use[e];
  return load;
}

TEST(PlacementTest, HomesWithoutUseDifferByOneExpert) {
  const model::Model m = LoadFixture("qwen4exp/e512");
  for (int world_size = 2; world_size <= 8; ++world_size) {
    PlacementWish wish;
    wish.mode = v1::MODE_EXPERT_PARALLEL;
    wish.partition = v1::PARTITION_WHOLE;
    wish.world_size = world_size;
    const absl::StatusOr<v1::Placement> placement = MakePlacement(m.spec, wish);
    ASSERT_TRUE(placement.ok()) << placement.status();
    for (const v1::ExpertHomes& homes : placement->expert_homes()) {
      const std::vector<double> held =
          LoadOfRanks(homes.rank_of_expert(), std::vector<double>(512, 1.0), world_size);
      const auto [least, most] = std::minmax_element(held.begin(), held.end());
      EXPECT_LE(*most - *least, 1) << world_size;
    }
  }
}

TEST(PlacementTest, HomesBalanceTheUse) {
  const model::Model m = LoadFixture("qwen4exp/e512");
  // Zipf: expert e is used in proportion to 1 / (e + 1).
  std::vector<double> use(512);
  for (size_t e = 0; e < use.size(); ++e) use[e] = 1.0 / static_cast<double>(e + 1);
  const double all = std::accumulate(use.begin(), use.end(), 0.0);
  for (int world_size = 2; world_size <= 4; ++world_size) {
    PlacementWish wish;
    wish.mode = v1::MODE_EXPERT_PARALLEL;
    wish.partition = v1::PARTITION_WHOLE;
    wish.world_size = world_size;
    wish.expert_use.assign(static_cast<size_t>(m.spec.num_layers), use);
    const absl::StatusOr<v1::Placement> placement = MakePlacement(m.spec, wish);
    ASSERT_TRUE(placement.ok()) << placement.status();
    for (const v1::ExpertHomes& homes : placement->expert_homes()) {
      const std::vector<double> load = LoadOfRanks(homes.rank_of_expert(), use, world_size);
      // A rank stops being the least loaded once it is above the mean, so none exceeds the mean by
      // more than its last expert; large ones come first, and the last of these small. The room for
      // experts, which is equal for all, may force a few of the least used ones onto full ranks:
      // one in a hundred of the load covers the hundred smallest of them.
      const double mean = all / world_size;
      const double largest_alone = use[0];
      for (const double rank_load : load) {
        EXPECT_LE(rank_load, std::max(mean, largest_alone) + 0.01 * all) << world_size;
      }
      const std::vector<double> held =
          LoadOfRanks(homes.rank_of_expert(), std::vector<double>(512, 1.0), world_size);
      for (const double count : held) EXPECT_LE(count, (512 + world_size - 1) / world_size);
    }
  }
}

}  // namespace
}  // namespace switchyard::placement
