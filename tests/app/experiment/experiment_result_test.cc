// Results as files: what is written is read again, and what is no result is refused by place.
#include "app/experiment/experiment_result.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "app/experiment/made_up_result.h"
#include "base/status.h"

namespace switchyard::app {
namespace {

using ::testing::HasSubstr;

ExperimentResult Example() {
  ExperimentResult result;
  result.name = "modes";
  result.created_at = "2026-11-30T12:00:00Z";
  result.version = "0.1.0";
  result.devices = "CPU workers with 1 thread each";
  result.machine = {{"cpu_model", "x"}};
  result.model = {{"file", "m.gguf"}};
  result.settings = {{"repetitions", 5}};
  result.runs.push_back(MakeRun({}));
  result.runs.push_back(MakeRun({.condition = {.name = "x", .competitor_rank = 1}}));
  CombinationResult refused;
  refused.combination.topology.workers = 2;
  refused.status = "refused";
  refused.reason = refused.combination.refusal = "because";
  result.runs.push_back(refused);
  return result;
}

TEST(ExperimentResultTest, IsReadAsItWasWritten) {
  const std::string text = ToJson(Example()).dump();
  const auto result = ParseExperimentResult(text, "file");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(ToJson(*result).dump(), text);
  EXPECT_EQ(result->runs[1].combination.condition.competitor_rank, 1);
  EXPECT_EQ(result->runs[2].combination.refusal, "because");
}

TEST(ExperimentResultTest, KeepsWhatOthersAdded) {
  auto json = ToJson(Example());
  json["residency"] = {{"num_layers", 2}};
  const auto result = ParseExperimentResult(json.dump(), "file");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(ToJson(*result)["residency"]["num_layers"], 2);
}

TEST(ExperimentResultTest, NamesThePlaceOfAnError) {
  const auto error_of = [](const nlohmann::ordered_json& json) {
    const auto result = ParseExperimentResult(json.dump(), "file");
    return result.ok() ? "no error" : std::string(Message(result.status()));
  };
  auto json = ToJson(Example());
  json["runs"][1]["measurements"][0]["samples"][2]["decode"]["links"][0].erase("bytes");
  EXPECT_EQ(error_of(json),
            "file: runs[1].measurements[0].samples[2].decode.links[0].bytes is missing");
  json = ToJson(Example());
  json["runs"][0]["workers"] = "2";
  EXPECT_EQ(error_of(json), "file: runs[0].workers is not a whole number");
  json = ToJson(Example());
  json["runs"] = 3;
  EXPECT_EQ(error_of(json), "file: runs is not a list");
  json = ToJson(Example());
  json["schema"] = "other/1";
  EXPECT_THAT(error_of(json), HasSubstr("is no result of an experiment: schema, got: other/1"));
  EXPECT_EQ(error_of(nlohmann::ordered_json::array()), "file: the file is no object");
}

TEST(ExperimentResultTest, RefusesWhatIsNoJson) {
  EXPECT_THAT(std::string(Message(ParseExperimentResult("{", "file").status())),
              HasSubstr("file: is no JSON"));
}

TEST(StepLedgerTest, TheRestIsTheWholeWithoutThePart) {
  const StepLedger part = MadeUpLedger({}, true, 1);
  StepLedger whole = part;
  const StepLedger decode = MadeUpLedger({}, false, 1);
  Add(decode, whole);
  const StepLedger rest = Subtract(whole, part);
  ASSERT_EQ(rest.ranks.size(), decode.ranks.size());
  ASSERT_EQ(rest.links.size(), decode.links.size());
  EXPECT_EQ(rest.num_steps, decode.num_steps);
  for (size_t i = 0; i < rest.ranks.size(); ++i) {
    // A difference of sums of some milliseconds: as exact as doubles are at that size.
    EXPECT_NEAR(rest.ranks[i].seconds, decode.ranks[i].seconds, 1e-15);
    EXPECT_EQ(rest.ranks[i].weight_bytes(), decode.ranks[i].weight_bytes());
  }
  EXPECT_EQ(rest.links[1].bytes, decode.links[1].bytes);
  EXPECT_EQ(rest.links[1].num_messages, decode.links[1].num_messages);
}

}  // namespace
}  // namespace switchyard::app
