// The ledger of real steps: what no stage covers is small.
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "app/cost_report.h"
#include "app/engine_setup.h"
#include "app/loaded_model.h"
#include "base/check.h"
#include "synth_test_models.h"

namespace switchyard::app {
namespace {

using coordinator::GenerationEvent;
using coordinator::GenerationRequest;
using coordinator::StepCosts;

// Costs of each step of one generation, and of all of them in the end.
std::vector<StepCosts> Run(const std::string& path, StepCosts& total) {
  auto model = OpenModel(path);
  SWITCHYARD_CHECK(model.ok());
  ModelOptions options;
  options.context = 256;
  options.num_threads = 1;
  auto engine = StartEngine(**model, options);
  SWITCHYARD_CHECK(engine.ok());
  GenerationRequest request;
  for (int i = 0; i < 100; ++i) request.prompt.push_back(7 + (37 * i) % 200);
  request.max_tokens = 101;
  request.ignore_eos = true;
  request.return_step_costs = true;
  std::mutex mutex;
  std::condition_variable changed;
  bool is_finished = false;
  std::vector<StepCosts> steps;
  const auto id = (*engine)->Start(request, [&](const GenerationEvent& event) {
    std::lock_guard lock(mutex);
    if (event.finished) {
      total = event.costs;
      is_finished = true;
      changed.notify_all();
    } else if (event.costs.num_steps > 0) {
      steps.push_back(event.costs);
    }
  });
  SWITCHYARD_CHECK(id.ok());
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return is_finished; });
  return steps;
}

void ExpectCovered(const std::string& path) {
  StepCosts total;
  const std::vector<StepCosts> steps = Run(path, total);
  ASSERT_GE(steps.size(), 101u);
  std::vector<double> shares;
  StepCosts sum;
  for (const StepCosts& step : steps) {
    EXPECT_EQ(step.num_steps, 1);
    // Stages are disjoint parts of the step; rounding alone may make them more than the whole.
    EXPECT_GE(step.unattributed_seconds(), -1e-9);
    shares.push_back(step.unattributed_seconds() / step.seconds);
    sum += step;
  }
  EXPECT_EQ(sum.num_steps, total.num_steps);
  EXPECT_DOUBLE_EQ(sum.seconds, total.seconds);
  // The median: a step in which the system took the core away between two stamps says nothing.
  std::nth_element(shares.begin(), shares.begin() + shares.size() / 2, shares.end());
  EXPECT_LE(shares[shares.size() / 2], 0.05);
}

TEST(LedgerTest, StagesCoverTheStepsOfTheDemoModel) {
  ExpectCovered(std::string(SWITCHYARD_SOURCE_DIR) + "/deploy/demo/switchyard-demo.gguf");
}

TEST(LedgerTest, StagesCoverTheStepsOfATinyModel) {
  ExpectCovered(WriteTestModel(SynthOptions(), "ledger_tiny.gguf"));
}

TEST(CostReportTest, ShowsStagesAndTheRest) {
  StepCosts costs;
  costs.stages[worker::v1::STAGE_EXPERTS_DEVICE] = {.seconds = 1.5, .weight_bytes = 3'000'000'000};
  costs.stages[worker::v1::STAGE_SAMPLE] = {.seconds = 0.25, .weight_bytes = 0};
  costs.seconds = 2;
  costs.num_steps = 4;
  costs.idle_seconds = 0.5;
  const std::string table = CostTable(costs);
  EXPECT_THAT(table, ::testing::HasSubstr("experts_device       1.5000   75.0%"));
  EXPECT_THAT(table, ::testing::HasSubstr("    2.00\n"));  // GB/s
  EXPECT_THAT(table, ::testing::HasSubstr("unattributed         0.2500   12.5%\n"));
  EXPECT_THAT(table, ::testing::HasSubstr("4 steps; the worker waited 0.5000 s"));
  EXPECT_THAT(table, ::testing::Not(::testing::HasSubstr("router")));
  const auto json = CostsJson(costs);
  EXPECT_EQ(json["unattributed_seconds"], 0.25);
  EXPECT_EQ(json["stages"].size(), 2u);
  EXPECT_EQ(json["stages"][0]["stage"], "experts_device");
  EXPECT_FALSE(json.contains("ranks"));
}

TEST(CostReportTest, ShowsEveryRankAndLink) {
  StepCosts costs;
  costs.seconds = 2;
  costs.num_steps = 4;
  for (int rank = 0; rank < 2; ++rank) {
    coordinator::RankTotal total{.rank = rank};
    total.seconds = 2;
    total.stages[worker::v1::STAGE_COLLECTIVE].seconds = 0.25;
    total.stages[worker::v1::STAGE_COLLECTIVE_WAIT].seconds = 0.5 * rank;
    costs.ranks.push_back(total);
  }
  costs.links = {{.from = 1,
                  .to = 0,
                  .bytes = 8192,
                  .num_messages = 4,
                  .transfer_seconds = 1e-3,
                  .flight_seconds = 2e-3}};
  const std::string table = CostTable(costs);
  EXPECT_THAT(table, ::testing::HasSubstr("rank 0; it waited 0.0000 s"));
  EXPECT_THAT(table, ::testing::HasSubstr("rank 1; it waited 0.0000 s"));
  EXPECT_THAT(table, ::testing::HasSubstr("collective           0.2500   12.5%"));
  EXPECT_THAT(table, ::testing::HasSubstr("collective_wait      0.5000   25.0%"));
  EXPECT_THAT(table, ::testing::HasSubstr(
                         "1 -> 0              8.19 kB          4      1.00 ms       500 us"));
  const auto json = CostsJson(costs);
  EXPECT_EQ(json["ranks"][1]["stages"][1]["stage"], "collective_wait");
  EXPECT_EQ(json["links"][0]["bytes"], 8192);
}

}  // namespace
}  // namespace switchyard::app
