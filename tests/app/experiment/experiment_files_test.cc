// The ready experiments can be read, and what belongs to running one: CPUs, texts.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "app/experiment/combinations.h"
#include "app/experiment/experiment_run.h"
#include "app/experiment/made_up_result.h"

namespace switchyard::app {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ExperimentSpec Read(const std::string& name) {
  const std::string path = std::string(SWITCHYARD_SOURCE_DIR) + "/deploy/experiments/" + name;
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto spec = ParseExperiment(text, path);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : ExperimentSpec();
}

TEST(ExperimentFilesTest, AllNameTheDemoModelAndOnlyWhatCanRun) {
  int count = 0;
  for (const auto& entry :
       fs::directory_iterator(std::string(SWITCHYARD_SOURCE_DIR) + "/deploy/experiments")) {
    const ExperimentSpec spec = Read(entry.path().filename());
    EXPECT_TRUE(fs::exists(spec.model)) << spec.model;
    for (const Combination& combination : Enumerate(spec)) {
      // Only the single worker cannot have its links disturbed.
      if (combination.topology.workers > 1) {
        EXPECT_EQ(combination.refusal, "");
      }
    }
    ++count;
  }
  EXPECT_GE(count, 3);
}

TEST(ExperimentFilesTest, ModesHaveOneToFourWorkersAndEveryMode) {
  std::set<int> workers;
  std::set<std::string> modes;
  for (const Combination& combination : Enumerate(Read("modes.toml"))) {
    workers.insert(combination.topology.workers);
    modes.insert(combination.topology.mode);
  }
  EXPECT_THAT(workers, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(modes.size(), 4u);
}

TEST(CpusOfRanksTest, EachRankHasItsOwnUntilTheyEnd) {
  EXPECT_THAT(CpusOfRanks({0, 1}, 2, 1), ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(CpusOfRanks({4, 5, 6}, 2, 2), ElementsAre(ElementsAre(4, 5), ElementsAre(6, 4)));
  EXPECT_THAT(CpusOfRanks({0, 1}, 3, 1),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(0)));
  EXPECT_THAT(CpusOfRanks({0}, 1, 4), ElementsAre(ElementsAre(0)));
  EXPECT_THAT(CpusOfRanks({}, 2, 1), ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(DescribeDevicesTest, NamesThreadsAndCpus) {
  Combination one;
  Combination two;
  two.topology.threads = 2;
  EXPECT_EQ(DescribeDevices({one}, 2, "a processor"),
            "CPU workers with 1 thread each, on 2 CPUs (a processor)");
  EXPECT_EQ(DescribeDevices({one, two}, 1, ""), "CPU workers with 1 or 2 threads each, on 1 CPU");
}

TEST(ResultTableTest, ShowsEveryRunAndFinding) {
  const std::string table = ResultTable(MadeUpResult());
  EXPECT_THAT(table, HasSubstr("CPU workers with 1 thread each\n"));
  EXPECT_THAT(table, HasSubstr("| 2 x tensor_expert_parallel, 1 thread | 64 tokens | hit |"));
  EXPECT_THAT(table, HasSubstr("cannot run: mode single has one worker"));
  EXPECT_THAT(table, HasSubstr("slow link: the link from rank 0 to rank 1 is late"));
  EXPECT_THAT(ResultTable(ExperimentResult()), HasSubstr("no rank and no link stands out"));
}

TEST(DiagnosisJsonTest, NamesCauseAndPlace) {
  const auto json = DiagnosisJson(MadeUpResult());
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["cause"], "link_delay");
  EXPECT_EQ(json[0]["run"], 2);
  EXPECT_EQ(json[0]["from"], 0);
  EXPECT_EQ(json[0]["to"], 1);
  EXPECT_EQ(json[1]["cause"], "slow_rank");
  EXPECT_EQ(json[1]["rank"], 1);
}

}  // namespace
}  // namespace switchyard::app
