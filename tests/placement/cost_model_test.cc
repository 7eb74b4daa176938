#include "placement/cost_model.h"

#include <algorithm>
#include <cmath>
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

// Sums of doubles in another order than by hand.
constexpr double kRounding = 1e-9;

PlacementWish Wish(v1::Mode mode, int world_size,
                   v1::Partition partition = v1::PARTITION_UNSPECIFIED,
                   v1::DensePart dense = v1::DENSE_PART_UNSPECIFIED) {
  PlacementWish wish;
  wish.mode = mode;
  wish.world_size = world_size;
  wish.partition = partition;
  wish.dense = dense;
  return wish;
}

absl::StatusOr<CostModel> ModelOf(const model::ModelSpec& spec, const v1::HardwareProfile& profile,
                                  const PlacementWish& wish, DeviceKind device = DeviceKind::kCpu,
                                  std::vector<double> resident_share = {}) {
  CostModel::Setup setup;
  setup.placement = *MakePlacement(spec, wish);
  setup.device = device;
  setup.resident_share = std::move(resident_share);
  return CostModel::Create(spec, profile, setup);
}

StepCost DecodeCost(const model::ModelSpec& spec, const v1::HardwareProfile& profile,
                    const PlacementWish& wish, const DecodeShape& shape = {}) {
  const absl::StatusOr<CostModel> model = ModelOf(spec, profile, wish);
  EXPECT_TRUE(model.ok()) << model.status();
  return model->Decode(shape);
}

#define EXPECT_TERM(cost, term, wanted) \
  EXPECT_NEAR((cost).seconds[CostTerm::term], wanted, kRounding*(wanted) + 1e-15) << #term

// The qwen3moe fixture: 4 attention layers, hidden size 64, F32. A token reads 412,672 bytes of the
// layers' dense part, 131,328 of the head (norm of 64 values, 512 rows of 64), 4 of 16 experts of
// 12,288 bytes in each layer, and 256 bytes of keys and values a layer and token (F16).
constexpr double kDense = 412'672, kHead = 131'328, kExperts = 196'608;

TEST(CostModelTest, OneWorkerByHand) {
  const model::Model m = LoadFixture("siblings/qwen3moe");
  DecodeShape shape;
  shape.context_tokens = 100;
  const StepCost cost = DecodeCost(m.spec, TwoCores(), {}, shape);
  EXPECT_TERM(cost, kDense, kDense / 8e9);
  EXPECT_TERM(cost, kHead, kHead / 8e9);
  EXPECT_TERM(cost, kExperts, kExperts / 8e9);
  EXPECT_TERM(cost, kState, 100 * 4 * 256 / 10e9);
  EXPECT_TERM(cost, kOverhead, 44e-6);  // 10 stages a layer and 4
  EXPECT_TERM(cost, kCollectives, 0.0);
  EXPECT_TERM(cost, kHops, 0.0);
  EXPECT_EQ(cost.num_collectives, 0);
  ASSERT_EQ(cost.bytes.size(), 1U);
  EXPECT_EQ(cost.bytes[0][CostTerm::kDense], kDense);
  EXPECT_EQ(cost.bytes[0][CostTerm::kExperts], kExperts);
  EXPECT_NEAR(cost.ranks[0].total(), cost.seconds.total(), kRounding);
}

