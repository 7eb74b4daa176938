// The program as its users run it.
#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "testing/process.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::ProcessOptions;
using testing::ProcessResult;

constexpr char kStory[] = "Tell me a story about a fox and a lantern.";

ProcessResult Switchyard(std::vector<std::string> arguments, const ProcessOptions& options = {}) {
  arguments.insert(arguments.begin(), SWITCHYARD_BINARY);
  return testing::RunProcess(arguments, options);
}

std::vector<std::string> RunDemo(std::vector<std::string> more) {
  std::vector<std::string> arguments = {"run", SWITCHYARD_DEMO_MODEL, "--thinking", "off"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// One line that names the program, and nothing half said on stdout.
void ExpectError(const ProcessResult& result, int exit_code, const std::string& text) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.signal, 0);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, HasSubstr("switchyard: "));
  EXPECT_THAT(result.err, HasSubstr(text));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "switchyard_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  bool IsEmpty() const { return std::filesystem::is_empty(path_); }
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(*this / name, std::ios::binary) << bytes;
    return *this / name;
  }

 private:
  std::filesystem::path path_;
};

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(RunCommandTest, AnswersOnStdoutAndMeasuresOnStderr) {
  const ProcessResult result = Switchyard(RunDemo({"-p", "Who are you?", "--greedy", "-q"}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "I am Switchyard, a very small language model made for testing.\n");
  EXPECT_THAT(result.err, HasSubstr("prompt "));
  EXPECT_THAT(result.err, HasSubstr("(0 reused)"));
  EXPECT_THAT(result.err, HasSubstr("TTFT"));
  EXPECT_THAT(result.err, HasSubstr("decode"));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST(RunCommandTest, SameSeedSameText) {
  const auto run = [](const char* seed) {
    return Switchyard(RunDemo({"-p", kStory, "-n", "40", "--seed", seed, "-t", "1"})).out;
  };
  const std::string first = run("7");
  EXPECT_EQ(run("7"), first);
  EXPECT_NE(run("8"), first);
  EXPECT_EQ(Switchyard(RunDemo({"-p", kStory, "-n", "40", "--seed", "7", "-t", "2"})).out, first);
}

TEST(RunCommandTest, StopStringEndsTheText) {
  const ProcessResult result =
      Switchyard(RunDemo({"-p", "Who are you?", "--greedy", "--stop", "small lang", "-o", "json"}));
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["text"], "I am Switchyard, a very ");
  EXPECT_EQ(json["finish_reason"], "stop_sequence");
}

TEST(RunCommandTest, RawPromptSkipsTheTemplate) {
  const ProcessResult result = Switchyard({"run", SWITCHYARD_DEMO_MODEL, "--raw", "--greedy", "-n",
                                           "12", "-p", "Once upon a time,", "-o", "json"});
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(json["usage"]["completion_tokens"], 12);
  EXPECT_THAT(json["text"].get<std::string>(), HasSubstr("young frog"));
}

TEST(RunCommandTest, ChatFindsEarlierTurnsAgain) {
  // The first message alone is longer than a page of the cache, so that there is what to reuse.
  std::string first = "Tell me a story about a fox and a lantern";
  for (int i = 0; i < 12; ++i) first += " and a lantern and a fox";
  const ProcessResult result =
      Switchyard(RunDemo({"--greedy", "-n", "20"}), {.input = first + ".\nWho are you?\n\n"});
  EXPECT_EQ(result.exit_code, 0);
  const size_t second_line = result.err.rfind("prompt ");
  EXPECT_THAT(result.err.substr(0, second_line), HasSubstr("(0 reused)"));
  EXPECT_THAT(result.err.substr(second_line), Not(HasSubstr("(0 reused)")));
  EXPECT_THAT(result.out, HasSubstr("\n"));
}

TEST(RunCommandTest, InterruptEndsAtOnce) {
  const ProcessResult result =
      Switchyard(RunDemo({"-p", kStory, "--ignore-eos", "--greedy"}),
                 {.when_out_has = 20, .then = [](pid_t pid) { kill(pid, SIGINT); }});
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.err, HasSubstr("interrupted"));
}

