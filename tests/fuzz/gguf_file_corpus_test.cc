// Runs the fuzz target in every build: over the stored corpus, and over mutations of small files.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "model/gguf_file.h"
#include "model/model_spec.h"
#include "testing/gguf_refusals.h"
#include "testing/gguf_writer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace switchyard::testing {
namespace {

const std::string kCorpus = SWITCHYARD_TEST_DATA "/fuzz/gguf_file";

void RunTarget(const std::string& bytes) {
  // A copy of exactly this size, so that a read beyond it is seen by the sanitizers.
  const std::vector<uint8_t> input(bytes.begin(), bytes.end());
  EXPECT_EQ(LLVMFuzzerTestOneInput(input.data(), input.size()), 0);
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A header of a real model without its longest arrays, so that mutations hit what matters.
std::string ModelHeader() {
  GgufContents contents = GgufContents::FromFile(SWITCHYARD_TEST_DATA "/qwen4exp/qsa_2048.gguf");
  contents.Remove("tokenizer.ggml.tokens");
  contents.Remove("tokenizer.ggml.token_type");
  return contents.Header();
}

// Changes `bytes` in one way that breaks readers: a byte, a length or count of 4 or 8 bytes
// replaced by a border value, a piece removed, repeated or moved, the end cut off.
std::string Mutate(std::string bytes, std::mt19937_64& random) {
  constexpr uint64_t kBorders[] = {0,
                                   1,
                                   2,
                                   0x7f,
                                   0xff,
                                   0x7fffffff,
                                   0x80000000,
                                   0xffffffff,
                                   0x100000000,
                                   uint64_t{1} << 62,
                                   uint64_t{1} << 63,
                                   ~uint64_t{0},
                                   ~uint64_t{0} - 7};
  const auto below = [&](size_t limit) { return limit == 0 ? 0 : random() % limit; };
  const int num_changes = 1 + static_cast<int>(below(3));
  for (int i = 0; i < num_changes && !bytes.empty(); ++i) {
    const size_t at = below(bytes.size());
    const size_t length = 1 + below(std::min<size_t>(32, bytes.size() - at));
    switch (below(6)) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1: {
        const uint64_t value = kBorders[below(std::size(kBorders))];
        const size_t width = below(2) == 0 ? 4 : 8;
        for (size_t j = 0; j < width && at + j < bytes.size(); ++j) {
          bytes[at + j] = static_cast<char>(value >> (8 * j));
        }
        break;
      }
      case 2:
        bytes.erase(at, length);
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, length));
        break;
      case 4:
        bytes.replace(below(bytes.size()), 0, bytes.substr(at, length));
        break;
      default:
        bytes.resize(at);
    }
  }
  return bytes;
}

TEST(GgufFileCorpusTest, SurvivesTheStoredCorpus) {
  int num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kCorpus)) {
    SCOPED_TRACE(entry.path());
    RunTarget(ReadFile(entry.path()));
    ++num_files;
  }
  EXPECT_GE(num_files, 100);
}

// With SWITCHYARD_WRITE_CORPUS set, writes the files that are missing instead.
TEST(GgufFileCorpusTest, StoredCorpusHoldsEveryRefusal) {
  const bool write = std::getenv("SWITCHYARD_WRITE_CORPUS") != nullptr;
  if (write) {
    std::filesystem::create_directories(kCorpus);
    std::ofstream(kCorpus + "/ModelHeader", std::ios::binary) << ModelHeader();
    std::ofstream(kCorpus + "/SmallFile", std::ios::binary) << SmallGguf().Bytes();
  }
  for (const GgufRefusal& refusal : GgufRefusals()) {
    const std::string path = kCorpus + "/" + refusal.name;
    if (write) std::ofstream(path, std::ios::binary) << refusal.bytes();
    EXPECT_EQ(ReadFile(path), refusal.bytes()) << refusal.name;
  }
}

TEST(GgufFileCorpusTest, SurvivesMutationsOfASmallFile) {
  const std::string valid = SmallGguf().Bytes();
  std::mt19937_64 random(20260101);
  for (int i = 0; i < 3000; ++i) RunTarget(Mutate(valid, random));
}

// Else its mutations would test nothing but the first check.
TEST(GgufFileCorpusTest, ModelHeaderIsThatOfAValidModel) {
  std::string bytes = ModelHeader();
  bytes.resize(bytes.size() + (size_t{4} << 20));
  const absl::StatusOr<model::GgufFile> file =
      model::GgufFile::Open(WriteTestFile("model.gguf", bytes));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(model::LoadModelSpec(*file).ok()) << model::LoadModelSpec(*file).status();
}

TEST(GgufFileCorpusTest, SurvivesMutationsOfAModelHeader) {
  const std::string valid = ModelHeader();
  std::mt19937_64 random(20260102);
  for (int i = 0; i < 1500; ++i) RunTarget(Mutate(valid, random));
}

TEST(GgufFileCorpusTest, SurvivesEveryTruncationOfASmallFile) {
  const std::string valid = SmallGguf().Bytes();
  for (size_t size = 0; size <= valid.size(); ++size) RunTarget(valid.substr(0, size));
}

}  // namespace
}  // namespace switchyard::testing
