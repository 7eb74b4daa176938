#include "model/model_digest.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/gguf_refusals.h"
#include "testing/gguf_writer.h"

namespace switchyard::model {
namespace {

const std::string kBase = SWITCHYARD_TEST_DATA "/qwen4exp/base.gguf";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string DigestOf(const std::string& path) {
  absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  absl::StatusOr<std::string> digest = ModelDigest(*file);
  EXPECT_TRUE(digest.ok()) << digest.status();
  return *digest;
}

std::string DigestOfBytes(const std::string& bytes) {
  return DigestOf(testing::WriteTestFile("digest.gguf", bytes));
}

// Computed by Python's hashlib from the 8-byte sizes and the bytes in front of the first tensor.
TEST(ModelDigestTest, IsSha256OfSizesAndHeader) {
  EXPECT_EQ(DigestOf(kBase),
            "sha256:f69f656f074eb4c4152bb8970fa4886985a6cac3fae9345453e8008a2661b403");
}

TEST(ModelDigestTest, NameOfTheFileDoesNotCount) {
  EXPECT_EQ(DigestOfBytes(ReadFile(kBase)), DigestOf(kBase));
}

TEST(ModelDigestTest, MetadataAndSizeCount) {
  testing::GgufContents contents = testing::SmallGguf();
  const std::string digest = DigestOfBytes(contents.Bytes());
  contents.SetString("general.name", "another");
  const std::string renamed = DigestOfBytes(contents.Bytes());
  EXPECT_NE(renamed, digest);
  EXPECT_NE(DigestOfBytes(contents.Bytes() + std::string(1, '\0')), renamed);
}

TEST(ModelDigestTest, WeightsDoNotCount) {
  std::string bytes = ReadFile(kBase);
  bytes.back() = static_cast<char>(~bytes.back());
  EXPECT_EQ(DigestOfBytes(bytes), DigestOf(kBase));
}

TEST(ModelDigestTest, ReportsAFileThatWasTruncatedMeanwhile) {
  const std::string path = testing::WriteTestFile("truncated.gguf", ReadFile(kBase));
  absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::resize_file(path, 100);
  EXPECT_EQ(ModelDigest(*file).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace switchyard::model
