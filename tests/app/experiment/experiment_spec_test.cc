// Files that describe experiments: what is read, and what is refused with which words.
#include "app/experiment/experiment_spec.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/status.h"

namespace switchyard::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kWhole = R"(
name = "modes"
model = "models/demo.gguf"
contexts = [64, "2k"]
prompts = "Why?"
max_tokens = 16
repetitions = 3
warmup = 0
prefix_hits = false
pin_workers = false
seed = 7
serve_flags = ["--kv-type", "f32"]

[[topology]]
workers = [1, 2]
mode = ["single", "layer_split"]
layer_split = "2"
threads = 2

[[topology]]
workers = 4
mode = "expert_parallel"
partition = ["whole", "sliced"]
dense = "owner"

[[condition]]
name = "slow link"
links = ["0->1 delay=300us", "1->0 rate=2GB/s"]

[[condition]]
competitor_rank = 1
)";

std::string ErrorOf(const std::string& text) {
  const auto spec = ParseExperiment(text, "folder/file.toml");
  return spec.ok() ? "no error" : std::string(Message(spec.status()));
}

// A file that is right but for what `extra` adds.
std::string Small(const std::string& extra) {
  return "model = \"m.gguf\"\ncontexts = 64\n" + extra + "\n[[topology]]\nworkers = 2\n";
}

