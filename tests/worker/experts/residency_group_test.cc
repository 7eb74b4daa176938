// Several ranks whose experts do not all fit: each decides for its own, and nobody notices.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/rank_group.h"

namespace switchyard::worker {
namespace {

namespace pv1 = placement::v1;

struct GroupCase {
  std::string name;
  pv1::Mode mode;
  int world_size;
  pv1::Partition partition = pv1::PARTITION_UNSPECIFIED;
  pv1::DensePart dense = pv1::DENSE_PART_UNSPECIFIED;
};

class ResidencyGroupTest : public testing::TestWithParam<GroupCase> {};

TEST_P(ResidencyGroupTest, SameLogitsAsWithAllExpertsInMemory) {
  placement::PlacementWish wish;
  wish.mode = GetParam().mode;
  wish.world_size = GetParam().world_size;
  wish.partition = GetParam().partition;
  wish.dense = GetParam().dense;
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 80; ++i) tokens.push_back((i * i * 31 + 7 * i) % 200);
  WorkerOptions options = TestOptions(256);
  const std::string path = FixtureModel("shards");
  RankGroup whole(path, kCpu, options, wish);
  const RankGroup::Continuation expected = whole.Continue(tokens, 24);

  int64_t all_bytes = 0;
  for (int r = 0; r < wish.world_size; ++r) {
    all_bytes = std::max(all_bytes, whole.worker(r).residency().budget_bytes);
  }
  options.residency.fast_bytes = all_bytes / 3;
  options.residency.policy.half_life_tokens = 32;
  options.residency.policy.min_gain = 1;
  options.residency.policy.min_deviations = 0;
  RankGroup tiered(path, kCpu, options, wish);
  const RankGroup::Continuation got = tiered.Continue(tokens, 24);
  EXPECT_EQ(got.logits, expected.logits);
  EXPECT_EQ(got.ids, expected.ids);
  // The lead has its result while others may still count.
  for (int r = 0; r < wish.world_size; ++r) {
    tiered.worker(r).Stop();
    whole.worker(r).Stop();
  }
  uint64_t misses = 0;
  for (int r = 0; r < wish.world_size; ++r) {
    const ResidencySnapshot now = tiered.worker(r).residency();
    const ResidencySnapshot all = whole.worker(r).residency();
    EXPECT_EQ(now.uses, all.uses) << "rank " << r;
    EXPECT_EQ(now.Count(ExpertState::kAbsent), all.Count(ExpertState::kAbsent));
    EXPECT_EQ(now.Total().hits + now.Total().misses, all.Total().hits);
    EXPECT_LE(now.fast_bytes, all_bytes / 3);
    misses += now.Total().misses;
  }
  EXPECT_GT(misses, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Modes, ResidencyGroupTest,
    testing::Values(GroupCase{"LayerSplit", pv1::MODE_LAYER_SPLIT, 2},
                    GroupCase{"Sliced2", pv1::MODE_EXPERT_PARALLEL, 2, pv1::PARTITION_SLICED},
                    GroupCase{"Sliced3", pv1::MODE_EXPERT_PARALLEL, 3, pv1::PARTITION_SLICED},
                    GroupCase{"Whole3", pv1::MODE_EXPERT_PARALLEL, 3, pv1::PARTITION_WHOLE},
                    GroupCase{"Owner2", pv1::MODE_EXPERT_PARALLEL, 2, pv1::PARTITION_WHOLE,
                              pv1::DENSE_PART_OWNER},
                    GroupCase{"Tensors2", pv1::MODE_TENSOR_EXPERT_PARALLEL, 2}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace switchyard::worker