// Two threads share 16 GB/s: each reads at 8 instead of 10, so everything takes 1.25 times.
TEST(CostModelTest, ExpertParallelByHand) {
  const model::Model m = LoadFixture("siblings/qwen3moe");
  const StepCost cost = DecodeCost(m.spec, TwoCores(), Wish(v1::MODE_EXPERT_PARALLEL, 2));
  EXPECT_TERM(cost, kDense, 1.25 * kDense / 8e9);
  EXPECT_TERM(cost, kExperts, 1.25 * kExperts / 2 / 8e9);
  // 256 of 512 rows, and the norm.
  EXPECT_TERM(cost, kHead, 1.25 * (131'072 / 2 + 256) / 8e9);
  // One all-reduce of 256 bytes a layer, one of 520 bytes of candidates.
  EXPECT_TERM(cost, kCollectives, (4 * 5 + 5 + 5 * (520.0 - 256) / (10240 - 256)) * 1e-6);
  EXPECT_TERM(cost, kHops, 5e-6);  // the header
  EXPECT_EQ(cost.num_collectives, 5);
  EXPECT_EQ(cost.collective_bytes, 256);
}

TEST(CostModelTest, TensorExpertParallelByHand) {
  const model::Model m = LoadFixture("siblings/qwen3moe");
  const StepCost cost = DecodeCost(m.spec, TwoCores(), Wish(v1::MODE_TENSOR_EXPERT_PARALLEL, 2));
  // Half of the four attention matrices of each layer (query 128, key and value 64, output 128
  // columns), all of norms (2 of 64, 2 of 32 values) and router (16 rows).
  const double halves = 4 * 4.0 * (64 * 128 + 2 * 64 * 64 + 128 * 64) / 2;
  const double wholes = 4 * 4.0 * (2 * 64 + 2 * 32 + 16 * 64);
  EXPECT_NEAR(2 * halves + wholes, kDense, 1e-6);
  EXPECT_TERM(cost, kDense, 1.25 * (halves + wholes) / 8e9);
  EXPECT_TERM(cost, kCollectives, (8 * 5 + 5 + 5 * (520.0 - 256) / (10240 - 256)) * 1e-6);
  EXPECT_EQ(cost.num_collectives, 9);
}

TEST(CostModelTest, OwnerByHand) {
  const model::Model m = LoadFixture("siblings/qwen3moe");
  const StepCost cost =
      DecodeCost(m.spec, TwoCores(),
                 Wish(v1::MODE_EXPERT_PARALLEL, 2, v1::PARTITION_SLICED, v1::DENSE_PART_OWNER));
  EXPECT_TERM(cost, kDense, 1.25 * kDense / 8e9);
  EXPECT_TERM(cost, kHead, 1.25 * kHead / 8e9);
  EXPECT_TERM(cost, kCollectives, 0.0);
  // Out with 4 ids and weights (288 bytes), back 256 bytes, 4 times; and the header.
  const double out = 5 + 5 * (288.0 - 256) / (10240 - 256);
  EXPECT_TERM(cost, kHops, (4 * (out + 5) + 5) * 1e-6);
  EXPECT_EQ(cost.ranks[1][CostTerm::kDense], 0);
  EXPECT_GT(cost.ranks[1][CostTerm::kExperts], 0);
}

// A sequence is in one stage at a time, which has the memory for itself.
TEST(CostModelTest, LayerSplitByHand) {
  const model::Model m = LoadFixture("siblings/qwen3moe");
  const StepCost cost = DecodeCost(m.spec, TwoCores(), Wish(v1::MODE_LAYER_SPLIT, 2));
  EXPECT_TERM(cost, kDense, kDense / 8e9);
  EXPECT_TERM(cost, kExperts, kExperts / 8e9);
  EXPECT_TERM(cost, kHead, kHead / 8e9);
  EXPECT_TERM(cost, kHops, 2 * 5e-6);  // one cut, and the header
  EXPECT_EQ(cost.ranks[0][CostTerm::kHead], 0);
  EXPECT_NEAR(cost.ranks[0].total() + cost.ranks[1].total() + 5e-6, cost.seconds.total(),
              kRounding);
}

TEST(CostModelTest, StagesOfALayerSplitWorkAtTheSameTimeOnTwoGroups) {
  const model::Model m = LoadFixture("siblings/qwen3moe");
  v1::HardwareProfile profile = TwoCores();
  const absl::StatusOr<CostModel> model = ModelOf(m.spec, profile, Wish(v1::MODE_LAYER_SPLIT, 2));
  ASSERT_TRUE(model.ok()) << model.status();
  DecodeShape two;
  two.num_sequences = 2;
  // The cycle is two times the slowest stage, which runs 1.25 times slower beside the other: cut
  // behind layer 1 or 2, whichever has the smaller largest stage with the head.
  const double layer = (kDense + kExperts) / 4;
  const double slowest = std::max(2 * layer, 2 * layer + kHead);
  const double seconds = 1.25 * slowest / 8e9 + (2 * 10 + 4) * 1e-6;
  EXPECT_NEAR(model->TokensPerSecond(two), 2 / (2 * seconds), 1e-3 / seconds);
  EXPECT_GT(model->TokensPerSecond(two), 1.2 * model->TokensPerSecond({}));
}

// More rows cost arithmetic: at 8 rows twice the time of one, with more in proportion.
TEST(CostModelTest, RowsOfABatchCostArithmetic) {
  const model::Model m = LoadFixture("siblings/qwen3moe");
  DecodeShape shape;
  shape.num_sequences = 8;
  EXPECT_TERM(DecodeCost(m.spec, TwoCores(), {}, shape), kDense, kDense / 4e9);
  shape.num_sequences = 16;
  EXPECT_TERM(DecodeCost(m.spec, TwoCores(), {}, shape), kDense, kDense / 2e9);
  // Two ranks slow each other's reading, not their arithmetic.
  shape.num_sequences = 8;
  EXPECT_TERM(DecodeCost(m.spec, TwoCores(), Wish(v1::MODE_EXPERT_PARALLEL, 2), shape), kDense,
              kDense * (1.25 / 8e9 + (1 / 4e9 - 1 / 8e9)));
}

TEST(CostModelTest, DraftsReadMoreExpertsAndGiveMoreTokens) {
  const model::Model m = LoadFixture("siblings/qwen3moe");
  const absl::StatusOr<CostModel> model = ModelOf(m.spec, TwoCores(), {});
  ASSERT_TRUE(model.ok()) << model.status();
  DecodeShape drafts;
  drafts.window_rows = 4;
  drafts.tokens_per_pass = 2.5;
  const StepCost pass = model->Decode(drafts);
  // 4 of 16 experts in each of 4 rows: 16 (1 - 0.75^4) different ones of 12,288 bytes a layer.
  EXPECT_NEAR(pass.bytes[0][CostTerm::kExperts], 4 * 12'288 * 16 * (1 - 0.75 * 0.75 * 0.75 * 0.75),
              1e-6);
  EXPECT_NEAR(model->TokensPerSecond(drafts), 2.5 / pass.seconds.total(), 1e-6);
}

TEST(CostModelTest, MoreThreadsThanCoresShareThem) {
  const model::Model m = LoadFixture("siblings/qwen3moe");
  const StepCost four = DecodeCost(m.spec, TwoCores(), Wish(v1::MODE_EXPERT_PARALLEL, 4));
  // 16 GB/s for four: 4 each, 2.5 times less than one alone.
  EXPECT_TERM(four, kDense, 2.5 * kDense / 8e9);
}

TEST(CostModelTest, SaysWhatTheProfileLacks) {
  const model::Model m = LoadFixture("siblings/qwen3moe");
  v1::HardwareProfile profile = TwoCores();
  const auto message = [&](const PlacementWish& wish, DeviceKind device) {
    return std::string(Message(ModelOf(m.spec, profile, wish, device).status()));
  };
  EXPECT_THAT(message(Wish(v1::MODE_LAYER_SPLIT, 2), DeviceKind::kGpu), HasSubstr("too few GPUs"));
  profile.mutable_collectives()->RemoveLast();
  profile.mutable_collectives()->RemoveLast();
  EXPECT_THAT(message(Wish(v1::MODE_LAYER_SPLIT, 4), DeviceKind::kCpu),
              HasSubstr("no all_reduce of 4 CPU ranks; measured: 2, 3"));
  profile.clear_kernel_rates();
  EXPECT_THAT(message({}, DeviceKind::kCpu), HasSubstr("kernel_rates"));
}

// ---- the full-size model on cards
// -----------------------------------------------------------------

class FullSizeCostTest : public ::testing::Test {
 protected:
  FullSizeCostTest() : model_(Load()) {}

  static model::Model Load() {
    const std::string path = testing::TestFilePath("full_size.gguf");
    model::FullSizeModel().Write(path);
    return model::LoadModel(path);
  }

  double TokensPerSecond(const PlacementWish& wish, double alpha_us,
                         std::vector<double> resident_share = {}, double num_sequences = 1) {
    const absl::StatusOr<CostModel> model =
        ModelOf(model_.spec, Cards(wish.world_size, alpha_us), wish, DeviceKind::kGpu,
                std::move(resident_share));
    EXPECT_TRUE(model.ok()) << model.status();
    DecodeShape shape;
    shape.num_sequences = num_sequences;
    return model->TokensPerSecond(shape);
  }

  model::Model model_;
};

// 4,676,195,840 bytes of the dense side and 1,162,496,000 of experts at 655.2 GB/s, 226,492,416 of
// states, and 2 ms.
TEST_F(FullSizeCostTest, OneCardWithEverythingResident) {
  const double seconds = (4'676'195'840.0 + 1'162'496'000.0 + 226'492'416.0) / 655.2e9 + 2e-3;
  EXPECT_NEAR(TokensPerSecond({}, 10), 1 / seconds, 1e-6);
}

// Published for one card and IQ3_S: 0.36 of the experts resident, 0.07 of the choices miss, 60 GB/s
// and 20 us on the host. The host works beside the card: of a layer that misses (0.516 of all) what
// counts is what it takes beyond the card's experts.
TEST_F(FullSizeCostTest, MissesByHand) {
  v1::HardwareProfile profile = Cards(1, 10);
  v1::MissPoint& point = *profile.add_misses();
  point.set_resident_share(0.36);
  point.set_miss_share(0.07);
  const absl::StatusOr<CostModel> model =
      ModelOf(model_.spec, profile, {}, DeviceKind::kGpu, {0.36});
  ASSERT_TRUE(model.ok()) << model.status();
  const StepCost cost = model->Decode({});
  const double any = 1 - std::pow(0.93, 10);
  double expected = 0;
  for (size_t l = 0; l < 48; ++l) {
    const double q = static_cast<double>(model->reads()[0].layers[l].expert.total());
    const double shared = static_cast<double>(model->reads()[0].layers[l].shared.total());
    const double host = 0.07 * 10 * q / 60e9 / any + 20e-6;
    const double card = (0.93 * 10 * q + shared) / 655.2e9;
    expected += any * (host - card);
  }
  EXPECT_NEAR(cost.seconds[CostTerm::kMiss], expected, 1e-9);
  EXPECT_NEAR(cost.bytes[0][CostTerm::kMiss], 0.07 * 1'162'496'000, 1);
}

// The published break-even latencies, in us: IQ3_S (2,046,379 bytes an expert) and plain IQ4_XS
// (2,662,400), 2 to 4 cards. They were stated for shares rounded to two digits.
TEST(BreakEvenTest, PublishedLatencies) {
  const double shares[] = {0.62, 0.49, 0.417};
  const double iq3_s[] = {12, 16, 19}, iq4_xs[] = {15, 20, 23};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(1e6 * BreakEvenLatency(480 * 2'046'379 / 655.2e9, shares[i], 48), iq3_s[i], 1);
    EXPECT_NEAR(1e6 * BreakEvenLatency(480 * 2'662'400 / 655.2e9, shares[i], 48), iq4_xs[i], 1);
  }
}

// The shape of the published table: with everything resident, layer split does not gain by cards;
// whole experts beat it below the break-even latency and lose above; more cards gain less and less.
TEST_F(FullSizeCostTest, TableHasThePublishedShape) {
  double last = 0;
  for (const int num_cards : {2, 3, 4}) {
    const PlacementWish split = Wish(v1::MODE_LAYER_SPLIT, num_cards);
    const PlacementWish whole = Wish(v1::MODE_EXPERT_PARALLEL, num_cards, v1::PARTITION_WHOLE);
    const double by_layers = TokensPerSecond(split, 6);
    EXPECT_NEAR(by_layers, TokensPerSecond({}, 6), 0.01 * by_layers);
    const double by_experts = TokensPerSecond(whole, 6);
    EXPECT_GT(by_experts, by_layers);
    EXPECT_GT(by_experts, last);
    last = by_experts;
    EXPECT_LT(TokensPerSecond(whole, 45), TokensPerSecond(split, 45));
    // Each all-reduce counts once a layer.
    const double slower = 1 / TokensPerSecond(whole, 30) - 1 / TokensPerSecond(whole, 20);
    EXPECT_NEAR(slower, (48 + 2) * 10e-6, 1e-9);  // also candidates and header
  }
  // The dense side is four fifths of the bytes: only tensor parallel divides it.
  const PlacementWish tensor = Wish(v1::MODE_TENSOR_EXPERT_PARALLEL, 4);
  EXPECT_GT(TokensPerSecond(tensor, 6), 1.2 * last);
}

// At 8 sequences four cards with whole experts give more than half as much again as a layer split
// that works on one group at a time: expert parallel is a batch mode first.
TEST_F(FullSizeCostTest, BatchesGainByWholeExperts) {
  const PlacementWish whole = Wish(v1::MODE_EXPERT_PARALLEL, 4, v1::PARTITION_WHOLE);
  EXPECT_GT(TokensPerSecond(whole, 6, {}, 8), 1.5 * TokensPerSecond({}, 6, {}, 8));
}

}  // namespace
}  // namespace switchyard::placement
