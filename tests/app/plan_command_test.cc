// `switchyard plan` and `switchyard probe` as their users run them. Speed is not tested.
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "testing/gguf_writer.h"
#include "testing/process.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using testing::ProcessResult;

ProcessResult Switchyard(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {SWITCHYARD_BINARY, "-q"});
  return testing::RunProcess(arguments);
}

nlohmann::json RunForJson(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"-o", "json"});
  const ProcessResult result = Switchyard(std::move(arguments));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false);
}

const char* const kFourCards = SWITCHYARD_PROFILES "/rtx3090-x4.json";

TEST(PlanCommandTest, ListsEveryPlanWithItsTerms) {
  const nlohmann::json json = RunForJson({"plan", SWITCHYARD_DEMO_MODEL, "--profile", kFourCards});
  EXPECT_EQ(json["goal"], "latency");
  EXPECT_EQ(json["is_estimate"], true);
  EXPECT_FALSE(json["sources"].empty());
  ASSERT_EQ(json["plans"].size(), 19U);  // one with one card, six with each of 2, 3 and 4
  for (const auto& plan : json["plans"]) {
    EXPECT_FALSE(plan["reason"].get<std::string>().empty());
    if (!plan["can_run"]) continue;
    double sum = 0;
    for (const auto& [term, seconds] : plan["seconds"].items()) sum += seconds.get<double>();
    EXPECT_NEAR(sum, plan["step_seconds"].get<double>(), 1e-12);
    EXPECT_EQ(plan["ranks"].size(), plan["workers"].get<size_t>());
  }
  EXPECT_TRUE(json["plans"][0]["can_run"]);
  EXPECT_EQ(json["fast"]["workers"], 1);
}

TEST(PlanCommandTest, PrintsATableAndReasons) {
  const ProcessResult result = Switchyard({"plan", SWITCHYARD_DEMO_MODEL, "--profile", kFourCards,
                                           "--workers", "1,2", "--goal", "throughput"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("| devices | mode | tok/s |"));
  EXPECT_THAT(result.out, HasSubstr("best for throughput"));
  EXPECT_THAT(result.out, HasSubstr("nothing here was measured"));
  EXPECT_THAT(result.out, HasSubstr("FAST: "));
}

TEST(PlanCommandTest, RefusesProfilesThatAreNone) {
  std::ifstream file(kFourCards);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  const std::string cut = testing::WriteTestFile("cut.json", whole.substr(0, whole.size() / 2));
  ProcessResult result = Switchyard({"plan", SWITCHYARD_DEMO_MODEL, "--profile", cut});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("cut.json: profile is no JSON: text ends"));
  result = Switchyard({"plan", SWITCHYARD_DEMO_MODEL, "--profile", "/none.json"});
  EXPECT_EQ(result.exit_code, 2);
  // Without a profile: how to get one.
  result = testing::RunProcess({SWITCHYARD_BINARY, "plan", SWITCHYARD_DEMO_MODEL},
                               {.environment = {"XDG_CACHE_HOME=/nonexistent"}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("switchyard probe"));
}

TEST(PlanCommandTest, RefusesAContextThatTheModelLacks) {
  const ProcessResult result =
      Switchyard({"plan", SWITCHYARD_DEMO_MODEL, "--profile", kFourCards, "--context", "1M"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("context"));
}

// A short measurement, and plans made from it.
TEST(ProbeCommandTest, WhatIsMeasuredHereCanBePlannedWith) {
  const std::string path = testing::TestFilePath("here.json");
  const nlohmann::json profile =
      RunForJson({"probe", "--profile", path, "--formats", "Q8_0", "-t", "1", "--ranks", "2", "-r",
                  "1", "--seconds", "0.002", "--bytes", "64MiB", "--max-foreign", "1000"});
  EXPECT_EQ(profile["schema_version"], 1);
  EXPECT_FALSE(profile["host"]["boot_id"].get<std::string>().empty());
  EXPECT_EQ(profile["memory_reads"].size(), 1U);
  EXPECT_EQ(profile["kernel_rates"].size(), 4U);  // numbers of rows
  EXPECT_EQ(profile["fork_joins"].size(), 1U);
  std::set<std::string> ops;
  for (const auto& row : profile["collectives"]) {
    ops.insert(row["op"].get<std::string>());
    EXPECT_GT(row["us"]["median"].get<double>(), 0);
    EXPECT_FALSE(row.contains("wrong"));  // zero is left out
  }
  EXPECT_EQ(ops, (std::set<std::string>{"all_reduce", "broadcast", "reduce", "sendrecv"}));
  const nlohmann::json plans =
      RunForJson({"plan", SWITCHYARD_DEMO_MODEL, "--profile", path, "--workers", "1,2"});
  EXPECT_EQ(plans["is_estimate"], false);
  EXPECT_EQ(plans["plans"][0]["can_run"], true);
}

TEST(ProbeCommandTest, RefusesUnknownFormats) {
  const ProcessResult result =
      Switchyard({"probe", "--profile", testing::TestFilePath("x.json"), "--formats", "Q9"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("format is unknown: Q9"));
}

}  // namespace
}  // namespace switchyard
