#include "model/tokenizer_data.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/status.h"
#include "model/gguf_file.h"
#include "model/tokenizer.h"
#include "testing/gguf_writer.h"

namespace switchyard::model {
namespace {

using switchyard::testing::GgufContents;
using ::testing::HasSubstr;

// Opens the small model's header with one thing changed, then makes its tokenizer.
absl::Status Open(const std::string& name, void (*change)(GgufContents& contents)) {
  GgufContents contents = GgufContents::FromFile(SWITCHYARD_TEST_DATA "/qwen4exp/base.gguf");
  contents.tensors.clear();
  change(contents);
  const std::string path = switchyard::testing::TestFilePath("tokenizer_data_" + name + ".gguf");
  contents.Write(path);
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  if (!file.ok()) return file.status();
  const absl::StatusOr<TokenizerData> data = ReadTokenizerData(file->metadata());
  if (!data.ok()) return data.status();
  return Tokenizer::Create(*data).status();
}

TEST(TokenizerDataTest, AcceptsWhatMayBeAbsent) {
  const absl::Status status = Open("Optional", [](GgufContents& contents) {
    for (const char* key : {"token_type", "eos_token_id", "padding_token_id", "add_bos_token"}) {
      contents.Remove(std::string("tokenizer.ggml.") + key);
    }
    contents.Remove("tokenizer.chat_template");
  });
  EXPECT_TRUE(status.ok()) << status;
}

struct FileRefusalCase {
  std::string name;
  std::string message;  // part of it
  void (*spoil)(GgufContents& contents);
};

class TokenizerDataRefusalTest : public ::testing::TestWithParam<FileRefusalCase> {};

TEST_P(TokenizerDataRefusalTest, NamesKeyAndReason) {
  ASSERT_TRUE(Open("Good", [](GgufContents&) {}).ok());
  const absl::Status status = Open(GetParam().name, GetParam().spoil);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(Message(status)), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, TokenizerDataRefusalTest,
    ::testing::Values(
        FileRefusalCase{"OtherModel", "unknown tokenizer model: 'llama', known: gpt2",
                        [](GgufContents& c) { c.SetString("tokenizer.ggml.model", "llama"); }},
        FileRefusalCase{"NoModel", "tokenizer.ggml.model",
                        [](GgufContents& c) { c.Remove("tokenizer.ggml.model"); }},
        FileRefusalCase{"NoTokens", "tokenizer.ggml.tokens",
                        [](GgufContents& c) { c.Remove("tokenizer.ggml.tokens"); }},
        FileRefusalCase{"NoMerges", "tokenizer.ggml.merges",
                        [](GgufContents& c) { c.Remove("tokenizer.ggml.merges"); }},
        FileRefusalCase{"NoPreTokenizer", "tokenizer.ggml.pre",
                        [](GgufContents& c) { c.Remove("tokenizer.ggml.pre"); }},
        FileRefusalCase{"OtherPreTokenizer", "unknown pre-tokenizer: 'x', known: qwen2, qwen35",
                        [](GgufContents& c) { c.SetString("tokenizer.ggml.pre", "x"); }},
        FileRefusalCase{"TokensAreNumbers", "tokenizer.ggml.tokens",
                        [](GgufContents& c) {
                          c.SetArray<uint8_t>("tokenizer.ggml.tokens",
                                              std::vector<uint8_t>(512, 1));
                        }},
        FileRefusalCase{"TokensAreOneString", "tokenizer.ggml.tokens",
                        [](GgufContents& c) { c.SetString("tokenizer.ggml.tokens", "ab"); }},
        FileRefusalCase{"TypesAreFloats", "tokenizer.ggml.token_type",
                        [](GgufContents& c) {
                          c.SetArray<float>("tokenizer.ggml.token_type",
                                            std::vector<float>(512, 1));
                        }},
        FileRefusalCase{"TypesAreShort", "wanted: 512, got: 511, key: tokenizer.ggml.token_type",
                        [](GgufContents& c) {
                          c.SetArray<int32_t>("tokenizer.ggml.token_type",
                                              std::vector<int32_t>(511, 1));
                        }},
        FileRefusalCase{
            "TypesAreEmpty", "wanted: 512, got: 0, key: tokenizer.ggml.token_type",
            [](GgufContents& c) { c.SetArray<int32_t>("tokenizer.ggml.token_type", {}); }},
        FileRefusalCase{"TypeIsHuge", "tokenizer.ggml.token_type",
                        [](GgufContents& c) {
                          std::vector<int64_t> types(512, 1);
                          types[5] = (int64_t{1} << 32) + 1;  // 1 when cut to 32 bits
                          c.SetArray<int64_t>("tokenizer.ggml.token_type", types);
                        }},
        FileRefusalCase{"MergesAreNumbers", "tokenizer.ggml.merges",
                        [](GgufContents& c) {
                          c.SetArray<uint32_t>("tokenizer.ggml.merges", {1, 2});
                        }},
        FileRefusalCase{"EosIsAString", "tokenizer.ggml.eos_token_id",
                        [](GgufContents& c) { c.SetString("tokenizer.ggml.eos_token_id", "2"); }},
        FileRefusalCase{"EosIsNegative", "tokenizer.ggml.eos_token_id",
                        [](GgufContents& c) { c.Set<int32_t>("tokenizer.ggml.eos_token_id", -1); }},
        FileRefusalCase{
            "EosIsTooLarge", "eos_token_id is outside the vocabulary",
            [](GgufContents& c) { c.Set<uint32_t>("tokenizer.ggml.eos_token_id", 512); }},
        FileRefusalCase{
            "EosIsHuge", "eos_token_id is outside the vocabulary",
            [](GgufContents& c) { c.Set<uint64_t>("tokenizer.ggml.eos_token_id", ~uint64_t{0}); }},
        FileRefusalCase{
            "AddBosIsANumber", "tokenizer.ggml.add_bos_token",
            [](GgufContents& c) { c.Set<uint32_t>("tokenizer.ggml.add_bos_token", 1); }},
        FileRefusalCase{"TemplateIsANumber", "tokenizer.chat_template",
                        [](GgufContents& c) { c.Set<uint32_t>("tokenizer.chat_template", 1); }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace switchyard::model
