// Files that must be refused: each with one error that names the file, the key or tensor, and the
// offset; never a signal, never more memory than the file is large.
#include <cstdint>
#include <filesystem>
#include <new>
#include <string>
#include <sys/resource.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/status.h"
#include "model/gguf_file.h"
#include "testing/gguf_refusals.h"
#include "testing/gguf_writer.h"

// The largest single allocation since it was last set to zero. (Not inlined: the compiler would
// see free() at the end of a delete of memory that came from new.)
static size_t largest_allocation = 0;

[[gnu::noinline]] void* operator new(size_t bytes) {
  largest_allocation = std::max(largest_allocation, bytes);
  void* memory = std::malloc(bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace switchyard::model {
namespace {

using switchyard::testing::AppendBytes;
using switchyard::testing::GgufContents;
using switchyard::testing::GgufRefusal;
using switchyard::testing::GgufRefusals;
using switchyard::testing::SmallGguf;
using switchyard::testing::TestFilePath;
using switchyard::testing::WriteTestFile;
using ::testing::HasSubstr;

class GgufRefusalTest : public ::testing::TestWithParam<GgufRefusal> {};

TEST_P(GgufRefusalTest, IsRefusedWithKeyAndOffset) {
  const std::string bytes = GetParam().bytes();
  const std::string path = WriteTestFile("wrong.gguf", bytes);
  largest_allocation = 0;
  const absl::Status status = GgufFile::Open(path).status();
  // Nothing is reserved for what a file only claims to hold. A tensor of the list takes about three
  // times the bytes of its entry, and a vector that grows twice as much as it holds.
  EXPECT_LE(largest_allocation, 8 * bytes.size() + 4096);
  ASSERT_FALSE(status.ok());
  EXPECT_TRUE(status.code() == absl::StatusCode::kDataLoss ||
              status.code() == absl::StatusCode::kInvalidArgument)
      << status;
  const std::string message(Message(status));
  EXPECT_THAT(message, HasSubstr("wrong.gguf"));
  for (const std::string& word : GetParam().words) EXPECT_THAT(message, HasSubstr(word));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(All, GgufRefusalTest, ::testing::ValuesIn(GgufRefusals()),
                         [](const auto& info) { return info.param.name; });

TEST(GgufRefusalsTest, ValidFileOfTheCasesOpens) {
  ASSERT_TRUE(GgufFile::Open(WriteTestFile("right.gguf", SmallGguf().Bytes())).ok());
}

TEST(GgufRefusalsTest, EveryBeginningOfAFileIsRefused) {
  const std::string bytes = SmallGguf().Bytes();
  for (size_t count = 0; count < bytes.size(); ++count) {
    EXPECT_FALSE(GgufFile::Open(WriteTestFile("wrong.gguf", bytes.substr(0, count))).ok()) << count;
  }
}

// Zero dimensions: the check of overflow divides by dimensions in some readers.
TEST(GgufRefusalsTest, ZeroDimensionOfATinyFile) {
  std::string bytes = "GGUF";
  AppendBytes(bytes, uint32_t{3});
  AppendBytes(bytes, uint64_t{1});
  AppendBytes(bytes, uint64_t{0});
  AppendBytes(bytes, uint64_t{1});
  bytes += "t";
  AppendBytes(bytes, uint32_t{2});
  AppendBytes(bytes, uint64_t{4});
  AppendBytes(bytes, uint64_t{0});
  AppendBytes(bytes, uint32_t{0});
  AppendBytes(bytes, uint64_t{0});
  const absl::Status status = GgufFile::Open(WriteTestFile("wrong.gguf", bytes)).status();
  EXPECT_THAT(std::string(Message(status)), HasSubstr("invalid dimension: 0, tensor: t"));
  EXPECT_THAT(std::string(Message(status)), HasSubstr("offset: 24"));
}

// ---- split models -------------------------------------------------------------------------------

class SplitTest : public ::testing::Test {
 protected:
  // Two parts with one tensor each.
  SplitTest() {
    for (uint16_t i = 0; i < 2; ++i) {
      GgufContents& part = parts_[i];
      part.SetString("general.architecture", "none");
      part.Set("split.no", i);
      part.Set("split.count", uint16_t{2});
      part.Set("split.tensors.count", int32_t{2});
      part.tensors.push_back({.name = "t" + std::to_string(i),
                              .dims = {8},
                              .type = 0,
                              .offset = {},
                              .bytes = 32,
                              .data = {}});
    }
  }

  absl::Status Open() {
    parts_[0].Write(TestFilePath("m-00001-of-00002.gguf"));
    parts_[1].Write(TestFilePath("m-00002-of-00002.gguf"));
    return GgufFile::Open(TestFilePath("m-00002-of-00002.gguf")).status();
  }

  GgufContents parts_[2];
};

TEST_F(SplitTest, ValidPartsOpen) { EXPECT_TRUE(Open().ok()) << Open(); }

TEST_F(SplitTest, MissingPartIsNamed) {
  ASSERT_TRUE(Open().ok());
  std::filesystem::remove(TestFilePath("m-00001-of-00002.gguf"));
  const absl::Status status = GgufFile::Open(TestFilePath("m-00002-of-00002.gguf")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("m-00001-of-00002.gguf"));
}

TEST_F(SplitTest, PartWithAnotherCountIsRefused) {
  parts_[0].Set("split.count", uint16_t{3});
  EXPECT_THAT(std::string(Message(Open())), HasSubstr("key: split.count"));
}

TEST_F(SplitTest, NameWithAnotherCountIsRefused) {
  for (GgufContents& part : parts_) part.Set("split.count", uint16_t{3});
  EXPECT_THAT(std::string(Message(Open())), HasSubstr("key: split.count"));
}

TEST_F(SplitTest, PartInTheWrongPlaceIsRefused) {
  std::swap(parts_[0], parts_[1]);
  EXPECT_THAT(std::string(Message(Open())), HasSubstr("key: split.no"));
}

TEST_F(SplitTest, PartOfAnotherModelIsRefused) {
  parts_[1].SetString("general.architecture", "other");
  EXPECT_THAT(std::string(Message(Open())), HasSubstr("another model"));
  parts_[1].SetString("general.architecture", "none");
  parts_[0].SetString("general.name", "a");
  parts_[1].SetString("general.name", "b");
  EXPECT_THAT(std::string(Message(Open())), HasSubstr("another model"));
  parts_[1].SetString("general.name", "a");
  parts_[1].Set("split.tensors.count", int32_t{5});
  EXPECT_THAT(std::string(Message(Open())), HasSubstr("key: split.tensors.count"));
}

TEST_F(SplitTest, AnotherNumberOfTensorsIsRefused) {
  parts_[1].tensors.clear();
  EXPECT_THAT(std::string(Message(Open())), HasSubstr("wanted: 2, got: 1"));
}

TEST_F(SplitTest, TensorInTwoPartsIsRefused) {
  parts_[1].tensors[0].name = "t0";
  EXPECT_THAT(std::string(Message(Open())), HasSubstr("two parts"));
}

TEST_F(SplitTest, WithoutTheNameOfAPartItIsRefused) {
  parts_[0].Write(TestFilePath("renamed.gguf"));
  EXPECT_THAT(std::string(Message(GgufFile::Open(TestFilePath("renamed.gguf")).status())),
              HasSubstr("its name is not"));
}

}  // namespace
}  // namespace switchyard::model
