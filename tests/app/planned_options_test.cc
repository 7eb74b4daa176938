// What `serve --profile-goal` makes of a profile.
#include "app/plan/planned_options.h"

#include <fstream>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "app/exit_code.h"
#include "app/loaded_model.h"
#include "placement/profile_builder.h"
#include "testing/gguf_writer.h"

namespace switchyard::app {
namespace {

using ::testing::HasSubstr;

class PlannedOptionsTest : public ::testing::Test {
 protected:
  PlannedOptionsTest() {
    auto model = OpenModel(SWITCHYARD_DEMO_MODEL);
    EXPECT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }

  // A file with what two cores can do; one thread alone reads `one`, both together `both` GB/s.
  std::string Profile(double one, double both) const {
    placement::v1::HardwareProfile profile = placement::TwoCores();
    profile.set_is_estimate(true);
    profile.clear_memory_reads();
    placement::AddMemoryRead(profile, 1, one);
    placement::AddMemoryRead(profile, 2, both);
    profile.clear_kernel_rates();
    for (const char* format : {"F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q5_0", "Q5_1",
                               "Q4_0", "Q4_1", "IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS"}) {
      for (const uint32_t rows : {1U, 4U, 16U, 64U}) {
        placement::AddKernelRate(profile, format, 1, rows, one);
        placement::AddKernelRate(profile, format, 2, rows, both);
      }
    }
    const std::string path = switchyard::testing::TestFilePath("profile.json");
    std::ofstream(path) << placement::ProfileJson(profile).value();
    return path;
  }

  std::unique_ptr<LoadedModel> model_;
  ModelOptions options_;
};

TEST_F(PlannedOptionsTest, OneSequenceThatAllCoresReadForNeedsOneProcess) {
  const absl::Status status = ApplyPlan(model_->spec, "latency", Profile(10, 20), 4096, options_);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(options_.num_workers, 0);
  EXPECT_EQ(options_.num_threads, 2);
  EXPECT_EQ(options_.mode, "single");
}

TEST_F(PlannedOptionsTest, ThreadsThatWereAskedForStay) {
  options_.num_threads = 1;
  ASSERT_TRUE(ApplyPlan(model_->spec, "throughput", Profile(10, 20), 4096, options_).ok());
  EXPECT_EQ(options_.num_threads, 1);
}

TEST_F(PlannedOptionsTest, WhatNoPlanCanBeMadeOfIsAnErrorOfUsage) {
  const std::string cards = SWITCHYARD_PROFILES "/rtx3090-x2.json";
  const absl::Status status = ApplyPlan(model_->spec, "latency", cards, 4096, options_);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no rates of CPU memory"));
  EXPECT_EQ(ExitCodeOf(ApplyPlan(model_->spec, "latency", "/no/such/file", 4096, options_)),
            ExitCode::kUsage);
}

}  // namespace
}  // namespace switchyard::app
