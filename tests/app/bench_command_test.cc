// The parts of `switchyard bench` as their users run them: what they print is complete and makes
// sense. Speed is not tested.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cpu/cpu_features.h"
#include "testing/process.h"

namespace switchyard {
namespace {

using kernels::cpu::CpuLevel;
using kernels::cpu::RunsCpuLevel;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::ProcessResult;

// No attempt is repeated because the machine is busy.
ProcessResult Bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {SWITCHYARD_BINARY, "-q", "bench"});
  arguments.insert(arguments.end(), {"--max-foreign", "1000"});
  return testing::RunProcess(arguments);
}

// Runs a part for its JSON and checks what all of them have in common.
nlohmann::json RunForJson(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"-o", "json"});
  const ProcessResult result = Bench(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  const auto json = nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(json.is_discarded()) << result.out;
  EXPECT_EQ(json.value("benchmark", ""), arguments.front());
  EXPECT_FALSE(json.value("version", "").empty());
  const auto& machine = json["machine"];
  EXPECT_GE(machine.value("cores_allowed", 0), 1);
  EXPECT_GE(machine.value("memory_bytes", int64_t{0}), int64_t{1} << 20);
  EXPECT_THAT(machine["cpu_levels"], ::testing::Contains("scalar"));
  EXPECT_FALSE(json["rows"].empty());
  for (const auto& row : json["rows"]) {
    EXPECT_TRUE(row.contains("foreign_cpus")) << row;
    EXPECT_TRUE(row["quiet"].is_boolean()) << row;
  }
  return json;
}

// Samples as they come out of a clock: as many as asked for, positive, the median among them.
void ExpectSpread(const nlohmann::json& spread, size_t count) {
  const auto samples = spread["samples"].get<std::vector<double>>();
  ASSERT_EQ(samples.size(), count) << spread;
  for (const double sample : samples) EXPECT_TRUE(std::isfinite(sample) && sample > 0) << spread;
  EXPECT_EQ(spread["min"], *std::min_element(samples.begin(), samples.end()));
  EXPECT_EQ(spread["max"], *std::max_element(samples.begin(), samples.end()));
  EXPECT_THAT(samples, ::testing::Contains(spread["median"].get<double>()));
}

// One line that names the program, and nothing half said on stdout.
void ExpectError(const ProcessResult& result, int exit_code, const std::string& text) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, HasSubstr("switchyard: "));
  EXPECT_THAT(result.err, HasSubstr(text));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST(BenchCommandTest, MembwMeasuresEachThreadCountAndLevel) {
  std::string levels = "scalar";
  size_t num_levels = 1;
  if (RunsCpuLevel(CpuLevel::kAvx2)) levels += ",avx2", ++num_levels;
  const auto json =
      RunForJson({"membw", "--bytes", "16MiB", "-t", "1,2", "-r", "3", "--cpu-level", levels});
  ASSERT_EQ(json["rows"].size(), 2 * num_levels);
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["bytes"], 16 << 20);
    EXPECT_EQ(row["streams"], 4);
    ExpectSpread(row["gb_per_second"], 3);
    ExpectSpread(row["gb_per_second_cpu"], 3);
  }
  EXPECT_EQ(json["rows"][0]["threads"], 1);
  EXPECT_EQ(json["rows"][1]["threads"], 2);
}

TEST(BenchCommandTest, TableHasALineForEachRow) {
  const ProcessResult result = Bench({"membw", "--bytes", "8MiB", "-t", "1,2", "-r", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("| threads | cpu_level | bytes |"));
  // A line on the machine, an empty one, the head, the rule, two rows.
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 6) << result.out;
}

TEST(BenchCommandTest, BadFlagsAreRefused) {
  ExpectError(Bench({"membw", "--bytes", "0"}), 2, "--bytes");
  ExpectError(Bench({"membw", "--bytes", "many"}), 2, "many");
  ExpectError(Bench({"membw", "--streams", "3"}), 2, "--streams");
  ExpectError(Bench({"membw", "-t", "0"}), 2, "--threads");
  ExpectError(Bench({"membw", "--cpu-level", "avx2,sse"}), 2, "sse");
  ExpectError(Bench({"membw", "-r", "0"}), 2, "--repetitions");
  ExpectError(Bench({"membw", "--bytes", "1000000G"}), 4, "half of the free memory");
}

TEST(BenchCommandTest, FlagsOfThePlainFormAreRefusedBehindAPart) {
  ExpectError(Bench({"membw", "-n", "5"}), 2, "--n-gen");
  ExpectError(Bench({"membw", "-m", "model.gguf"}), 2, "--model");
}

TEST(BenchCommandTest, PoolMeasuresStagesAloneAndBesideAnother) {
  const nlohmann::json json = RunForJson({"pool", "-t", "1,3", "--seconds", "0"});
  ASSERT_EQ(json["rows"].size(), 8u);  // two counts, with and without tasks and competitor
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["stages"], 20) << row;  // the least, as no time is given
    EXPECT_GT(row["stage_us"]["median"], 0) << row;
    EXPECT_GE(row["stage_us"]["p99"], row["stage_us"]["median"]) << row;
    EXPECT_GE(row["active"], 1) << row;
    EXPECT_LE(row["active"], row["threads"]) << row;
    if (row["threads"] == 1) {
      EXPECT_EQ(row["wakeups_per_stage"], 0) << row;
    }
  }
  // 16 tasks of 50 us one after another, but for what a turbo clock may do to them.
  EXPECT_GT(json["rows"][4]["stage_us"]["median"], 16 * 50 / 4) << json["rows"][4];
}

}  // namespace
}  // namespace switchyard
