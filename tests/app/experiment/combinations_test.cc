// Which combinations an experiment consists of, and why some cannot run.
#include "app/experiment/combinations.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ExperimentSpec SpecOf(std::vector<TopologyMatrix> topologies,
                      std::vector<Condition> disturbed = {}) {
  ExperimentSpec spec;
  spec.topologies = std::move(topologies);
  spec.conditions.emplace_back();
  spec.conditions.insert(spec.conditions.end(), disturbed.begin(), disturbed.end());
  return spec;
}

std::vector<std::string> Names(const std::vector<Combination>& combinations) {
  std::vector<std::string> names;
  for (const Combination& c : combinations) {
    names.push_back(Describe(c.topology) + (c.refusal.empty() ? "" : " !"));
  }
  return names;
}

TEST(CombinationsTest, ListsWhatCannotRunToo) {
  EXPECT_THAT(Names(Enumerate(SpecOf({{.workers = {1, 2}, .modes = {"single", "layer_split"}}}))),
              ElementsAre("1 x single, 1 thread", "1 x layer_split, 1 thread",
                          "2 x single, 1 thread !", "2 x layer_split, 1 thread"));
}

TEST(CombinationsTest, ListsThatMeanNothingInAModeDoNotMultiplyIt) {
  EXPECT_THAT(Names(Enumerate(
                  SpecOf({{.workers = {2},
                           .modes = {"layer_split", "expert_parallel", "tensor_expert_parallel"},
                           .partitions = {"whole", "sliced"},
                           .dense = {"replicated", "owner"},
                           .layer_splits = {"3"},
                           .threads = {2}}}))),
              ElementsAre("1 x single, 2 threads", "2 x layer_split, cut at 3, 2 threads",
                          "2 x expert_parallel, whole, replicated, 2 threads",
                          "2 x expert_parallel, whole, owner, 2 threads",
                          "2 x expert_parallel, sliced, replicated, 2 threads",
                          "2 x expert_parallel, sliced, owner, 2 threads",
                          "2 x tensor_expert_parallel, whole, 2 threads !",
                          "2 x tensor_expert_parallel, sliced, 2 threads"));
}

TEST(CombinationsTest, NamesEachOnceAndAddsTheSingleWorker) {
  const TopologyMatrix matrix = {.workers = {2}, .modes = {"layer_split"}};
  EXPECT_THAT(Names(Enumerate(SpecOf({matrix, matrix}))),
              ElementsAre("1 x single, 1 thread", "2 x layer_split, 1 thread"));
}

TEST(CombinationsTest, RefusesDisturbancesOfRanksThatThereAreNot) {
  const auto combinations =
      Enumerate(SpecOf({{.workers = {2}, .modes = {"layer_split"}}},
                       {{.name = "a", .link_rules = "0->1 delay=1ms; 1->2 drop"},
                        {.name = "b", .link_rules = "*->1 delay=1ms"},
                        {.name = "c", .competitor_rank = 2},
                        {.name = "d", .competitor_rank = 0}}));
  ASSERT_EQ(combinations.size(), 10u);  // single and split, each five times
  EXPECT_EQ(combinations[1].refusal, "");
  EXPECT_THAT(combinations[2].refusal, HasSubstr("one worker has no links"));
  EXPECT_THAT(combinations[3].refusal, HasSubstr("names rank 2; the last of 2 is 1"));
  EXPECT_EQ(combinations[5].refusal, "");
  EXPECT_THAT(combinations[7].refusal, HasSubstr("no rank 2 to disturb"));
  EXPECT_EQ(combinations[8].refusal, "");
}

}  // namespace
}  // namespace switchyard::app
