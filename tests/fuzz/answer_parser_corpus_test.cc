// Runs the fuzz target in every build: over the stored corpus, and over mutations of it.
#include "corpus_replay.h"

namespace switchyard::testing {
namespace {

constexpr char kCorpus[] = SWITCHYARD_TEST_DATA "/fuzz/answer_parser";

TEST(AnswerParserCorpusTest, SurvivesTheStoredCorpus) {
  const std::vector<std::string> corpus = ReadCorpus(kCorpus);
  EXPECT_GE(corpus.size(), 8u);
  for (const std::string& bytes : corpus) RunFuzzTarget(bytes);
}

TEST(AnswerParserCorpusTest, SurvivesMutations) {
  RunMutations(ReadCorpus(kCorpus), /*seed=*/20261130, /*count=*/5000);
}

}  // namespace
}  // namespace switchyard::testing
