#include "placement/rank_reads.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "model/full_size_model.h"
#include "model/model_summary.h"
#include "placement/placement_models.h"

namespace switchyard::placement {
namespace {

std::vector<RankReads> ReadsOfAll(const model::ModelSpec& spec, const PlacementWish& wish) {
  const absl::StatusOr<v1::Placement> placement = MakePlacement(spec, wish);
  std::vector<RankReads> reads;
  if (!placement.ok()) return reads;
  for (int r = 0; r < static_cast<int>(placement->world_size()); ++r) {
    reads.push_back(ReadsOf(spec, ShareOf(spec, *placement, r)));
  }
  return reads;
}

int64_t HeadOf(const model::ModelSpec& spec) {
  int64_t bytes = spec.output->bytes();
  for (const model::TensorRef tensor :
       {spec.final_mixer.norm, spec.final_mixer.down, spec.final_mixer.up}) {
    if (tensor != nullptr) bytes += tensor->bytes();
  }
  return bytes;
}

TEST(RankReadsTest, OneRankHasWhatTheSummarySays) {
  for (const std::string& name : FixtureNames()) {
    const model::Model m = LoadFixture(name);
    const model::ModelSummary summary = model::Summarize(m.spec);
    const std::vector<RankReads> reads = ReadsOfAll(m.spec, {});
    ASSERT_EQ(reads.size(), 1U);
    for (size_t l = 0; l < reads[0].layers.size(); ++l) {
      const LayerReads& layer = reads[0].layers[l];
      EXPECT_EQ(layer.dense_bytes(), summary.layers[l].dense_bytes) << name << l;
      EXPECT_EQ(layer.expert_bytes(), summary.layers[l].expert_bytes) << name << l;
      EXPECT_EQ(layer.expert.total(), summary.layers[l].bytes_per_expert) << name << l;
    }
    EXPECT_EQ(reads[0].head.total(), HeadOf(m.spec)) << name;
    EXPECT_EQ(reads[0].dense_bytes() - reads[0].embedding_bytes, summary.dense_bytes_per_token)
        << name;
  }
}

// Divided experts are divided without remainder, and nothing is lost.
TEST(RankReadsTest, ExpertsOfAllRanksAreTheExperts) {
  for (const std::string& name : FixtureNames()) {
    const model::Model m = LoadFixture(name);
    const model::ModelSummary summary = model::Summarize(m.spec);
    for (int world_size = 2; world_size <= 8; ++world_size) {
      for (const PlacementWish& wish : AllWishes(world_size)) {
        const std::vector<RankReads> reads = ReadsOfAll(m.spec, wish);
        if (reads.empty()) continue;
        for (size_t l = 0; l < summary.layers.size(); ++l) {
          int64_t experts = 0;
          for (const RankReads& rank : reads) experts += rank.layers[l].expert_bytes();
          EXPECT_EQ(experts, summary.layers[l].expert_bytes) << name << ModeName(wish.mode);
        }
      }
    }
  }
}

// The published file: hand-computed bytes of one of four ranks.
TEST(RankReadsTest, FullSizeShares) {
  const std::string path = testing::TestFilePath("full_size.gguf");
  model::FullSizeModel().Write(path);
  const model::Model m = model::LoadModel(path);
  PlacementWish wish;
  wish.mode = v1::MODE_TENSOR_EXPERT_PARALLEL;
  wish.world_size = 4;
  const std::vector<RankReads> four = ReadsOfAll(m.spec, wish);
  ASSERT_EQ(four.size(), 4U);
  for (const RankReads& rank : four) {
    // A quarter of everything but the norm of 128 values.
    EXPECT_EQ(rank.layers[0].mixing.total(), ((2560 * 10240 + 2560 * 6144 + 6144 * 2560) / 32 * 34 +
                                              4 * (4 * 10240 + 48 + 48 + 2 * 2560 * 48)) /
                                                     4 +
                                                 128 * 4);
    EXPECT_EQ(rank.layers[0].state_bytes, 3'145'728 / 4);
    // 6 of 24 query heads; all of them read one of the two KV heads; the indexer is on each.
    EXPECT_EQ(rank.layers[3].mixing.total(),
              (2560 * 12288 / 4 + 2 * 2560 * 256 + 6144 / 4 * 2560) / 32 * 34 + 2 * 256 * 4 +
                  2560 * 640 * 2 + 2 * 128 * 4);
    EXPECT_EQ(rank.layers[0].expert.total(), 2'329'600 / 4);
    EXPECT_EQ(rank.layers[0].num_experts, 512);
    EXPECT_EQ(rank.head.total(), 521'472'000 / 4 + 10240 * 4 + 2 * 10240 * 320 / 32 * 34);
    // One of two KV heads and the block keys: 12,288 + 768 of 24,576 + 768 bytes.
    EXPECT_DOUBLE_EQ(rank.kv_bytes_per_token(), 12'288 + 768);
  }
  const std::vector<RankReads> one = ReadsOfAll(m.spec, {});
  EXPECT_EQ(one[0].dense_bytes(), 5'351'626'240);
  EXPECT_EQ(one[0].expert_bytes(), 59'519'795'200);
  EXPECT_DOUBLE_EQ(one[0].kv_bytes_per_token(), 24'576 + 768);
  EXPECT_EQ(one[0].state_bytes(), 36 * 3'145'728);
  // Sparse attention reads 2051 tokens and all block keys; before that all.
  const LayerShare share = ShareOf(m.spec, *MakePlacement(m.spec, {}), 0).layers[3];
  EXPECT_DOUBLE_EQ(12 * KvReadBytes(m.spec, m.spec.layers[3], share, 131'072),
                   2051 * 24'576.0 + 131'072 * 768.0);
  EXPECT_DOUBLE_EQ(12 * KvReadBytes(m.spec, m.spec.layers[3], share, 1000), 1000 * 25'344.0);
}

TEST(RankReadsTest, LayerSplitStagesAddUpToOneRank) {
  for (const std::string& name : FixtureNames()) {
    const model::Model m = LoadFixture(name);
    const std::vector<RankReads> one = ReadsOfAll(m.spec, {});
    for (int world_size = 2; world_size <= m.spec.num_layers && world_size <= 8; ++world_size) {
      PlacementWish wish;
      wish.mode = v1::MODE_LAYER_SPLIT;
      wish.world_size = world_size;
      int64_t dense = 0, experts = 0, state = 0;
      double kv = 0;
      for (const RankReads& rank : ReadsOfAll(m.spec, wish)) {
        dense += rank.dense_bytes();
        experts += rank.expert_bytes();
        state += rank.state_bytes();
        kv += rank.kv_bytes_per_token();
      }
      EXPECT_EQ(dense, one[0].dense_bytes()) << name;
      EXPECT_EQ(experts, one[0].expert_bytes()) << name;
      EXPECT_EQ(state, one[0].state_bytes()) << name;
      EXPECT_DOUBLE_EQ(kv, one[0].kv_bytes_per_token()) << name;
    }
  }
}

}  // namespace
}  // namespace switchyard::placement