TEST(RunCommandTest, ClosedOutputIsAnError) {
  const ProcessResult result =
      Switchyard(RunDemo({"-p", kStory, "-n", "20", "--greedy", "-q"}), {.out_path = "/dev/full"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("standard output"));
}

TEST(RunCommandTest, PromptOverTheContextIsRefused) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "fox ";
  ExpectError(Switchyard(RunDemo({"-p", text, "-q"})), 2, "context of 4096 tokens");
  ExpectError(Switchyard(RunDemo({"-p", "fox", "-n", "4096", "-q"})), 2, "context of 4096 tokens");
}

TEST(RunCommandTest, BadFlagsAreRefused) {
  ExpectError(Switchyard(RunDemo({"--no-such-flag"})), 2, "--no-such-flag");
  ExpectError(Switchyard(RunDemo({"-t", "0"})), 2, "0");
  ExpectError(Switchyard(RunDemo({"-p", "x", "--temperature", "-1", "-q"})), 2, "temperature");
  ExpectError(Switchyard(RunDemo({"-p", "x", "--top-p", "1.5", "-q"})), 2, "top_p");
  ExpectError(Switchyard(RunDemo({"-p", "x", "-c", "9k", "-q"})), 2, "4096");
  ExpectError(Switchyard(RunDemo({"--raw", "-q"})), 2, "-p");
  ExpectError(Switchyard({"fly"}), 2, "fly");
  ExpectError(Switchyard({}), 2, "subcommand");
}

TEST(ModelFileTest, BadFilesAreRejectedInOneLine) {
  const TemporaryFolder folder;
  const std::string demo = ReadAll(SWITCHYARD_DEMO_MODEL);
  // A zero dimension, and an alignment of another type than u32.
  std::string zero_dimension("GGUF", 4);
  const auto append = [](std::string& bytes, uint64_t value, size_t count) {
    for (size_t i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i));
  };
  append(zero_dimension, 3, 4);
  append(zero_dimension, 1, 8);
  append(zero_dimension, 0, 8);
  append(zero_dimension, 1, 8);
  zero_dimension += "t";
  append(zero_dimension, 2, 4);
  append(zero_dimension, 4, 8);
  append(zero_dimension, 0, 8);
  append(zero_dimension, 0, 4);
  append(zero_dimension, 0, 8);
  std::string alignment("GGUF", 4);
  append(alignment, 3, 4);
  append(alignment, 0, 8);
  append(alignment, 1, 8);
  append(alignment, 17, 8);
  alignment += "general.alignment";
  append(alignment, 5, 4);
  append(alignment, 32, 4);

  const std::vector<std::string> paths = {
      folder.Write("zero.gguf", zero_dimension),
      folder.Write("alignment.gguf", alignment),
      folder.Write("empty.gguf", ""),
      folder.Write("text.gguf", "this is no model file, only a text"),
      folder.Write("short.gguf", demo.substr(0, demo.size() / 2)),
      folder / "missing.gguf",
  };
  for (const std::string& path : paths) {
    ExpectError(Switchyard({"run", path, "-p", "x"}), 3, "");
    ExpectError(Switchyard({"inspect", path}), 3, "");
    ExpectError(Switchyard({"tokenize", path, "-p", "x"}), 3, "");
  }
  EXPECT_THAT(Switchyard({"inspect", paths[0]}).err, HasSubstr("tensor"));
  EXPECT_THAT(Switchyard({"inspect", paths[1]}).err, HasSubstr("general.alignment"));
  EXPECT_THAT(Switchyard({"inspect", paths[5]}).err, HasSubstr("missing.gguf"));
}

TEST(TokenizeCommandTest, PrintsIds) {
  const ProcessResult special =
      Switchyard({"tokenize", SWITCHYARD_DEMO_MODEL, "-p", "<|im_start|>user"});
  EXPECT_EQ(special.out, "2036 301\n");
  const ProcessResult plain =
      Switchyard({"tokenize", SWITCHYARD_DEMO_MODEL, "--plain"}, {.input = "<|im_start|>user"});
  EXPECT_THAT(plain.out, Not(HasSubstr("2036")));
  const auto json = nlohmann::json::parse(
      Switchyard({"tokenize", SWITCHYARD_DEMO_MODEL, "-p", "fox", "-o", "json"}).out);
  std::string text;
  for (const auto& token : json) text += token["text"].get<std::string>();
  EXPECT_EQ(text, "fox");
}