TEST(ExperimentSpecTest, ReadsEveryKey) {
  const auto spec = ParseExperiment(kWhole, "folder/file.toml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name, "modes");
  EXPECT_EQ(spec->model, "folder/models/demo.gguf");
  EXPECT_THAT(spec->contexts, ElementsAre(64, 2048));
  EXPECT_THAT(spec->prompts, ElementsAre("Why?"));
  EXPECT_EQ(spec->max_tokens, 16);
  EXPECT_EQ(spec->repetitions, 3);
  EXPECT_EQ(spec->warmup, 0);
  EXPECT_FALSE(spec->prefix_hits);
  EXPECT_FALSE(spec->pin_workers);
  EXPECT_EQ(spec->seed, 7u);
  EXPECT_THAT(spec->serve_flags, ElementsAre("--kv-type", "f32"));
  ASSERT_EQ(spec->topologies.size(), 2u);
  EXPECT_THAT(spec->topologies[0].workers, ElementsAre(1, 2));
  EXPECT_THAT(spec->topologies[0].modes, ElementsAre("single", "layer_split"));
  EXPECT_THAT(spec->topologies[0].layer_splits, ElementsAre("2"));
  EXPECT_THAT(spec->topologies[0].threads, ElementsAre(2));
  EXPECT_THAT(spec->topologies[1].partitions, ElementsAre("whole", "sliced"));
  EXPECT_THAT(spec->topologies[1].dense, ElementsAre("owner"));
  ASSERT_EQ(spec->conditions.size(), 3u);
  EXPECT_FALSE(spec->conditions[0].is_disturbed());
  EXPECT_EQ(spec->conditions[1].name, "slow link");
  EXPECT_EQ(spec->conditions[1].link_rules, "0->1 delay=300us; 1->0 rate=2GB/s");
  EXPECT_EQ(spec->conditions[2].competitor_rank, 1);
  EXPECT_EQ(spec->conditions[2].name, "competitor beside rank 1");
}

TEST(ExperimentSpecTest, TakesTheNameOfTheFile) {
  const auto spec = ParseExperiment(Small(""), "folder/file.toml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name, "file");
  EXPECT_THAT(spec->topologies[0].modes, ElementsAre("single"));
  EXPECT_THAT(spec->topologies[0].partitions, IsEmpty());
}

TEST(ExperimentSpecTest, NamesAnUnknownKeyAndTheNearest) {
  EXPECT_THAT(ErrorOf(Small("repetition = 3")),
              ::testing::AllOf(HasSubstr("folder/file.toml: line 3"),
                               HasSubstr("unknown key: repetition (nearest: repetitions)")));
  EXPECT_THAT(ErrorOf(Small("") + "thread = 1\n"),
              HasSubstr("unknown key: topology.thread (nearest: topology.threads)"));
  EXPECT_THAT(ErrorOf(Small("") + "[[condition]]\nlink = \"0->1 drop\"\n"),
              HasSubstr("unknown key: condition.link (nearest: condition.links)"));
  EXPECT_THAT(ErrorOf(Small("[topologies]\nworkers = 1")), HasSubstr("nearest: topology"));
}

TEST(ExperimentSpecTest, NamesAnUnknownModeAndTheNearest) {
  EXPECT_THAT(ErrorOf(Small("") + "mode = \"layersplit\"\n"),
              HasSubstr("topology.mode is unknown: layersplit (nearest: layer_split)"));
  EXPECT_THAT(ErrorOf(Small("") + "partition = \"slices\"\n"), HasSubstr("nearest: sliced"));
}

TEST(ExperimentSpecTest, RefusesValuesOutOfRangeAndOfOtherTypes) {
  EXPECT_THAT(ErrorOf(Small("repetitions = 0")), HasSubstr("repetitions wants whole numbers"));
  EXPECT_THAT(ErrorOf(Small("max_tokens = 1")), HasSubstr("from 2 to"));
  EXPECT_THAT(ErrorOf(Small("repetitions = 1.5")), HasSubstr("whole numbers"));
  EXPECT_THAT(ErrorOf(Small("repetitions = -9223372036854775808")), HasSubstr("whole numbers"));
  EXPECT_THAT(ErrorOf(Small("warmup = [1]")), HasSubstr("warmup wants"));
  EXPECT_THAT(ErrorOf(Small("prefix_hits = 1")), HasSubstr("true or false"));
  EXPECT_THAT(ErrorOf(Small("name = 3")), HasSubstr("name wants a text"));
  EXPECT_THAT(ErrorOf(Small("prompts = []")), HasSubstr("1 to 256 entries"));
  EXPECT_THAT(ErrorOf(Small("prompts = [\"a\", \"a\"]")), HasSubstr("names an entry twice"));
  EXPECT_THAT(ErrorOf(Small("topology = 3")), HasSubstr("is no TOML"));  // and tables after it
}

TEST(ExperimentSpecTest, SaysWhatIsMissing) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("has no topology"));
  EXPECT_THAT(ErrorOf("contexts = 1\n[[topology]]\nworkers = 1\n"), HasSubstr("names no model"));
  EXPECT_THAT(ErrorOf("model = \"m\"\n[[topology]]\nworkers = 1\n"),
              HasSubstr("says not what to run"));
  EXPECT_THAT(ErrorOf(Small("") + "[[condition]]\nname = \"x\"\n"), HasSubstr("disturbs nothing"));
  EXPECT_THAT(ErrorOf(Small("") + "[[condition]]\nname = \"x\"\ncompetitor_rank = 0\n"
                                  "[[condition]]\nname = \"x\"\ncompetitor_rank = 1\n"),
              HasSubstr("two conditions have one name: x"));
}

TEST(ExperimentSpecTest, RefusesWhatIsNoToml) {
  EXPECT_THAT(ErrorOf("model = \n"), HasSubstr("line 1: is no TOML"));
  EXPECT_THAT(ErrorOf("model = \"a\"\nmodel = \"b\"\n"), HasSubstr("is no TOML"));
  EXPECT_THAT(ErrorOf(std::string("a\0b = 1", 7)), HasSubstr("is no TOML"));
}

TEST(NearestTest, CountsChangedMissingAndAddedLetters) {
  const std::vector<std::string> known = {"workers", "mode", "threads"};
  EXPECT_EQ(Nearest("worker", known), "workers");
  EXPECT_EQ(Nearest("node", known), "mode");
  EXPECT_EQ(Nearest("treads", known), "threads");
  EXPECT_EQ(Nearest("", {"abc", "ab"}), "ab");
}

}  // namespace
}  // namespace switchyard::app
