#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "app/command.h"
#include "app/exit_code.h"
#include "model/gguf_file.h"
#include "model/model_spec.h"
#include "testing/gguf_writer.h"

namespace switchyard::app {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::TestFilePath;
using testing::WriteTestFile;

// What a command line gives: exit code, message of the error, what stdout got.
struct Outcome {
  ExitCode code = ExitCode::kOk;
  std::string message;
  std::string output;
};

Outcome RunCommand(std::vector<std::string> words) {
  CLI::App app("test");
  CommandBody body;
  AddSynthCommand(app, body);
  AddInspectCommand(app, body);
  std::reverse(words.begin(), words.end());  // as CLI11 wants it
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return {ExitCode::kUsage, error.what(), ""};
  }
  ::testing::internal::CaptureStdout();
  const absl::Status status = body();
  Outcome outcome;
  outcome.output = ::testing::internal::GetCapturedStdout();
  outcome.code = ExitCodeOf(status);
  outcome.message = std::string(status.message());
  EXPECT_THAT(outcome.message, Not(HasSubstr("\n")));
  return outcome;
}

TEST(SynthCommandTest, FlagsOverrideThePreset) {
  const std::string path = TestFilePath("flags.gguf");
  const Outcome outcome = RunCommand({"synth",
                                      path,
                                      "--preset",
                                      "tiny",
                                      "--layers",
                                      "6",
                                      "--interval",
                                      "3",
                                      "--hidden",
                                      "128",
                                      "--heads",
                                      "6",
                                      "--kv-heads",
                                      "3",
                                      "--head-dim",
                                      "64",
                                      "--rotary-dims",
                                      "32",
                                      "--experts",
                                      "12",
                                      "--top-k",
                                      "3",
                                      "--expert-hidden",
                                      "64",
                                      "--shared-expert-hidden",
                                      "96",
                                      "--streams",
                                      "3",
                                      "--low-rank",
                                      "24",
                                      "--key-heads",
                                      "3",
                                      "--value-heads",
                                      "9",
                                      "--state",
                                      "32",
                                      "--conv-kernel",
                                      "5",
                                      "--index-heads",
                                      "2",
                                      "--index-dim",
                                      "48",
                                      "--budget",
                                      "32",
                                      "--ratio",
                                      "8",
                                      "--ple-layer",
                                      "0",
                                      "--ngram",
                                      "3",
                                      "--heads-per-ngram",
                                      "2",
                                      "--ple-conv",
                                      "3",
                                      "--ple-rows",
                                      "100",
                                      "--vocab",
                                      "600",
                                      "--unused",
                                      "5",
                                      "--context",
                                      "2048",
                                      "--mtp",
                                      "1",
                                      "--tied",
                                      "--fused-gate-up",
                                      "--types",
                                      "mixed",
                                      "--down",
                                      "q8_0",
                                      "-o",
                                      "json"});
  ASSERT_EQ(outcome.code, ExitCode::kOk) << outcome.message;
  const nlohmann::json json = nlohmann::json::parse(outcome.output, nullptr, false);
  EXPECT_EQ(json["paths"][0], path);
  EXPECT_EQ(json["file_bytes"], std::filesystem::file_size(path));

  const absl::StatusOr<model::GgufFile> file = model::GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<model::ModelSpec> spec = model::LoadModelSpec(*file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->num_layers, 6);
  EXPECT_EQ(spec->layers[2].kind, model::LayerKind::kAttention);
  EXPECT_EQ(spec->layers[2].compress_ratio, 8);
  EXPECT_EQ(spec->hidden_size, 128);
  EXPECT_EQ(spec->attention.num_heads, 6);
  EXPECT_EQ(spec->attention.num_kv_heads, 3);
  EXPECT_EQ(spec->attention.head_dim, 64);
  EXPECT_EQ(spec->attention.num_rotary_dims, 32);
  EXPECT_EQ(spec->attention.num_index_heads, 2);
  EXPECT_EQ(spec->attention.index_head_dim, 48);
  EXPECT_EQ(spec->attention.budget_tokens, 32);
  EXPECT_EQ(spec->moe.num_experts, 12);
  EXPECT_EQ(spec->moe.top_k, 3);
  EXPECT_EQ(spec->moe.max_expert_hidden_size, 64);
  EXPECT_EQ(spec->moe.shared_expert_hidden_size, 96);
  EXPECT_EQ(spec->num_residual_streams, 3);
  EXPECT_EQ(spec->hc_low_rank, 24);
  EXPECT_EQ(spec->delta_net->num_key_heads, 3);
  EXPECT_EQ(spec->delta_net->num_value_heads, 9);
  EXPECT_EQ(spec->delta_net->head_dim, 32);
  EXPECT_EQ(spec->delta_net->conv_kernel, 5);
  EXPECT_EQ(spec->ple->layer, 0);
  EXPECT_EQ(spec->ple->heads_per_ngram, 2);
  EXPECT_EQ(spec->ple->conv_kernel, 3);
  EXPECT_EQ(spec->ple->head_vocab_sizes[0], 101u);
  EXPECT_EQ(spec->vocab_size, 600);
  EXPECT_EQ(spec->context_length, 2048);
  EXPECT_EQ(spec->num_mtp_layers, 1);
  EXPECT_TRUE(spec->is_output_tied());
  EXPECT_NE(spec->layers[0].moe.gate_up, nullptr);
  EXPECT_EQ(spec->layers[0].moe.down->dtype, DType::kQ8_0);
}

