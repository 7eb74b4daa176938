#include "placement/planner.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/status.h"
#include "model/full_size_model.h"
#include "placement/placement_models.h"
#include "placement/profile_builder.h"

namespace switchyard::placement {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<Plan> PlansOf(const model::ModelSpec& spec, const v1::HardwareProfile& profile,
                          const PlanRequest& request) {
  absl::StatusOr<std::vector<Plan>> plans = MakePlans(spec, profile, request);
  EXPECT_TRUE(plans.ok()) << plans.status();
  return *std::move(plans);
}

TEST(PlannerTest, NoCombinationIsLeftOut) {
  const model::Model m = LoadFixture("qwen4exp/mixed");  // slices and heads cannot be divided
  PlanRequest request;
  request.context_tokens = 1000;
  const std::vector<Plan> plans = PlansOf(m.spec, TwoCores(), request);
  // One with one worker, six with each of 2, 3 and 4.
  ASSERT_EQ(plans.size(), 1 + 3 * 6U);
  std::set<std::string> names;
  bool was_possible = true;
  for (const Plan& plan : plans) {
    names.insert(fmt::format("{} {}", plan.num_workers, PlanName(plan)));
    EXPECT_FALSE(plan.reason.empty());
    EXPECT_THAT(plan.reason, Not(HasSubstr("\n")));
    EXPECT_TRUE(was_possible || !plan.can_run);  // possible ones first
    was_possible = plan.can_run;
    if (!plan.can_run && plan.placement.partition() == v1::PARTITION_SLICED) {
      EXPECT_THAT(plan.reason, HasSubstr("blk.0."));  // the tensor
    }
  }
  EXPECT_EQ(names.size(), plans.size());
}

TEST(PlannerTest, RanksByTimeAndExplainsTheDifference) {
  const model::Model m = LoadFixture("qwen4exp/shards");
  PlanRequest request;
  request.context_tokens = 1000;
  request.worker_counts = {1, 2};
  v1::HardwareProfile profile = TwoCores();
  const std::vector<Plan> plans = PlansOf(m.spec, profile, request);
  for (size_t i = 1; i < plans.size(); ++i) {
    EXPECT_LE(plans[i - 1].decode.seconds.total(), plans[i].decode.seconds.total());
  }
  EXPECT_THAT(plans[0].reason, HasSubstr("best for latency"));
  EXPECT_GT(plans[0].tokens_per_second, 0);
  // A model of some megabytes is fastest without collectives.
  EXPECT_EQ(plans[0].placement.mode(), v1::MODE_SINGLE);
  EXPECT_EQ(plans[0].threads_per_worker, 2);
  const auto owner = std::find_if(plans.begin(), plans.end(), [](const Plan& plan) {
    return plan.placement.dense() == v1::DENSE_PART_OWNER;
  });
  ASSERT_NE(owner, plans.end());
  EXPECT_THAT(owner->reason, HasSubstr("hops"));
}

TEST(PlannerTest, RefusesWhatCannotBeAsked) {
  const model::Model m = LoadFixture("qwen4exp/shards");
  PlanRequest request;
  request.context_tokens = 9000;  // the model has 8192
  EXPECT_THAT(std::string(Message(MakePlans(m.spec, TwoCores(), request).status())),
              HasSubstr("9000, most: 8192"));
  request.context_tokens = 100;
  request.worker_counts = {0};
  EXPECT_THAT(std::string(Message(MakePlans(m.spec, TwoCores(), request).status())),
              HasSubstr("wanted: 1 to 64"));
  request.worker_counts = {};
  const v1::HardwareProfile empty;
  EXPECT_EQ(MakePlans(m.spec, empty, request).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(PlannerTest, SaysWhatDoesNotFitTheHost) {
  const model::Model m = LoadFixture("qwen4exp/shards");
  v1::HardwareProfile profile = TwoCores();
  profile.mutable_host()->set_mem_total_bytes(8 << 20);  // 7.5 MB free, one copy takes 6 MB
  PlanRequest request;
  request.context_tokens = 100;
  request.worker_counts = {1, 2};
  const std::vector<Plan> plans = PlansOf(m.spec, profile, request);
  EXPECT_EQ(plans[0].placement.mode(), v1::MODE_SINGLE);
  for (const Plan& plan : plans) {
    // Two copies of the dense side do not fit.
    if (plan.placement.mode() == v1::MODE_EXPERT_PARALLEL &&
        plan.placement.dense() == v1::DENSE_PART_REPLICATED) {
      EXPECT_FALSE(plan.can_run) << PlanName(plan);
      EXPECT_THAT(plan.reason, HasSubstr("does not fit the host"));
    }
  }
}

TEST(PlannerTest, GoalsHaveNames) {
  for (const Goal goal : {Goal::kLatency, Goal::kContext, Goal::kThroughput}) {
    EXPECT_EQ(GoalFromName(GoalName(goal)), goal);
  }
  EXPECT_EQ(GoalFromName("speed"), std::nullopt);
}

class FullSizePlannerTest : public ::testing::Test {
 protected:
  FullSizePlannerTest() : model_(Load()) {}

  static model::Model Load() {
    const std::string path = testing::TestFilePath("full_size.gguf");
    model::FullSizeModel().Write(path);
    return model::LoadModel(path);
  }

  const model::Model model_;
};

// One card of 24 GiB: 5,351,626,240 bytes of dense weights, 24,576 + 768 bytes a token of cache,
// 113,246,208 of states, 1 GiB kept free; experts get the rest.
TEST_F(FullSizePlannerTest, MemoryOfOneCardByHand) {
  PlanRequest request;
  request.worker_counts = {1};
  request.context_tokens = 131'072;
  const std::vector<Plan> plans = PlansOf(model_.spec, Cards(1, 10), request);
  ASSERT_EQ(plans.size(), 1U);
  ASSERT_TRUE(plans[0].can_run) << plans[0].reason;
  const RankMemory& memory = plans[0].memory[0];
  const int64_t cache = 131'072LL * 25'344 + 113'246'208;
  const int64_t room = (23LL << 30) - 5'351'626'240 - cache;
  EXPECT_EQ(memory.dense_bytes, 5'351'626'240);
  EXPECT_EQ(memory.cache_bytes, cache);
  EXPECT_EQ(memory.resident_expert_bytes, room);
  EXPECT_NEAR(plans[0].resident_share, static_cast<double>(room) / 59'519'795'200.0, 1e-9);
  EXPECT_GT(plans[0].decode.seconds[CostTerm::kMiss], 0);
}

// All experts are resident from three cards on; what fits more does not miss.
TEST_F(FullSizePlannerTest, MoreCardsHoldMoreExperts) {
  PlanRequest request;
  request.context_tokens = 8192;
  std::map<int, double> resident;
  for (const Plan& plan : PlansOf(model_.spec, Cards(4, 10), request)) {
    ASSERT_TRUE(plan.can_run) << PlanName(plan) << plan.reason;
    if (plan.placement.mode() == v1::MODE_LAYER_SPLIT || plan.num_workers == 1) {
      resident[plan.num_workers] = plan.resident_share;
    }
  }
  EXPECT_LT(resident[1], 0.35);
  EXPECT_LT(resident[2], 0.8);
  EXPECT_GT(resident[2], resident[1] + 0.3);
  EXPECT_NEAR(resident[3], 1, 0.02);
  EXPECT_EQ(resident[4], 1);
}

TEST_F(FullSizePlannerTest, CardsThatAreTooSmallSayWhatWouldFit) {
  v1::HardwareProfile profile = Cards(1, 10);
  profile.mutable_gpus(0)->set_memory_total_bytes(uint64_t{8} << 30);
  PlanRequest request;
  request.context_tokens = 200 * 1024;
  const std::vector<Plan> plans = PlansOf(model_.spec, profile, request);
  ASSERT_EQ(plans.size(), 1U);
  EXPECT_FALSE(plans[0].can_run);
  // (7 GiB - dense - states) / 25,344.
  const int64_t fits = ((7LL << 30) - 5'351'626'240 - 113'246'208) / 25'344;
  EXPECT_THAT(plans[0].reason, HasSubstr(fmt::format("context that fits: {} tokens", fits)));
}

// Below the break-even latency expert parallel beats layer split, above it loses.
TEST_F(FullSizePlannerTest, PickDependsOnTheLatencyOfCollectives) {
  PlanRequest request;
  request.worker_counts = {4};
  const auto seconds = [&](double alpha_us, v1::Mode mode) {
    for (const Plan& plan : PlansOf(model_.spec, Cards(4, alpha_us), request)) {
      if (plan.placement.mode() == mode) return plan.decode.seconds.total();
    }
    return 0.0;
  };
  EXPECT_LT(seconds(6, v1::MODE_EXPERT_PARALLEL), seconds(6, v1::MODE_LAYER_SPLIT));
  EXPECT_GT(seconds(100, v1::MODE_EXPERT_PARALLEL), seconds(100, v1::MODE_LAYER_SPLIT));
  EXPECT_EQ(PlansOf(model_.spec, Cards(4, 6), request)[0].placement.mode(),
            v1::MODE_TENSOR_EXPERT_PARALLEL);
  EXPECT_EQ(PlansOf(model_.spec, Cards(4, 300), request)[0].placement.mode(), v1::MODE_LAYER_SPLIT);
}

// The shipped estimates: each gives a plan for every number of its cards.
TEST_F(FullSizePlannerTest, ShippedProfilesGivePlans) {
  for (const char* name : {"x1", "x2", "x2-p2p", "x3", "x3-p2p", "x4", "x4-p2p"}) {
    const absl::StatusOr<v1::HardwareProfile> profile =
        ReadProfile(fmt::format("{}/deploy/profiles/rtx3090-{}.json", SWITCHYARD_SOURCE_DIR, name));
    ASSERT_TRUE(profile.ok()) << profile.status();
    EXPECT_TRUE(profile->is_estimate());
    EXPECT_GT(profile->sources_size(), 0);
    PlanRequest request;
    request.worker_counts = {profile->gpus_size()};
    const std::vector<Plan> plans = PlansOf(model_.spec, *profile, request);
    EXPECT_EQ(plans.size(), profile->gpus_size() == 1 ? 1U : 6U);
    for (const Plan& plan : plans) EXPECT_TRUE(plan.can_run) << name << plan.reason;
  }
}

TEST_F(FullSizePlannerTest, NamedPlansAreOneDeviceAndSeveral) {
  const absl::StatusOr<NamedPlans> named = MakeNamedPlans(model_.spec, Cards(4, 10), {});
  ASSERT_TRUE(named.ok()) << named.status();
  ASSERT_TRUE(named->fast.has_value());
  EXPECT_EQ(named->fast->num_workers, 1);
  EXPECT_GE(named->fast->most_context_tokens, 128 * 1024);
  ASSERT_TRUE(named->large_context.has_value());
  EXPECT_GT(named->large_context->num_workers, 1);
  EXPECT_GE(named->large_context->most_context_tokens, 200 * 1024);
  const absl::StatusOr<NamedPlans> one_card = MakeNamedPlans(model_.spec, Cards(1, 10), {});
  ASSERT_TRUE(one_card.ok()) << one_card.status();
  EXPECT_FALSE(one_card->large_context.has_value());
}

}  // namespace
}  // namespace switchyard::placement
