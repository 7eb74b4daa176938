#include "model/gguf_file.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/status.h"
#include "testing/gguf_writer.h"

namespace switchyard::model {
namespace {

using switchyard::testing::AppendBytes;
using switchyard::testing::GgufContents;
using switchyard::testing::TestFilePath;
using switchyard::testing::WriteTestFile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kData = SWITCHYARD_TEST_DATA "/qwen4exp/";

// One F32 matrix of 2 rows of 4, values 0 to 7.
GgufContents SmallContents() {
  GgufContents contents;
  contents.SetString("general.architecture", "none");
  GgufContents::Tensor tensor{
      .name = "w", .dims = {4, 2}, .type = 0, .offset = {}, .bytes = 32, .data = {}};
  for (int i = 0; i < 8; ++i) AppendBytes(tensor.data, static_cast<float>(i));
  contents.tensors.push_back(tensor);
  return contents;
}

absl::StatusOr<GgufFile> OpenContents(const GgufContents& contents) {
  return GgufFile::Open(WriteTestFile("model.gguf", contents.Bytes()));
}

std::string MessageOf(const absl::Status& status) { return std::string(Message(status)); }

TEST(GgufFileTest, ReadsTensorThroughMapAndThroughRead) {
  for (const uint32_t version : {2u, 3u}) {
    GgufContents contents = SmallContents();
    contents.version = version;
    const absl::StatusOr<GgufFile> file = OpenContents(contents);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->version(), version);
    ASSERT_EQ(file->tensors().size(), 1u);
    const TensorInfo* tensor = file->FindTensor("w");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->dtype, DType::kF32);
    EXPECT_EQ(tensor->bytes(), 32);
    EXPECT_EQ(DimsText(*tensor), "{4, 2}");
    const TensorView view = file->View(*tensor);
    EXPECT_EQ(view.cols, 4);
    EXPECT_EQ(view.rows, 2);
    EXPECT_EQ(view.num_slabs, 1);
    float row[4];
    std::memcpy(row, view.row(0, 1), sizeof(row));
    EXPECT_THAT(row, ElementsAre(4, 5, 6, 7));
    float read[4];
    ASSERT_TRUE(
        file->Read(*tensor, 1, 1, absl::MakeSpan(reinterpret_cast<std::byte*>(read), sizeof(read)))
            .ok());
    EXPECT_THAT(read, ElementsAre(4, 5, 6, 7));
    EXPECT_EQ(file->FindTensor("v"), nullptr);
  }
}

TEST(GgufFileTest, HonoursAlignment) {
  GgufContents contents = SmallContents();
  contents.Set("general.alignment", uint32_t{4096});
  contents.alignment = 4096;
  const absl::StatusOr<GgufFile> file = OpenContents(contents);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->FindTensor("w")->offset, 4096u);
  float value;
  std::memcpy(&value, file->View(*file->FindTensor("w")).row(0, 1), sizeof(value));
  EXPECT_EQ(value, 4);
}

