// Runs the fuzz target in every build: over the stored corpus, and over mutations of it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace switchyard::coordinator::http {
namespace {

void RunInput(const std::string& bytes) {
  // A copy of exactly this size, so that a read beyond it is seen by the sanitizers.
  const std::vector<uint8_t> input(bytes.begin(), bytes.end());
  EXPECT_EQ(LLVMFuzzerTestOneInput(input.data(), input.size()), 0);
}

std::vector<std::string> Corpus() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(SWITCHYARD_TEST_DATA "/fuzz/http_request")) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());  // mutations depend on the order
  std::vector<std::string> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

TEST(HttpRequestCorpusTest, SurvivesTheStoredCorpus) {
  const std::vector<std::string> corpus = Corpus();
  EXPECT_GE(corpus.size(), 7u);
  for (const std::string& bytes : corpus) RunInput(bytes);
}

// Pieces of the corpus put together anew, with single bytes changed.
TEST(HttpRequestCorpusTest, SurvivesMutations) {
  const std::vector<std::string> corpus = Corpus();
  ASSERT_FALSE(corpus.empty());
  std::mt19937_64 random(20260705);
  const auto any_piece = [&] {
    const std::string& bytes = corpus[random() % corpus.size()];
    const size_t begin = random() % bytes.size();
    return bytes.substr(begin, random() % 60 + 1);
  };
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = corpus[random() % corpus.size()];
    for (size_t changes = random() % 4 + 1; changes > 0; --changes) {
      const size_t at = random() % bytes.size();
      if (random() % 2 == 0) {
        bytes[at] = static_cast<char>(random());
      } else {
        bytes.insert(at, any_piece());
      }
    }
    RunInput(bytes);
  }
}

}  // namespace
}  // namespace switchyard::coordinator::http
