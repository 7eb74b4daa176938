#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "app/synth/synth_presets.h"
#include "app/synth/synth_tokenizer.h"
#include "app/synth_test_models.h"
#include "model/chat_template.h"
#include "model/gguf_file.h"
#include "model/model_spec.h"
#include "model/tokenizer.h"
#include "model/tokenizer_data.h"

namespace switchyard::app {
namespace {

using ::testing::HasSubstr;
using testing::TestFilePath;

std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool Exists(const std::string& path) { return std::filesystem::exists(path); }

// ---- what loads ----

struct SizeCase {
  const char* name;
  void (*change)(SynthOptions&);
};

class SynthSizesTest : public ::testing::TestWithParam<SizeCase> {};

TEST_P(SynthSizesTest, ModelLoads) {
  SynthOptions options;
  GetParam().change(options);
  const std::string path = WriteTestModel(options, std::string(GetParam().name) + ".gguf");
  const absl::StatusOr<model::GgufFile> file = model::GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<model::ModelSpec> spec = model::LoadModelSpec(*file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->num_layers, options.num_layers);
  EXPECT_EQ(spec->num_mtp_layers, options.num_mtp_layers);
  EXPECT_EQ(spec->vocab_size, options.vocab_size);
  EXPECT_EQ(spec->ple.has_value(), options.ple_layer >= 0);
  EXPECT_EQ(spec->is_output_tied(), options.tied_output);
  EXPECT_EQ(file->num_shards(), options.num_shards);
}

INSTANTIATE_TEST_SUITE_P(
    All, SynthSizesTest,
    ::testing::Values(
        SizeCase{"tiny", [](SynthOptions&) {}},
        SizeCase{"seven_layers", [](SynthOptions& o) { o.num_layers = 7; }},
        SizeCase{"ten_layers", [](SynthOptions& o) { o.num_layers = 10; }},
        SizeCase{"one_layer", [](SynthOptions& o) { o.num_layers = 1, o.ple_layer = 0; }},
        SizeCase{"all_attention",
                 [](SynthOptions& o) { o.full_attention_interval = 1, o.ple_layer = -1; }},
        SizeCase{"three_streams", [](SynthOptions& o) { o.num_residual_streams = 3; }},
        SizeCase{"many_experts", [](SynthOptions& o) { o.num_experts = 512, o.top_k = 10; }},
        SizeCase{"one_expert", [](SynthOptions& o) { o.num_experts = 1, o.top_k = 1; }},
        SizeCase{"four_grams", [](SynthOptions& o) { o.ngram_size = 5, o.ple_conv_kernel = 5; }},
        SizeCase{"dense_attention", [](SynthOptions& o) { o.compress_ratio = 0; }},
        SizeCase{"drafts", [](SynthOptions& o) { o.num_mtp_layers = 1; }},
        SizeCase{"tied", [](SynthOptions& o) { o.tied_output = true; }},
        SizeCase{"fused", [](SynthOptions& o) { o.fused_gate_up = true; }},
        SizeCase{"two_files", [](SynthOptions& o) { o.num_shards = 2; }},
        SizeCase{"five_files", [](SynthOptions& o) { o.num_shards = 5; }},
        SizeCase{"least_vocabulary",
                 [](SynthOptions& o) { o.vocab_size = MinVocabSize(), o.num_unused_tokens = 0; }},
        SizeCase{"large_vocabulary", [](SynthOptions& o) { o.vocab_size = 40000; }},
        SizeCase{"mixed_types", [](SynthOptions& o) { o.types = "mixed"; }},
        SizeCase{"sparse", [](SynthOptions& o) { o.sparse = true; }}),
    [](const auto& info) { return std::string(info.param.name); });

class SynthArchitectureTest : public ::testing::TestWithParam<std::string> {};

TEST_P(SynthArchitectureTest, TinyModelHasThePartsOfItsArchitecture) {
  SynthOptions options = *SynthPreset("tiny", GetParam());
  options.num_mtp_layers = options.architecture.has_draft_blocks ? 1 : 0;
  options.num_shards = 2;
  const absl::StatusOr<model::GgufFile> file =
      model::GgufFile::Open(WriteTestModel(options, GetParam() + ".gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<model::ModelSpec> spec = model::LoadModelSpec(*file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->architecture, GetParam());
  EXPECT_EQ(spec->pre_tokenizer, options.architecture.pre_tokenizer);
  EXPECT_EQ(spec->num_residual_streams, options.num_residual_streams);
  EXPECT_EQ(spec->delta_net.has_value(), options.architecture.has_delta_nets);
  EXPECT_EQ(spec->attention.has_output_gate, options.architecture.has_output_gate);
  EXPECT_EQ(spec->attention.num_rotary_dims, options.num_rotary_dims);
  EXPECT_EQ(spec->has_sparse_attention(), options.architecture.has_sparse_attention);
  EXPECT_EQ(spec->moe.shared_expert_hidden_size, options.shared_expert_hidden_size);
  EXPECT_EQ(spec->layers[0].delta_net.beta_alpha != nullptr, options.architecture.fused_beta_alpha);
  EXPECT_EQ(spec->ple.has_value(), options.architecture.has_ngram_embedding);
  EXPECT_EQ(spec->num_mtp_layers, options.num_mtp_layers);
}

// As a sparse file: shapes and types are what is tested.
TEST_P(SynthArchitectureTest, BenchModelLoads) {
  SynthOptions options = *SynthPreset("bench", GetParam());
  options.sparse = true;
  const absl::StatusOr<model::GgufFile> file =
      model::GgufFile::Open(WriteTestModel(options, GetParam() + "_bench.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<model::ModelSpec> spec = model::LoadModelSpec(*file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->layers[0].moe.gate->dtype, DType::kIQ3_S);
  EXPECT_EQ(spec->layers[0].moe.down->dtype, DType::kIQ4_NL);
}

INSTANTIATE_TEST_SUITE_P(All, SynthArchitectureTest, ::testing::ValuesIn(SynthArchitectureNames()),
                         [](const auto& info) { return info.param; });

class SynthTypesTest : public ::testing::TestWithParam<const char*> {};

TEST_P(SynthTypesTest, AllExpertsAndTheDenseSideGetTheType) {
  SynthOptions options = BlockSizedOptions();
  options.gate_up_type = options.down_type = options.dense_type = GetParam();
  const std::string path = WriteTestModel(options, std::string(GetParam()) + ".gguf");
  const absl::StatusOr<model::GgufFile> file = model::GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(model::LoadModelSpec(*file).ok());
  for (const char* name :
       {"blk.0.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight", "blk.3.ffn_down_exps.weight",
        "blk.3.attn_q.weight", "blk.0.ssm_out.weight", "token_embd.weight", "output.weight"}) {
    EXPECT_EQ(Traits(file->FindTensor(name)->dtype).name, GetParam()) << name;
  }
  EXPECT_EQ(file->FindTensor("blk.0.ffn_gate_inp.weight")->dtype, DType::kF32);
}

INSTANTIATE_TEST_SUITE_P(All, SynthTypesTest,
                         ::testing::Values("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
                                           "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
                                           "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S",
                                           "IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS"),
                         [](const auto& info) { return std::string(info.param); });

TEST(SyntheticModelTest, FirstOfSeveralFilesHasNoTensorsAndLayersStraddle) {
  SynthOptions options;
  options.num_shards = 4;
  const std::string path = WriteTestModel(options, "split.gguf");
  EXPECT_THAT(path, HasSubstr("split-00001-of-00004.gguf"));
  const absl::StatusOr<model::GgufFile> file = model::GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::set<int> shards;
  std::set<int> shards_of_a_layer;
  for (const model::TensorInfo& tensor : file->tensors()) {
    shards.insert(tensor.shard);
    if (tensor.name.starts_with("blk.2.")) shards_of_a_layer.insert(tensor.shard);
  }
  EXPECT_EQ(shards, (std::set<int>{1, 2, 3}));
  EXPECT_GT(shards_of_a_layer.size(), 1u);
}

TEST(SyntheticModelTest, TensorsAreTheSameInOneFileAndInSeveral) {
  SynthOptions options;
  const absl::StatusOr<model::GgufFile> one =
      model::GgufFile::Open(WriteTestModel(options, "one.gguf"));
  options.num_shards = 3;
  const absl::StatusOr<model::GgufFile> several =
      model::GgufFile::Open(WriteTestModel(options, "several.gguf"));
  ASSERT_TRUE(one.ok());
  ASSERT_TRUE(several.ok());
  ASSERT_EQ(one->tensors().size(), several->tensors().size());
  for (const model::TensorInfo& tensor : one->tensors()) {
    const model::TensorInfo* other = several->FindTensor(tensor.name);
    ASSERT_NE(other, nullptr) << tensor.name;
    const auto bytes = static_cast<size_t>(tensor.bytes());
    std::vector<std::byte> a(bytes);
    std::vector<std::byte> b(bytes);
    ASSERT_TRUE(one->Read(tensor, 0, tensor.num_rows(), absl::MakeSpan(a)).ok());
    ASSERT_TRUE(several->Read(*other, 0, other->num_rows(), absl::MakeSpan(b)).ok());
    EXPECT_EQ(a, b) << tensor.name;
  }
}

TEST(SyntheticModelTest, SameSeedMakesTheSameBytesAndAnotherOneDoesNot) {
  SynthOptions options;
  options.types = "mixed";
  const std::string first = ReadBytes(WriteTestModel(options, "a.gguf"));
  const std::string second = ReadBytes(WriteTestModel(options, "b.gguf"));
  EXPECT_EQ(first, second);
  options.seed = 2;
  const std::string other = ReadBytes(WriteTestModel(options, "c.gguf"));
  EXPECT_EQ(first.size(), other.size());
  EXPECT_NE(first, other);
}

// ---- tokenizer ----

class SynthTokenizerTest : public ::testing::TestWithParam<int> {};

TEST_P(SynthTokenizerTest, EncodesAndDecodesAnyText) {
  SynthOptions options;
  options.vocab_size = GetParam();
  const absl::StatusOr<model::GgufFile> file =
      model::GgufFile::Open(WriteTestModel(options, "tokenizer.gguf"));
  ASSERT_TRUE(file.ok());
  const absl::StatusOr<model::TokenizerData> data = model::ReadTokenizerData(file->metadata());
  ASSERT_TRUE(data.ok()) << data.status();
  const absl::StatusOr<model::Tokenizer> tokenizer = model::Tokenizer::Create(*data);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->vocab_size(), GetParam());
  const std::string text =
      "The quick brown fox\n\tjumps 42 times; na\u00efve \u65e5\u672c \U0001f682";
  const std::vector<int32_t> ids = tokenizer->Encode(text, model::SpecialMatching::kNone);
  EXPECT_EQ(tokenizer->Decode(ids, true), text);
  // Merges are used; the smallest vocabulary has hardly any.
  EXPECT_LE(ids.size(), GetParam() < 400 ? text.size() : text.size() - 10);

  const auto turn = tokenizer->Encode("<|im_end|><think>", model::SpecialMatching::kAll);
  EXPECT_EQ(turn.size(), 2u);
  EXPECT_TRUE(tokenizer->is_end_of_generation(turn[0]));
  EXPECT_EQ(tokenizer->eos_token_id(), turn[0]);
  EXPECT_GE(tokenizer->unused_ids().size(), 16u);
  EXPECT_EQ(tokenizer->unused_ids().back(), GetParam() - 1);
}

INSTANTIATE_TEST_SUITE_P(Sizes, SynthTokenizerTest, ::testing::Values(300, 512, 1000, 32768));

TEST(SynthTokenizerTest, SpecialTokensOfTheFullVocabularyHaveThePublishedIds) {
  const SynthTokenizer tokenizer = MakeSynthTokenizer(248320, 250);
  ASSERT_EQ(tokenizer.tokens.size(), 248320u);
  EXPECT_EQ(tokenizer.tokens[248044], "<|endoftext|>");
  EXPECT_EQ(tokenizer.tokens[248045], "<|im_start|>");
  EXPECT_EQ(tokenizer.tokens[248046], "<|im_end|>");
  EXPECT_EQ(tokenizer.tokens[248053], "<|vision_start|>");
  EXPECT_EQ(tokenizer.tokens[248056], "<|image_pad|>");
  EXPECT_EQ(tokenizer.tokens[248068], "<think>");
  EXPECT_EQ(tokenizer.tokens[248069], "</think>");
  EXPECT_EQ(tokenizer.end_of_text_id, 248044);
  EXPECT_EQ(tokenizer.image_id, 248056);
  const std::set<std::string> texts(tokenizer.tokens.begin(), tokenizer.tokens.end());
  EXPECT_EQ(texts.size(), tokenizer.tokens.size());
}

TEST(SynthTokenizerTest, ChatTemplateIsChatMlWithThinking) {
  const absl::StatusOr<model::ChatTemplate> chat = model::ChatTemplate::Parse(SynthChatTemplate());
  ASSERT_TRUE(chat.ok()) << chat.status();
  nlohmann::ordered_json context = {{"messages",
                                     {{{"role", "system"}, {"content", "Be brief."}},
                                      {{"role", "user"}, {"content", " Hello \n"}}}},
                                    {"add_generation_prompt", true}};
  const std::string head =
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
      "<|im_start|>assistant\n<think>\n";
  const auto render = [&] {
    const auto rendered = chat->Render(context);
    EXPECT_TRUE(rendered.ok()) << rendered.status();
    return rendered.ok() ? rendered->Text() : "";
  };
  EXPECT_EQ(render(), head);
  context["enable_thinking"] = false;
  EXPECT_EQ(render(), head + "\n</think>\n\n");
  context["add_generation_prompt"] = false;
  EXPECT_THAT(render(), ::testing::EndsWith("Hello<|im_end|>\n"));
}

// ---- what goes wrong ----

TEST(SyntheticModelTest, DoesNotReplaceAFileUnlessToldTo) {
  const std::string path = testing::WriteTestFile("there.gguf", "old");
  const SynthOptions options;
  const auto refused = WriteSyntheticModel(options, path, /*overwrite=*/false, nullptr);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("file exists"));
  EXPECT_EQ(ReadBytes(path), "old");
  EXPECT_TRUE(WriteSyntheticModel(options, path, /*overwrite=*/true, nullptr).ok());
  EXPECT_TRUE(model::GgufFile::Open(path).ok());
}

TEST(SyntheticModelTest, RefusesBadSizesAndTypesBeforeItWrites) {
  const std::string path = TestFilePath("bad.gguf");
  SynthOptions options;
  options.num_experts = 0;
  EXPECT_EQ(WriteSyntheticModel(options, path, false, nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
  options = SynthOptions();
  options.types = "Q8_0";
  EXPECT_EQ(WriteSyntheticModel(options, path, false, nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(Exists(path));
  EXPECT_FALSE(Exists(path + ".partial"));
}

TEST(SyntheticModelTest, NamesAFolderThatIsNotThere) {
  const auto result =
      WriteSyntheticModel(SynthOptions(), TestFilePath("no/folder/x.gguf"), false, nullptr);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("no such folder"));
}

TEST(SyntheticModelTest, SaysHowMuchSpaceIsWantedAndFree) {
  // About 10^15 bytes: more than any disk under test.
  SynthOptions options = *SynthPreset("bench");
  options.expert_hidden_size = 1 << 20;
  options.num_experts = 4096;
  const std::string path = TestFilePath("huge.gguf");
  const auto result = WriteSyntheticModel(options, path, false, nullptr);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("wanted bytes: "));
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("free: "));
  EXPECT_FALSE(Exists(path + ".partial"));
}

// A limit on the size of files makes write() fail in the middle, as a disk does that fills up
// after the space was checked.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit = {bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_;
  void (*old_handler_)(int);
};

TEST(SyntheticModelTest, AFullDiskLeavesNothingBehindAndTheOldFileAsItWas) {
  const std::string path = testing::WriteTestFile("full.gguf", "old");
  SynthOptions options;
  options.num_experts = 256;
  absl::Status status;
  {
    const FileSizeLimit limit(1 << 20);
    status = WriteSyntheticModel(options, path, /*overwrite=*/true, nullptr).status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(ReadBytes(path), "old");
  EXPECT_FALSE(Exists(path + ".partial"));
}

TEST(SyntheticModelTest, AnInterruptLeavesNothingBehind) {
  SynthOptions options;
  options.num_shards = 3;
  const std::string path = TestFilePath("interrupted.gguf");
  int64_t last_done = -1;
  bool partial_seen = false;
  const auto result =
      WriteSyntheticModel(options, path, false, [&](int64_t done, int64_t total) -> absl::Status {
        EXPECT_GE(done, last_done);
        EXPECT_LE(done, total);
        last_done = done;
        if (done < total * 3 / 4) return absl::OkStatus();
        partial_seen = Exists(TestFilePath("interrupted-00003-of-00003.gguf.partial"));
        return absl::CancelledError("interrupted");
      });
  EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(partial_seen);
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(path).parent_path())) {
    EXPECT_THAT(entry.path().filename().string(), ::testing::Not(HasSubstr("interrupted")));
  }
}

TEST(SyntheticModelTest, ProgressEndsAtTheTotal) {
  int64_t last_done = 0;
  int64_t last_total = -1;
  const auto result = WriteSyntheticModel(SynthOptions(), TestFilePath("progress.gguf"), true,
                                          [&](int64_t done, int64_t total) {
                                            last_done = done;
                                            last_total = total;
                                            return absl::OkStatus();
                                          });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(last_done, last_total);
  EXPECT_EQ(last_total, result->file_bytes);
}

}  // namespace
}  // namespace switchyard::app
