// `switchyard experiment run` as its users run it: real processes, real disturbances, and a
// diagnosis that must name them from the ledger.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <unistd.h>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "testing/process.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProcessResult;
using Json = nlohmann::json;

class ExperimentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "switchyard_experiment_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Runs a file that names the demo model and has `text` beside.
  ProcessResult RunText(const std::string& text) {
    std::ofstream(folder_ / "file.toml") << "model = \"" << SWITCHYARD_DEMO_MODEL << "\"\n" << text;
    return testing::RunProcess({SWITCHYARD_BINARY, "-q", "experiment", "run",
                                (folder_ / "file.toml").string(), "-o",
                                (folder_ / "out.json").string()});
  }

  Json Output() const {
    std::ifstream file(folder_ / "out.json");
    return Json::parse(file, nullptr, /*allow_exceptions=*/false);
  }

  fs::path folder_;
};

// Those of the first measurement of each run.
void ExpectSamples(const Json& run, size_t count) {
  ASSERT_EQ(run["status"], "ok") << run["reason"];
  for (const Json& measurement : run["measurements"]) {
    ASSERT_EQ(measurement["samples"].size(), count) << measurement["reason"];
    for (const Json& sample : measurement["samples"]) {
      EXPECT_TRUE(sample["agrees"]) << run["mode"];
      EXPECT_GT(sample["decode_per_second"], 0);
      EXPECT_GT(sample["ttft_seconds"], 0);
      EXPECT_EQ(sample["decode"]["steps"], sample["completion_tokens"].get<int>() - 1);
      EXPECT_EQ(sample["decode"]["ranks"].size(), run["workers"]);
      EXPECT_EQ(sample["cached_tokens"].get<int>() > 0, measurement["prefix"] == "hit");
    }
  }
}

TEST_F(ExperimentTest, MeasuresOneWorkerColdAndHit) {
  const ProcessResult result = RunText(
      "contexts = [80]\nmax_tokens = 8\nrepetitions = 2\n"
      "[[topology]]\nworkers = [1, 2]\nmode = \"single\"\n");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("CPU workers with 1 thread each"));
  EXPECT_THAT(result.out, HasSubstr("cannot run: mode single has one worker, not 2"));
  const Json json = Output();
  ASSERT_EQ(json["runs"].size(), 2u);
  ExpectSamples(json["runs"][0], 2);
  ASSERT_EQ(json["runs"][0]["measurements"].size(), 2u);
  EXPECT_EQ(json["runs"][1]["status"], "refused");
  EXPECT_EQ(json["diagnosis"], Json::array());

  const ProcessResult report =
      testing::RunProcess({SWITCHYARD_BINARY, "report", (folder_ / "out.json").string(), "-o",
                           (folder_ / "out.html").string()});
  ASSERT_EQ(report.exit_code, 0) << report.err;
  std::ifstream page(folder_ / "out.html");
  const std::string html((std::istreambuf_iterator<char>(page)), {});
  EXPECT_THAT(html, HasSubstr("<p class=\"devices\">CPU workers with 1 thread each"));
  EXPECT_THAT(html, HasSubstr("<svg class=\"chart\""));
}

// Both directions of the question: the disturbed run names link and size, the undisturbed one
// nothing.
TEST_F(ExperimentTest, NamesAnInjectedDelayFromTheLedger) {
  const ProcessResult result = RunText(
      "contexts = 80\nmax_tokens = 16\nrepetitions = 3\nprefix_hits = false\n"
      "[[topology]]\nworkers = 2\nmode = [\"layer_split\", \"expert_parallel\"]\n"
      "partition = \"whole\"\n"
      "[[condition]]\nlinks = \"0->1 delay=5ms\"\n");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Output();
  std::vector<std::string> modes;
  for (const Json& finding : json["diagnosis"]) {
    // A busy machine may add causes of its own, but none of these.
    if (finding["cause"] != "link_delay") continue;
    const Json& run = json["runs"][finding["run"].get<size_t>()];
    EXPECT_EQ(run["condition"]["links"], "0->1 delay=5ms");
    EXPECT_EQ(finding["from"], 0);
    EXPECT_EQ(finding["to"], 1);
    EXPECT_NEAR(finding["size"].get<double>(), 5e-3, 0.2 * 5e-3);
    modes.push_back(run["mode"]);
  }
  EXPECT_THAT(modes, ::testing::UnorderedElementsAre("layer_split", "expert_parallel"));
  for (const Json& run : json["runs"]) {
    if (run["status"] == "ok") ExpectSamples(run, 3);
  }
}

TEST_F(ExperimentTest, ShortPromptsHaveNoHitAndSayWhy) {
  const ProcessResult result = RunText(
      "contexts = 16\nmax_tokens = 4\nrepetitions = 1\nwarmup = 0\n[[topology]]\nworkers = 1\n");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json hit = Output()["runs"][0]["measurements"][1];
  EXPECT_EQ(hit["samples"].size(), 0u);
  EXPECT_THAT(hit["reason"].get<std::string>(), HasSubstr("no prefix is stored"));
}

TEST_F(ExperimentTest, ListsWhatAServerRefuses) {
  const ProcessResult result = RunText(
      "contexts = 16\nmax_tokens = 4\nrepetitions = 1\nserve_flags = [\"--no-such-flag\"]\n"
      "[[topology]]\nworkers = 1\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const Json run = Output()["runs"][0];
  EXPECT_EQ(run["status"], "refused");
  EXPECT_THAT(run["reason"].get<std::string>(), HasSubstr("--no-such-flag"));
}

TEST_F(ExperimentTest, RefusesUnknownKeysAndMissingModels) {
  ProcessResult result = RunText("context = 16\n[[topology]]\nworkers = 1\n");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("unknown key: context (nearest: contexts)"));
  EXPECT_FALSE(fs::exists(folder_ / "out.json"));
  std::ofstream(folder_ / "file.toml")
      << "model = \"none.gguf\"\ncontexts = 4\n[[topology]]\nworkers = 1\n";
  result =
      testing::RunProcess({SWITCHYARD_BINARY, "experiment", "run", (folder_ / "file.toml").string(),
                           "-o", (folder_ / "out.json").string()});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("no such model"));
}

TEST_F(ExperimentTest, ReportRefusesWhatIsNoResult) {
  std::ofstream(folder_ / "other.json") << "{}";
  const ProcessResult result =
      testing::RunProcess({SWITCHYARD_BINARY, "report", (folder_ / "other.json").string(), "-o",
                           (folder_ / "out.html").string()});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("schema is missing"));
  EXPECT_FALSE(fs::exists(folder_ / "out.html"));
}

}  // namespace
}  // namespace switchyard