TEST(EvalCommandTest, WritesLogitsOfEveryPosition) {
  const TemporaryFolder folder;
  const std::string data = std::string(SWITCHYARD_TEST_DATA) + "/qwen4exp/base";
  const ProcessResult result =
      Switchyard({"eval", data + ".gguf", "--tokens", data + ".tokens.txt", "--logits-out",
                  folder / "x.f32", "--device", "reference", "--kv-type", "f32"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string got = ReadAll(folder / "x.f32");
  const std::string want = ReadAll(data + ".logits.f32");
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); i += 4) {
    float a, b;
    std::memcpy(&a, got.data() + i, 4);
    std::memcpy(&b, want.data() + i, 4);
    ASSERT_NEAR(a, b, 1e-3) << i / 4;
  }
}

TEST(EvalCommandTest, LeavesNothingBehindWhenTheDiskIsFull) {
  const TemporaryFolder folder;
  const std::string data = std::string(SWITCHYARD_TEST_DATA) + "/qwen4exp/base";
  const ProcessResult result = Switchyard({"-q", "eval", data + ".gguf", "--tokens",
                                           data + ".tokens.txt", "--logits-out", folder / "x.f32"},
                                          {.max_file_bytes = 1000});
  ExpectError(result, 1, "no space left");
  EXPECT_TRUE(folder.IsEmpty());
}

TEST(EvalCommandTest, BadTokenFilesAreRefused) {
  const TemporaryFolder folder;
  const std::string model = std::string(SWITCHYARD_TEST_DATA) + "/qwen4exp/base.gguf";
  for (const char* text : {"1 2 x", "1 99999", "-4", "", "1 99999999999999999999"}) {
    const std::string ids = folder.Write("ids.txt", text);
    ExpectError(Switchyard({"-q", "eval", model, "--tokens", ids, "--logits-out", folder / "x"}), 2,
                "ids.txt");
  }
  ExpectError(Switchyard({"-q", "eval", model}), 2, "--tokens");
}

TEST(EvalCommandTest, MeasuresPerplexity) {
  const TemporaryFolder folder;
  const std::string text =
      folder.Write("text.txt", "I am Switchyard, a very small language model made for testing.");
  const auto json = nlohmann::json::parse(
      Switchyard({"eval", SWITCHYARD_DEMO_MODEL, "--perplexity", text, "-o", "json"}).out);
  EXPECT_GT(json["perplexity"], 1.0);
  EXPECT_LT(json["perplexity"], 2048.0);  // better than all tokens alike
  EXPECT_EQ(json["predicted"].get<int>() + 1, json["tokens"].get<int>());
}

