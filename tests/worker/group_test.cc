// Several ranks against one: the topology does not change the text.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
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

Outcome RunTopology(const std::string& fixture, const PlacementWish& wish) {
  std::vector<int32_t> tokens = ReadTokens(FixturePath(fixture + ".tokens.txt"));
  const auto context = static_cast<int64_t>(tokens.size()) + kNumNew;
  RankGroup group(FixtureModel(fixture), kCpu, TestOptions(context), wish);
  return {group.Continue(tokens, kNumNew, 64), group.spec().vocab_size};
}

const Outcome& Single(const std::string& fixture) {
  static auto& outcomes = *new std::map<std::string, Outcome>;
  const auto known = outcomes.find(fixture);
  if (known != outcomes.end()) return known->second;
  return outcomes[fixture] = RunTopology(fixture, {});
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Whether the model's products are exact but for rounding: all of its weights are floats.
bool IsF32(const std::string& fixture) {
  const auto file = model::GgufFile::Open(FixtureModel(fixture));
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
  const auto file = model::GgufFile::Open(FixtureModel(fixture));
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
                                     "qwen3moe", "qwen3next", "qwen35moe"),
                     testing::ValuesIn(Topologies())),
    [](const auto& info) { return std::get<0>(info.param) + std::get<1>(info.param).name; });

}  // namespace
}  // namespace switchyard::worker
