// Every architecture from a written file to an answer.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "testing/process.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProcessOptions;
using testing::ProcessResult;

ProcessResult Switchyard(std::vector<std::string> arguments, const ProcessOptions& options = {}) {
  arguments.insert(arguments.begin(), SWITCHYARD_BINARY);
  return testing::RunProcess(arguments, options);
}

class ArchitectureTest : public ::testing::TestWithParam<std::string> {
 protected:
  ArchitectureTest() {
    std::string name = (std::filesystem::temp_directory_path() / "switchyard_XXXXXX").string();
    folder_ = mkdtemp(name.data());
    model_ = folder_ / "model.gguf";
    // Widths at which all formats of the layout fit.
    const ProcessResult result = Switchyard({"synth", model_, "--arch", GetParam(), "--hidden",
                                             "256", "--expert-hidden", "256", "--types", "mixed"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  ~ArchitectureTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
  std::string model_;
};

TEST_P(ArchitectureTest, IsInspectedWithThePartsThatItHas) {
  const ProcessResult result = Switchyard({"inspect", model_, "--verify"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(GetParam()));
  EXPECT_THAT(result.out, HasSubstr("routed experts"));
  const auto has = [&](const char* part) { return result.out.find(part) != std::string::npos; };
  EXPECT_EQ(has("residual streams"), GetParam() == "qwen4exp");
  EXPECT_EQ(has("shared expert of width"), GetParam() != "qwen3moe");
}

TEST_P(ArchitectureTest, SecondTurnOfAChatReusesTheFirstAndReadsAsWithoutReuse) {
  std::string question;
  for (int i = 0; i < 12; ++i) question += "the quick brown fox jumps over the lazy dog. ";
  const ProcessOptions chat = {.input = question + "\nmore please\n"};
  const std::vector<std::string> run = {"run", model_, "--greedy", "--ignore-eos", "-n", "40"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), run.begin(), run.end());
    return Switchyard(more, chat);
  };
  const ProcessResult warm = with({"--threads", "2"});
  EXPECT_EQ(warm.exit_code, 0) << warm.err;
  EXPECT_THAT(warm.err, HasSubstr("(128 reused)"));
  const ProcessResult cold =
      with({"--threads", "1", "--chunk", "64", "--prefix-cache-bytes", "0B"});
  EXPECT_EQ(cold.exit_code, 0) << cold.err;
  EXPECT_THAT(cold.err, Not(HasSubstr("(128 reused)")));
  EXPECT_GT(warm.out.size(), 40u);
  EXPECT_EQ(warm.out, cold.out);
}

INSTANTIATE_TEST_SUITE_P(All, ArchitectureTest,
                         ::testing::Values("qwen4exp", "qwen35moe", "qwen3next", "qwen3moe"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace switchyard