TEST(GgufFileTest, GettersConvertIntegersOfEveryWidth) {
  GgufContents contents = SmallContents();
  contents.Set("u8", uint8_t{200});
  contents.Set("i8", int8_t{-3});
  contents.Set("u16", uint16_t{60000});
  contents.Set("i16", int16_t{-300});
  contents.Set("u32", uint32_t{4000000000});
  contents.Set("i32", int32_t{-5});
  contents.Set("u64", uint64_t{1} << 63);
  contents.Set("i64", int64_t{7});
  contents.Set("f32", 0.5f);
  contents.Set("f64", 0.25);
  contents.Set("bool", true);
  contents.SetString("string", "text");
  contents.SetArray("i32s", std::vector<int32_t>{3, -4});
  contents.SetArray("u64s", std::vector<uint64_t>{1, uint64_t{1} << 63});
  contents.SetArray("f32s", std::vector<float>{1.5f, 2.5f});
  contents.SetStrings("strings", {"a", "", "ccc"});
  contents.SetStrings("empty", {});
  std::string bools;
  AppendBytes(bools, uint32_t{7});
  AppendBytes(bools, uint64_t{2});
  bools += std::string("\x01\x00", 2);
  contents.SetRaw("bools", 9, bools);
  const absl::StatusOr<GgufFile> file = OpenContents(contents);
  ASSERT_TRUE(file.ok()) << file.status();
  const GgufMetadata& metadata = file->metadata();
  EXPECT_EQ(*metadata.GetUint("u8"), 200u);
  EXPECT_EQ(*metadata.GetUint("u16"), 60000u);
  EXPECT_EQ(*metadata.GetUint("u32"), 4000000000u);
  EXPECT_EQ(*metadata.GetUint("u64"), uint64_t{1} << 63);
  EXPECT_EQ(*metadata.GetUint("i64"), 7u);
  for (const char* key : {"i8", "i16", "i32"}) {
    EXPECT_THAT(MessageOf(metadata.GetUint(key).status()), HasSubstr("negative")) << key;
  }
  EXPECT_EQ(*metadata.GetFloat("f32"), 0.5);
  EXPECT_EQ(*metadata.GetFloat("f64"), 0.25);
  EXPECT_EQ(*metadata.GetBool("bool"), true);
  EXPECT_EQ(*metadata.GetString("string"), "text");
  EXPECT_THAT(*metadata.GetInts("i32s"), ElementsAre(3, -4));
  EXPECT_THAT(*metadata.GetUints("u64s"), ElementsAre(1, uint64_t{1} << 63));
  EXPECT_FALSE(metadata.GetInts("u64s").ok());
  EXPECT_THAT(*metadata.GetFloats("f32s"), ElementsAre(1.5f, 2.5f));
  EXPECT_THAT(*metadata.GetStrings("strings"), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(*metadata.GetStrings("empty"), ElementsAre());
  EXPECT_THAT(*metadata.GetBools("bools"), ElementsAre(true, false));
  EXPECT_EQ(metadata.Describe(*metadata.Find("strings")), "[a, , ccc]");
  EXPECT_EQ(metadata.Describe(*metadata.Find("i32s")), "[3, -4]");
  EXPECT_EQ(metadata.Describe(*metadata.Find("f32")), "0.5");
}

TEST(GgufFileTest, GettersNameKeyFileAndOffsetOfAnotherType) {
  GgufContents contents = SmallContents();
  contents.Set("a.float", 1.0f);
  contents.SetArray("a.bytes", std::vector<uint8_t>{1, 2});
  const absl::StatusOr<GgufFile> file = OpenContents(contents);
  ASSERT_TRUE(file.ok()) << file.status();
  const GgufMetadata& metadata = file->metadata();
  const absl::Status wrong = metadata.GetUint("a.float").status();
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(wrong), HasSubstr("wanted: integer, got: f32, key: a.float"));
  EXPECT_THAT(MessageOf(wrong), HasSubstr("model.gguf"));
  EXPECT_THAT(MessageOf(wrong),
              HasSubstr(fmt::format("offset: {}", metadata.Find("a.float")->offset)));
  EXPECT_FALSE(metadata.GetFloats("a.bytes").ok());
  EXPECT_FALSE(metadata.GetStrings("a.bytes").ok());
  EXPECT_FALSE(metadata.GetBools("a.bytes").ok());
  EXPECT_FALSE(metadata.GetUint("a.bytes").ok());
  EXPECT_FALSE(metadata.GetUints("a.float").ok());
  EXPECT_FALSE(metadata.GetString("a.float").ok());
  EXPECT_FALSE(metadata.GetBool("a.float").ok());
  EXPECT_EQ(metadata.GetUint("absent").status().code(), absl::StatusCode::kNotFound);
}

TEST(GgufFileTest, OpensEveryTestModel) {
  for (const char* name :
       {"base", "mixed", "shards", "qsa", "qsa_ties", "qsa_2048", "e512", "mtp"}) {
    const absl::StatusOr<GgufFile> file = GgufFile::Open(kData + name + ".gguf");
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(*file->metadata().GetString("general.architecture"), "qwen4exp");
    EXPECT_EQ(file->num_shards(), 1);
  }
}

TEST(GgufFileTest, OpensSplitModelFromAnyPart) {
  for (int part = 1; part <= 4; ++part) {
    const absl::StatusOr<GgufFile> file =
        GgufFile::Open(fmt::format("{}split-0000{}-of-00004.gguf", kData, part));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->num_shards(), 4);
    EXPECT_EQ(file->tensors().size(), *file->metadata().GetUint("split.tensors.count"));
    // Metadata are those of the first part, which holds no tensors.
    EXPECT_TRUE(file->metadata().Has("qwen4exp.block_count"));
    std::vector<int> tensors_of_shard(4);
    for (const TensorInfo& tensor : file->tensors()) {
      ++tensors_of_shard[static_cast<size_t>(tensor.shard)];
    }
    EXPECT_EQ(tensors_of_shard[0], 0);
    for (int shard = 1; shard < 4; ++shard)
      EXPECT_GT(tensors_of_shard[static_cast<size_t>(shard)], 0);
    uint64_t bytes = 0;
    for (int shard = 0; shard < 4; ++shard) bytes += std::filesystem::file_size(file->path(shard));
    EXPECT_EQ(file->total_bytes(), bytes);
  }
}

TEST(GgufFileTest, ReadsTensorsOfEveryShard) {
  const absl::StatusOr<GgufFile> file = GgufFile::Open(kData + "split-00001-of-00004.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  for (const TensorInfo& tensor : file->tensors()) {
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
    ASSERT_TRUE(file->Read(tensor, 0, tensor.num_rows(), absl::MakeSpan(bytes)).ok());
    EXPECT_EQ(std::memcmp(bytes.data(), file->View(tensor).data, bytes.size()), 0) << tensor.name;
  }
}