TEST(BenchCommandTest, PrintsRowsOfLlamaBench) {
  const ProcessResult result =
      Switchyard({"bench", "-m", SWITCHYARD_DEMO_MODEL, "-p", "32,64", "-n", "8", "-d", "16", "-t",
                  "1,2", "-r", "2", "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  ASSERT_EQ(json.size(), 6u);
  for (const auto& row : json) {
    EXPECT_EQ(row["samples_ts"].size(), 2u);
    EXPECT_GT(row["avg_ts"], 0.0);
    EXPECT_EQ(row["n_depth"], 16);
    EXPECT_TRUE(row["n_prompt"] == 0 || row["n_gen"] == 0);
    EXPECT_THAT(row["device"].get<std::string>(), HasSubstr("thread"));
  }
  EXPECT_EQ(json[5]["n_threads"], 2);
  const ProcessResult table =
      Switchyard({"bench", "-m", SWITCHYARD_DEMO_MODEL, "-p", "16", "-n", "4", "-r", "1"});
  EXPECT_THAT(table.out, HasSubstr("| pp16 |"));
  EXPECT_THAT(table.out, HasSubstr("| tg4 |"));
  const ProcessResult group = Switchyard({"bench", "-m", SWITCHYARD_DEMO_MODEL, "-p", "16", "-n",
                                          "4", "-r", "1", "-t", "1", "--workers", "2"});
  EXPECT_THAT(group.out, HasSubstr("cpu (layer_split, 2 workers, cut at 4)"));
  ExpectError(Switchyard({"-q", "bench", "-m", SWITCHYARD_DEMO_MODEL, "-p", "5000"}), 2, "5000");
}

TEST(ProgramTest, VersionHelpAndCompletion) {
  EXPECT_THAT(Switchyard({"version"}).out, HasSubstr("switchyard 0."));
  EXPECT_EQ(nlohmann::json::parse(Switchyard({"version", "-o", "json"}).out)["version"], "0.1.0");
  const ProcessResult help = Switchyard({"run", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("--greedy"));
  const TemporaryFolder folder;
  const std::string script =
      folder.Write("completion.bash", Switchyard({"completion", "bash"}).out);
  const ProcessResult words = testing::RunProcess(
      {"/bin/bash", "-c",
       "source " + script +
           "; COMP_WORDS=(switchyard run --gre); COMP_CWORD=2; _switchyard; echo ${COMPREPLY[@]};"
           "COMP_WORDS=(switchyard tok); COMP_CWORD=1; _switchyard; echo ${COMPREPLY[@]}"});
  EXPECT_EQ(words.out, "--greedy\ntokenize\n") << words.err;
}

TEST(ProgramTest, ConfigFileAndEnvironmentSetFlags) {
  const TemporaryFolder folder;
  const std::string config = folder.Write("s.toml", "[run]\ngreedy = true\nmax-tokens = 5\n");
  const auto json =
      nlohmann::json::parse(Switchyard({"--config", config, "run", SWITCHYARD_DEMO_MODEL, "-p",
                                        "Who are you?", "-o", "json"})
                                .out);
  EXPECT_EQ(json["usage"]["completion_tokens"], 5);
  ExpectError(Switchyard(RunDemo({"-p", "x", "-q"}), {.environment = {"SWITCHYARD_THREADS=zero"}}),
              2, "zero");
}

// Runs the program where control groups allow one CPU: a file system over theirs shows a made-up
// quota of version 1 or 2, in a mount namespace of its own.
class QuotaTest : public ::testing::TestWithParam<int> {
 protected:
  static ProcessResult RunWithOneCpu(const std::string& arguments) {
    const std::string quota =
        GetParam() == 2 ? "echo 100000 100000 > cpu.max;"
                        : "mkdir cpu; echo 100000 | tee cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us"
                          " > /dev/null;";
    const std::string script = "set -e; mount -t tmpfs none /sys/fs/cgroup; cd /sys/fs/cgroup;" +
                               quota + "cd /; exec " SWITCHYARD_BINARY " " + arguments;
    return testing::RunProcess({"/usr/bin/unshare", "-m", "/bin/sh", "-c", script});
  }

  void SetUp() override {
    if (geteuid() != 0 || RunWithOneCpu("version").exit_code != 0) {
      GTEST_SKIP() << "needs the right to mount";
    }
  }
};

TEST_P(QuotaTest, ThreadsFollowIt) {
  constexpr char kOne[] = "threads: 1 (CPU quota 1.0 of ";
  EXPECT_THAT(RunWithOneCpu("version").out, HasSubstr(kOne));
  EXPECT_THAT(RunWithOneCpu("doctor").out, HasSubstr(kOne));
  const std::string run =
      "run " SWITCHYARD_DEMO_MODEL " -p 'Who are you?' --greedy --thinking off -n 4";
  EXPECT_THAT(RunWithOneCpu(run).err, HasSubstr(kOne));
}

TEST_P(QuotaTest, MoreThreadsAreObeyedWithAWarning) {
  const std::string run =
      "run " SWITCHYARD_DEMO_MODEL " -p 'Who are you?' --greedy --thinking off -n 4 -t 2";
  const ProcessResult asked = RunWithOneCpu(run);
  EXPECT_EQ(asked.exit_code, 0);
  EXPECT_THAT(asked.err, AllOf(HasSubstr("threads: 2 (as asked for)"), HasSubstr("warning")));
  EXPECT_THAT(RunWithOneCpu("doctor -t 2").out,
              AllOf(HasSubstr("threads: 2 (as asked for)"), HasSubstr("use -t 1")));
}

INSTANTIATE_TEST_SUITE_P(Versions, QuotaTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace switchyard
