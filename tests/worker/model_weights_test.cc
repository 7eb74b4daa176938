// What one token reads of the weights: by the tensors' sizes, by the file's summary and by the
// ledger of a step.
#include "worker/model_weights.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "model/model_summary.h"
#include "worker/engine_harness.h"

namespace switchyard::worker {
namespace {

struct TokenWeightsCase {
  std::string model;
  Device device;
};

class TokenWeightsTest : public testing::TestWithParam<TokenWeightsCase> {
 protected:
  static std::string Path() {
    return GetParam().model == "demo" ? DemoModel() : FixtureModel(GetParam().model);
  }
};

TEST_P(TokenWeightsTest, AgreesWithTheSummaryOfTheFile) {
  EngineHarness engine(Path(), GetParam().device, TestOptions(64));
  const TokenWeights& token = engine.executor().memory().token;
  const model::ModelSummary summary = model::Summarize(engine.spec());
  EXPECT_EQ(token.file_bytes, summary.dense_bytes_per_token + summary.expert_bytes_per_token);
  EXPECT_EQ(token.num_output_parameters, engine.spec().vocab_size * engine.spec().hidden_size);
  EXPECT_GT(token.num_parameters, token.num_output_parameters);
}

TEST_P(TokenWeightsTest, AgreesWithTheLedgerOfADecodeStep) {
  EngineHarness engine(Path(), GetParam().device, TestOptions(64));
  v1::StepPlan plan = engine.NewPlan();
  engine.AddStart(plan, 0);
  engine.AddChunk(plan, 0, 0, std::vector<int32_t>{1, 2, 3}).set_sample(true);
  engine.AddDecode(plan, 0);
  plan.set_run_ahead(2);
  engine.Begin(plan);
  engine.Step(plan, 0);
  const v1::StepResult result = engine.Step(plan, 1);
  int64_t bytes = 0;
  for (const v1::StageCost& cost : result.costs()) {
    if (cost.stage() == v1::STAGE_EMBED) continue;  // one row of a table
    bytes += static_cast<int64_t>(cost.weight_bytes());
  }
  const TokenWeights& token = engine.executor().memory().token;
  EXPECT_LE(bytes, token.memory_bytes);
  EXPECT_GE(bytes, token.memory_bytes - token.vector_bytes);
  EXPECT_LT(token.vector_bytes, token.memory_bytes / 20);
}

INSTANTIATE_TEST_SUITE_P(
    Models, TokenWeightsTest,
    testing::Values(TokenWeightsCase{"demo", kCpu}, TokenWeightsCase{"base", kCpu},
                    TokenWeightsCase{"mixed", kCpu}, TokenWeightsCase{"mixed", kReference},
                    TokenWeightsCase{"qwen3moe", kCpu}, TokenWeightsCase{"qwen3next", kCpu},
                    TokenWeightsCase{"qwen35moe", kCpu}),
    [](const auto& info) {
      return info.param.model + (info.param.device.reference ? "Reference" : "Cpu");
    });

}  // namespace
}  // namespace switchyard::worker
