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

// A share that nothing but a clock decides.
void ExpectShare(const nlohmann::json& share) {
  EXPECT_TRUE(share.is_number() && std::isfinite(share.get<double>()) && share > 0) << share;
}

TEST(BenchCommandTest, GemvMeasuresFormatsFromMemoryAndCache) {
  const auto json =
      RunForJson({"gemv", "--format", "Q8_0,IQ4_XS,BF16", "--matrix", "48x256,33x160", "--rows",
                  "1,3", "--set-bytes", "100000", "--bytes", "8MiB", "-r", "2", "-t", "1,2"});
  // IQ4_XS has blocks of 256 columns: five products, two thread counts, two row counts, two places.
  ASSERT_EQ(json["rows"].size(), 5u * 2 * 2 * 2);
  for (const auto& row : json["rows"]) {
    ExpectSpread(row["gb_per_second"], 2);
    ExpectSpread(row["gb_per_second_cpu"], 2);
    ExpectSpread(row["read_gb_per_second"], 2);
    ExpectShare(row["share_memory"]);
    ExpectShare(row["share_file"]);
    EXPECT_GE(row["set_bytes"], 100000 * 0.9);
    // Panels are padded to 16 rows and have a little more than the file.
    EXPECT_GE(row["memory_bytes"], row["file_bytes"]);
    EXPECT_LE(row["memory_bytes"].get<double>(), 1.6 * row["file_bytes"].get<double>()) << row;
  }
  const auto& last = json["rows"].back();
  EXPECT_EQ(last["format"], "BF16");
  EXPECT_EQ(last["matrix_cols"], 160);
  EXPECT_EQ(last["file_bytes"], 33 * 160 * 2);
  EXPECT_EQ(last["place"], "cache");
}

TEST(BenchCommandTest, GemmMeasuresRowsBesideThePeak) {
  std::string levels = "scalar";
  if (RunsCpuLevel(CpuLevel::kAvx2)) levels += ",avx2";
  const auto json =
      RunForJson({"gemm", "--format", "IQ4_NL,F32", "--matrix", "40x160", "--rows", "9,40",
                  "--set-bytes", "10000", "-r", "2", "-t", "2", "--cpu-level", levels});
  for (const auto& row : json["rows"]) {
    ExpectSpread(row["gop_per_second"], 2);
    if (row["cpu_level"] == "scalar") {
      EXPECT_TRUE(row["share_of_peak"].is_null());
    } else {
      ExpectShare(row["share_of_peak"]);
    }
  }
}

TEST(BenchCommandTest, DecodeChecksTheModelAndAccountsForItsBytes) {
  const auto json = RunForJson({"decode", "-m", SWITCHYARD_DEMO_MODEL, "-n", "8", "-d", "20",
                                "--bytes", "8MiB", "-r", "2", "-t", "1,2"});
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["model"]["file"], "switchyard-demo.gguf");
  EXPECT_EQ(json["model"]["same_bits"].size(), 2u);
  const double difference = json["model"]["reference_difference"];
  EXPECT_GT(difference, 0);
  EXPECT_LT(difference, 0.1);
  for (const auto& row : json["rows"]) {
    ExpectSpread(row["tokens_per_second"], 2);
    ExpectSpread(row["gb_per_second"], 2);
    ExpectSpread(row["read_gb_per_second"], 2);
    EXPECT_EQ(row["active_file_bytes"], json["model"]["active_file_bytes"]);
    // Small tensors and panels take more in memory, a router that BF16 holds exactly less.
    EXPECT_GT(row["active_memory_bytes"].get<double>(),
              0.8 * row["active_file_bytes"].get<double>());
    ExpectShare(row["share_memory"]);
    ExpectShare(row["share_file"]);
    int64_t stage_bytes = 0;
    for (const auto& stage : row["stages"]) stage_bytes += stage["weight_bytes"].get<int64_t>();
    EXPECT_NEAR(static_cast<double>(stage_bytes), row["active_memory_bytes"].get<double>(),
                0.02 * row["active_memory_bytes"].get<double>());
  }
  EXPECT_EQ(json["rows"][0]["barriers_per_token"], 0);
  EXPECT_GT(json["rows"][1]["barriers_per_token"], 0);
}

TEST(BenchCommandTest, OneSettingIsComparedWithAnother) {
  const auto json = RunForJson({"decode", "-m", SWITCHYARD_DEMO_MODEL, "-n", "2", "--bytes", "8MiB",
                                "-r", "1", "-t", "1", "--no-reference"});
  EXPECT_EQ(json["rows"].size(), 1u);
  EXPECT_EQ(json["model"]["same_bits"].size(), 2u);
  EXPECT_TRUE(json["model"]["reference_difference"].is_null());
}

TEST(BenchCommandTest, PrefillMeasuresEachPromptLength) {
  const auto json =
      RunForJson({"prefill", "-m", SWITCHYARD_DEMO_MODEL, "-p", "48,100", "-r", "2", "-t", "2"});
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["rows"][1]["num_prompt"], 100);
  for (const auto& row : json["rows"]) {
    ExpectSpread(row["tokens_per_second"], 2);
    ExpectSpread(row["ttft_seconds"], 2);
    ExpectSpread(row["gop_per_second"], 2);
    // Two operations a parameter and token; formats have two bits a parameter and more.
    const double operations = row["gop_per_second"]["median"].get<double>() * 1e9 /
                              row["tokens_per_second"]["median"].get<double>();
    EXPECT_GT(operations, 1e5);
    EXPECT_LT(operations, 2 * 4 * json["model"]["active_file_bytes"].get<double>());
  }
}

TEST(BenchCommandTest, BadModelFlagsAreRefused) {
  ExpectError(Bench({"decode"}), 2, "--model");
  ExpectError(Bench({"decode", "-m", SWITCHYARD_DEMO_MODEL, "-n", "5000"}), 2, "5002");
  ExpectError(Bench({"prefill", "-m", SWITCHYARD_DEMO_MODEL, "-p", "9000"}), 2, "9000");
  ExpectError(Bench({"prefill", "-m", SWITCHYARD_DEMO_MODEL, "-p", "0"}), 2, "--n-prompt");
  ExpectError(Bench({"decode", "-m", "/no/such/file.gguf"}), 3, "/no/such/file.gguf");
}

TEST(BenchCommandTest, BadProductFlagsAreRefused) {
  ExpectError(Bench({"gemv", "--format", "Q9"}), 2, "Q9");
  ExpectError(Bench({"gemv", "--matrix", "12"}), 2, "640x2560");
  ExpectError(Bench({"gemm", "--matrix", "0x32"}), 2, "0x32");
  ExpectError(Bench({"gemm", "--rows", "0"}), 2, "--rows");
  ExpectError(Bench({"gemm", "--format", "Q4_K", "--matrix", "16x100"}), 2, "whole blocks");
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