TEST(SynthCommandTest, WrongFlagsAreUsageErrors) {
  const std::string path = TestFilePath("usage.gguf");
  EXPECT_EQ(RunCommand({"synth"}).code, ExitCode::kUsage);
  EXPECT_EQ(RunCommand({"synth", path, "--bogus"}).code, ExitCode::kUsage);
  EXPECT_EQ(RunCommand({"synth", path, "--preset", "huge"}).code, ExitCode::kUsage);
  EXPECT_EQ(RunCommand({"synth", path, "--layers", "x"}).code, ExitCode::kUsage);
  const Outcome zero = RunCommand({"synth", path, "--layers", "0"});
  EXPECT_EQ(zero.code, ExitCode::kUsage);
  EXPECT_THAT(zero.message, HasSubstr("layers is out of range: 0"));
  const Outcome type = RunCommand({"synth", path, "--types", "Q5_9"});
  EXPECT_EQ(type.code, ExitCode::kUsage);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(SynthCommandTest, AnExistingFileIsKeptWithoutForce) {
  const std::string path = WriteTestFile("kept.gguf", "old");
  const Outcome refused = RunCommand({"synth", path});
  EXPECT_EQ(refused.code, ExitCode::kFailed);
  EXPECT_THAT(refused.message, HasSubstr("--force"));
  EXPECT_EQ(RunCommand({"synth", path, "--force"}).code, ExitCode::kOk);
}

TEST(InspectCommandTest, PrintsTextAndJson) {
  const std::string path = TestFilePath("inspected.gguf");
  ASSERT_EQ(RunCommand({"synth", path}).code, ExitCode::kOk);
  const Outcome text = RunCommand({"inspect", path, "--verify", "--tensors", "--metadata"});
  EXPECT_EQ(text.code, ExitCode::kOk) << text.message;
  EXPECT_THAT(text.output, HasSubstr("routed experts"));
  EXPECT_THAT(text.output, HasSubstr("block scales and float values are finite"));
  EXPECT_THAT(text.output, HasSubstr("blk.3.indexer.k_norm.weight"));
  EXPECT_THAT(text.output, HasSubstr("qwen4exp.ple.layer_multipliers"));
  const Outcome data = RunCommand({"inspect", path, "-o", "json", "--verify"});
  EXPECT_EQ(data.code, ExitCode::kOk);
  const nlohmann::json json = nlohmann::json::parse(data.output, nullptr, false);
  EXPECT_EQ(json["model"]["layers"], 4);
  EXPECT_EQ(json["verified"].size(), 7u);
}

TEST(InspectCommandTest, AFileThatIsNoModelIsRejected) {
  EXPECT_EQ(RunCommand({"inspect", TestFilePath("absent.gguf")}).code, ExitCode::kModelRejected);
  EXPECT_EQ(RunCommand({"inspect", WriteTestFile("empty.gguf", "")}).code,
            ExitCode::kModelRejected);
}

// A zero dimension must not be divided by, nor a value read before its type is known.
TEST(InspectCommandTest, ZeroDimensionAndWronglyTypedAlignmentAreRejectedByName) {
  std::string zero = "GGUF";
  testing::AppendBytes(zero, uint32_t{3});
  testing::AppendBytes(zero, uint64_t{1});
  testing::AppendBytes(zero, uint64_t{0});
  zero += testing::GgufString("t");
  testing::AppendBytes(zero, uint32_t{2});
  testing::AppendBytes(zero, uint64_t{4});
  testing::AppendBytes(zero, uint64_t{0});
  testing::AppendBytes(zero, uint32_t{0});
  testing::AppendBytes(zero, uint64_t{0});
  const Outcome dims = RunCommand({"inspect", WriteTestFile("zero.gguf", zero)});
  EXPECT_EQ(dims.code, ExitCode::kModelRejected);
  EXPECT_THAT(dims.message, HasSubstr("offset"));

  std::string alignment = "GGUF";
  testing::AppendBytes(alignment, uint32_t{3});
  testing::AppendBytes(alignment, uint64_t{0});
  testing::AppendBytes(alignment, uint64_t{1});
  alignment += testing::GgufString("general.alignment");
  testing::AppendBytes(alignment, uint32_t{5});
  testing::AppendBytes(alignment, int32_t{32});
  const Outcome typed = RunCommand({"inspect", WriteTestFile("alignment.gguf", alignment)});
  EXPECT_EQ(typed.code, ExitCode::kModelRejected);
  EXPECT_THAT(typed.message, HasSubstr("general.alignment"));
}

}  // namespace
}  // namespace switchyard::app