TEST(GgufFileTest, StaysValidWhenMoved) {
  absl::StatusOr<GgufFile> file = GgufFile::Open(kData + "qsa_2048.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  const TensorInfo* tensor = file->FindTensor("token_embd.weight");
  const std::byte* data = file->View(*tensor).data;
  const std::string_view name = *file->metadata().GetString("general.architecture");
  const GgufFile moved = *std::move(file);
  EXPECT_EQ(moved.FindTensor("token_embd.weight"), tensor);
  EXPECT_EQ(moved.View(*tensor).data, data);
  EXPECT_EQ(name, "qwen4exp");
}

// 94 GB of tensors and a vocabulary of the size of the released model, as a file with holes.
TEST(GgufFileTest, OpensVeryLargeFileAtOnceAndReadsOnlyItsHeader) {
  constexpr uint64_t kTensorBytes = 94'000'000'000;
  GgufContents contents = SmallContents();
  std::vector<std::string> tokens;
  for (int i = 0; i < 248320; ++i) tokens.push_back(fmt::format("token number {}", i));
  contents.SetStrings("tokenizer.ggml.tokens", tokens);
  contents.tensors[0] = {.name = "big",
                         .dims = {1000, 1000, 23500},
                         .type = 0,
                         .offset = {},
                         .bytes = kTensorBytes,
                         .data = {}};
  const std::string path = TestFilePath("big.gguf");
  contents.Write(path);
  const auto start = std::chrono::steady_clock::now();
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(file.ok()) << file.status();
  // Milliseconds without sanitizers; reading the file would take more than ten seconds.
  EXPECT_LT(seconds.count(), 1.0);
  EXPECT_EQ(file->metadata().GetStrings("tokenizer.ggml.tokens")->size(), tokens.size());
  EXPECT_EQ(file->metadata().GetStrings("tokenizer.ggml.tokens")->back(), tokens.back());

  // No page of the map may be in memory because of Open(): a hole stays a hole in the page cache.
  const TensorView view = file->View(*file->FindTensor("big"));
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t pages = 64 * 1024 * 1024 / page;
  auto* middle = const_cast<std::byte*>(view.data) + kTensorBytes / 2;
  middle -= reinterpret_cast<uintptr_t>(middle) % page;
  std::vector<unsigned char> resident(pages);
  ASSERT_EQ(mincore(middle, pages * page, resident.data()), 0);
  EXPECT_EQ(std::count_if(resident.begin(), resident.end(), [](unsigned char r) { return r & 1; }),
            0);
}

TEST(GgufFileTest, AdviceKeepsContents) {
  const absl::StatusOr<GgufFile> file = GgufFile::Open(kData + "e512.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  const TensorInfo& tensor = *file->FindTensor("blk.0.ffn_up_exps.weight");
  const TensorView view = file->View(tensor);
  const std::vector<std::byte> before(view.data, view.data + view.bytes());
  for (const MapAdvice advice : {MapAdvice::kSequential, MapAdvice::kDrop, MapAdvice::kRandom}) {
    file->Advise(tensor, advice);
    EXPECT_EQ(std::memcmp(before.data(), view.data, before.size()), 0);
  }
}

TEST(GgufFileTest, ReportsTruncationWhileOpenInsteadOfFaulting) {
  const std::string bytes = SmallContents().Bytes();
  const std::string path = WriteTestFile("model.gguf", bytes);
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->CheckUnchanged().ok());
  std::filesystem::resize_file(path, bytes.size() - 16);
  std::vector<std::byte> out(32);
  const absl::Status read = file->Read(*file->FindTensor("w"), 0, 2, absl::MakeSpan(out));
  EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(MessageOf(read), HasSubstr("w: model file ends early"));
  EXPECT_THAT(MessageOf(file->CheckUnchanged()), HasSubstr("changed size"));
  // Metadata are a copy.
  EXPECT_EQ(*file->metadata().GetString("general.architecture"), "none");
}

TEST(GgufFileTest, NoticesThatTheFileWasWrittenTo) {
  const std::string path = WriteTestFile("model.gguf", SmallContents().Bytes());
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const timespec times[2] = {{.tv_sec = 1, .tv_nsec = 0}, {.tv_sec = 1, .tv_nsec = 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  EXPECT_EQ(file->CheckUnchanged().code(), absl::StatusCode::kDataLoss);
}

TEST(GgufFileTest, KeepsTheFileThatWasOpenedWhenItIsReplaced) {
  const std::string path = WriteTestFile("model.gguf", SmallContents().Bytes());
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::rename(WriteTestFile("other.gguf", "short"), path);
  std::vector<std::byte> out(32);
  EXPECT_TRUE(file->Read(*file->FindTensor("w"), 0, 2, absl::MakeSpan(out)).ok());
  EXPECT_TRUE(file->CheckUnchanged().ok());
}

TEST(GgufFileTest, RefusesWhatIsNotARegularFile) {
  EXPECT_EQ(GgufFile::Open(TestFilePath("absent.gguf")).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(GgufFile::Open(::testing::TempDir()).status().code(),
            absl::StatusCode::kInvalidArgument);
  const std::string pipe = TestFilePath("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(GgufFile::Open(pipe).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace switchyard::model
