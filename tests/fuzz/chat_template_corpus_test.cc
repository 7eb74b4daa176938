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

namespace switchyard::model {
namespace {

void RunTarget(const std::string& bytes) {
  // A copy of exactly this size, so that a read beyond it is seen by the sanitizers.
  const std::vector<uint8_t> input(bytes.begin(), bytes.end());
  EXPECT_EQ(LLVMFuzzerTestOneInput(input.data(), input.size()), 0);
}

// The files of both folders, and the lines of expressions.txt.
std::vector<std::string> Corpus() {
  std::vector<std::filesystem::path> paths;
  for (const char* const folder :
       {SWITCHYARD_TEST_DATA "/fuzz/chat_template", SWITCHYARD_TEST_DATA "/chat_templates"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() != ".jsonl") paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());  // mutations depend on the order
  std::vector<std::string> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    if (path.filename() == "expressions.txt") {
      for (std::string line; std::getline(file, line);) corpus.push_back(line);
    } else {
      corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  }
  std::erase_if(corpus, [](const std::string& bytes) { return bytes.empty(); });
  return corpus;
}

TEST(ChatTemplateCorpusTest, SurvivesTheStoredCorpus) {
  const std::vector<std::string> corpus = Corpus();
  EXPECT_GE(corpus.size(), 150u);
  for (const std::string& bytes : corpus) RunTarget(bytes);
}

// Pieces of the corpus put together anew, with single bytes changed.
TEST(ChatTemplateCorpusTest, SurvivesMutations) {
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
    for (size_t changes = random() % 3 + 1; changes > 0; --changes) {
      const size_t at = random() % bytes.size();
      const size_t kind = random() % 4;
      if (kind == 0) {
        bytes[at] = static_cast<char>(random());
      } else if (kind == 1) {
        bytes.erase(at, random() % 4);
        if (bytes.empty()) bytes.push_back('x');
      } else {
        bytes.insert(at, any_piece());
      }
    }
    RunTarget(bytes);
  }
}

}  // namespace
}  // namespace switchyard::model
