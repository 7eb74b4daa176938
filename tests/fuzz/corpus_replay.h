// Replays a fuzz target over its stored corpus, and over mutations of it, in builds without a
// fuzzer.
#pragma once

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

namespace switchyard::testing {

inline void RunFuzzTarget(const std::string& bytes) {
  // A copy of exactly this size, so that a read beyond it is seen by the sanitizers.
  const std::vector<uint8_t> input(bytes.begin(), bytes.end());
  EXPECT_EQ(LLVMFuzzerTestOneInput(input.data(), input.size()), 0);
}

// The files of a folder, by name: mutations depend on the order.
inline std::vector<std::string> ReadCorpus(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

// Runs pieces of the corpus put together anew, with single bytes changed.
// REQUIRES: no input of the corpus is empty.
inline void RunMutations(const std::vector<std::string>& corpus, uint64_t seed, int count) {
  ASSERT_FALSE(corpus.empty());
  std::mt19937_64 random(seed);
  const auto any_piece = [&] {
    const std::string& bytes = corpus[random() % corpus.size()];
    const size_t begin = random() % bytes.size();
    return bytes.substr(begin, random() % 60 + 1);
  };
  for (int i = 0; i < count; ++i) {
    std::string bytes = corpus[random() % corpus.size()];
    for (size_t changes = random() % 4 + 1; changes > 0; --changes) {
      const size_t at = random() % bytes.size();
      if (random() % 2 == 0) {
        bytes[at] = static_cast<char>(random());
      } else {
        bytes.insert(at, any_piece());
      }
    }
    RunFuzzTarget(bytes);
  }
}

}  // namespace switchyard::testing
