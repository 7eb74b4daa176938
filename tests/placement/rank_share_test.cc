#include "placement/rank_share.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "placement/placement_models.h"

namespace switchyard::placement {
namespace {

struct Shares {
  v1::Placement placement;
  std::vector<RankShare> ranks;
};

// Calls `check` with every placement of every fixture for 1 to 8 workers that is not refused.
template <typename Check>
void ForEachPlacement(const Check& check) {
  int num_placements = 0;
  for (const std::string& name : FixtureNames()) {
    const model::Model m = LoadFixture(name);
    for (int world_size = 1; world_size <= 8; ++world_size) {
      for (const PlacementWish& wish : AllWishes(world_size)) {
        absl::StatusOr<v1::Placement> placement = MakePlacement(m.spec, wish);
        if (!placement.ok()) continue;
        Shares shares;
        shares.placement = *std::move(placement);
        for (int r = 0; r < static_cast<int>(shares.placement.world_size()); ++r) {
          shares.ranks.push_back(ShareOf(m.spec, shares.placement, r));
        }
        SCOPED_TRACE(name + ": " + Describe(shares.placement));
        check(m.spec, shares);
        ++num_placements;
      }
    }
  }
  EXPECT_GT(num_placements, 150);  // most combinations are possible
}

// Ranges that follow each other from 0 to `size`, none empty.
void ExpectTiles(const std::vector<Range>& ranges, int64_t size) {
  int64_t end = 0;
  for (const Range& range : ranges) {
    EXPECT_EQ(range.begin, end);
    EXPECT_GT(range.size(), 0);
    end = range.end;
  }
  EXPECT_EQ(end, size);
}

TEST(RankShareTest, EveryLayerIsSomewhereAndTheDensePartIsComputedOnceOrByAll) {
  ForEachPlacement([](const model::ModelSpec& spec, const Shares& shares) {
    const bool is_split = shares.placement.mode() == v1::MODE_LAYER_SPLIT;
    const bool is_owner = shares.placement.mode() == v1::MODE_EXPERT_PARALLEL &&
                          shares.placement.dense() == v1::DENSE_PART_OWNER;
    for (size_t l = 0; l < static_cast<size_t>(spec.num_layers); ++l) {
      size_t here = 0, dense = 0;
      for (const RankShare& rank : shares.ranks) {
        ASSERT_EQ(rank.layers.size(), static_cast<size_t>(spec.num_layers));
        const LayerShare& layer = rank.layers[l];
        here += layer.is_here;
        dense += layer.has_dense;
        EXPECT_EQ(layer.is_here,
                  static_cast<int>(l) >= rank.first_layer && static_cast<int>(l) < rank.end_layer);
        if (!layer.is_here) {
          EXPECT_FALSE(layer.has_dense || layer.has_experts || layer.has_shared_expert);
        }
      }
      EXPECT_EQ(here, is_split ? 1U : shares.ranks.size());
      EXPECT_EQ(dense, is_split || is_owner ? 1U : shares.ranks.size());
    }
  });
}

TEST(RankShareTest, RowsOfTheOutputMatrixAreOnOneRankEach) {
  ForEachPlacement([](const model::ModelSpec& spec, const Shares& shares) {
    std::vector<Range> rows;
    for (const RankShare& rank : shares.ranks) {
      if (!rank.output_rows.empty()) rows.push_back(rank.output_rows);
      EXPECT_EQ(rank.has_whole_output(spec), rank.output_rows.size() == spec.vocab_size);
      EXPECT_EQ(rank.is_lead, rank.rank == LeadRank(shares.placement));
      EXPECT_FALSE(rank.is_lead && rank.output_rows.empty());
    }
    ExpectTiles(rows, spec.vocab_size);
  });
}

TEST(RankShareTest, WhoeverComputesTheFirstLayersDensePartEmbeds) {
  ForEachPlacement([](const model::ModelSpec&, const Shares& shares) {
    for (const RankShare& rank : shares.ranks) {
      EXPECT_EQ(rank.has_embedding, rank.layers[0].has_dense);
    }
  });
}

TEST(RankShareTest, EveryHeadIsOnOneRankWithItsColumns) {
  ForEachPlacement([](const model::ModelSpec& spec, const Shares& shares) {
    const bool divides = shares.placement.mode() == v1::MODE_TENSOR_EXPERT_PARALLEL;
    for (size_t l = 0; l < static_cast<size_t>(spec.num_layers); ++l) {
      const bool is_attention = spec.layers[l].kind == model::LayerKind::kAttention;
      const int64_t num_heads =
          is_attention ? spec.attention.num_heads : spec.delta_net->num_key_heads;
      std::vector<Range> heads, columns;
      for (const RankShare& rank : shares.ranks) {
        const LayerShare& layer = rank.layers[l];
        if (!layer.has_dense) continue;
        const Range mine = is_attention ? layer.query_heads : layer.key_heads;
        if (!divides) {
          EXPECT_EQ(mine, (Range{0, num_heads}));
          EXPECT_TRUE(layer.output.is_whole());
          continue;
        }
        heads.push_back(mine);
        columns.push_back(layer.output.columns);
        // The columns are those of the heads.
        const int64_t width = layer.output.shards.strip_columns / num_heads;
        EXPECT_EQ(layer.output.columns, (Range{mine.begin * width, mine.end * width}));
      }
      if (!divides) continue;
      ExpectTiles(heads, num_heads);
      ExpectTiles(columns, spec.layers[l].output_shards.strip_columns);
    }
  });
}

TEST(RankShareTest, KvHeadsCoverTheQueryHeads) {
  ForEachPlacement([](const model::ModelSpec& spec, const Shares& shares) {
    const int64_t per_kv = spec.attention.num_heads / spec.attention.num_kv_heads;
    for (const RankShare& rank : shares.ranks) {
      for (size_t l = 0; l < rank.layers.size(); ++l) {
        const LayerShare& layer = rank.layers[l];
        if (!layer.has_dense || spec.layers[l].kind != model::LayerKind::kAttention) continue;
        // A rank has the heads that its queries read, and no other.
        EXPECT_EQ(layer.kv_heads.begin, layer.query_heads.begin / per_kv);
        EXPECT_EQ(layer.kv_heads.end - 1, (layer.query_heads.end - 1) / per_kv);
        EXPECT_LE(layer.kv_heads.end, spec.attention.num_kv_heads);
      }
    }
  });
}

TEST(RankShareTest, EveryExpertIsOnOneRankOrSlicedOverAll) {
  ForEachPlacement([](const model::ModelSpec& spec, const Shares& shares) {
    for (size_t l = 0; l < static_cast<size_t>(spec.num_layers); ++l) {
      std::vector<int> held(static_cast<size_t>(spec.moe.num_experts), 0);
      std::vector<Range> slices;
      for (const RankShare& rank : shares.ranks) {
        const LayerShare& layer = rank.layers[l];
        if (!layer.has_experts) continue;
        if (layer.has_all_experts) {
          EXPECT_TRUE(layer.experts.empty());
          slices.push_back(layer.inner.columns);
        } else {
          EXPECT_TRUE(layer.inner.is_whole());
          EXPECT_TRUE(std::is_sorted(layer.experts.begin(), layer.experts.end()));
          for (const int32_t expert : layer.experts) ++held[static_cast<size_t>(expert)];
        }
      }
      if (shares.placement.partition() == v1::PARTITION_WHOLE) {
        EXPECT_TRUE(slices.empty());
        for (const int count : held) EXPECT_EQ(count, 1);
      } else {
        ExpectTiles(slices, spec.layers[l].down_shards.strip_columns);
        for (const Range& slice : slices) {
          EXPECT_EQ(slice.begin % spec.layers[l].down_shards.unit_columns, 0);
        }
      }
    }
  });
}

TEST(RankShareTest, TheSharedExpertCountsOnce) {
  ForEachPlacement([](const model::ModelSpec& spec, const Shares& shares) {
    for (size_t l = 0; l < static_cast<size_t>(spec.num_layers); ++l) {
      std::vector<Range> slices;
      for (const RankShare& rank : shares.ranks) {
        const LayerShare& layer = rank.layers[l];
        if (layer.has_shared_expert) slices.push_back(layer.shared_inner.columns);
      }
      if (spec.layers[l].moe.shared_down == nullptr) {
        EXPECT_TRUE(slices.empty());
      } else {
        ExpectTiles(slices, spec.layers[l].shared_down_shards.strip_columns);
      }
    }
  });
}

// Two and four ranks hold whole virtual shards: their sums are those of one rank, bit for bit.
TEST(RankShareTest, TwoAndFourRanksAreCutAtShardBorders) {
  ForEachPlacement([](const model::ModelSpec& spec, const Shares& shares) {
    const auto world_size = static_cast<int>(shares.placement.world_size());
    if (world_size != 2 && world_size != 4) return;
    const int per_rank = model::kNumVirtualShards / world_size;
    const auto expect_borders = [&](const ColumnShare& share, int rank) {
      if (share.is_whole()) return;
      const auto first = static_cast<size_t>(rank * per_rank);
      EXPECT_EQ(share.columns.begin, share.shards.border[first]);
      EXPECT_EQ(share.columns.end, share.shards.border[first + static_cast<size_t>(per_rank)]);
    };
    for (const RankShare& rank : shares.ranks) {
      for (size_t l = 0; l < static_cast<size_t>(spec.num_layers); ++l) {
        const LayerShare& layer = rank.layers[l];
        if (layer.has_dense) expect_borders(layer.output, rank.rank);
        if (layer.has_experts) expect_borders(layer.inner, rank.rank);
        if (layer.has_shared_expert) expect_borders(layer.shared_inner, rank.rank);
      }
    }
  });
}

// Cut down to the ranks, the shards are still those of the whole matrix.
TEST(RankShareTest, LocalShardsOfAllRanksAreTheShards) {
  ForEachPlacement([](const model::ModelSpec& spec, const Shares& shares) {
    for (size_t l = 0; l < static_cast<size_t>(spec.num_layers); ++l) {
      if (shares.placement.partition() != v1::PARTITION_SLICED) continue;
      const model::ColumnShards& whole = spec.layers[l].down_shards;
      std::vector<int64_t> columns(model::kNumVirtualShards, 0);
      for (const RankShare& rank : shares.ranks) {
        const model::ColumnShards local = rank.layers[l].inner.local();
        EXPECT_EQ(local.border.front(), 0);
        EXPECT_EQ(local.border.back(), rank.layers[l].inner.columns.size());
        EXPECT_EQ(local.strip_columns, rank.layers[l].inner.columns.size());
        EXPECT_EQ(local.num_strips, whole.num_strips);
        for (size_t i = 0; i < columns.size(); ++i) {
          EXPECT_LE(local.border[i], local.border[i + 1]);
          columns[i] += local.border[i + 1] - local.border[i];
        }
      }
      for (size_t i = 0; i < columns.size(); ++i) {
        EXPECT_EQ(columns[i], whole.border[i + 1] - whole.border[i]);
      }
    }
  });
}

TEST(RankShareTest, RanksMeetWhereTheirPartsMustBeAdded) {
  ForEachPlacement([](const model::ModelSpec&, const Shares& shares) {
    for (const RankShare& rank : shares.ranks) {
      switch (shares.placement.mode()) {
        case v1::MODE_TENSOR_EXPERT_PARALLEL:
          EXPECT_EQ(rank.after_mixing, Meeting::kAllReduce);
          EXPECT_EQ(rank.after_experts, Meeting::kAllReduce);
          break;
        case v1::MODE_EXPERT_PARALLEL:
          EXPECT_EQ(rank.after_mixing, Meeting::kNone);
          EXPECT_EQ(rank.after_experts, shares.placement.dense() == v1::DENSE_PART_OWNER
                                            ? Meeting::kOwner
                                            : Meeting::kAllReduce);
          break;
        default:
          EXPECT_EQ(rank.after_mixing, Meeting::kNone);
          EXPECT_EQ(rank.after_experts, Meeting::kNone);
      }
    }
  });
}

}  // namespace
}  // namespace switchyard::placement
