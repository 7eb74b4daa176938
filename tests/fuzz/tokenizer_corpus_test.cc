// Runs the fuzz target in every build: over the stored corpus, and over mutations of it.
#include "corpus_replay.h"

namespace switchyard::testing {
namespace {

constexpr char kCorpus[] = SWITCHYARD_TEST_DATA "/fuzz/tokenizer";

TEST(TokenizerCorpusTest, SurvivesTheStoredCorpus) {
  const std::vector<std::string> corpus = ReadCorpus(kCorpus);
  EXPECT_GE(corpus.size(), 5u);
  for (const std::string& bytes : corpus) RunFuzzTarget(bytes);
}

TEST(TokenizerCorpusTest, SurvivesMutations) {
  RunMutations(ReadCorpus(kCorpus), /*seed=*/20260704, /*count=*/1000);
}

}  // namespace
}  // namespace switchyard::testing
