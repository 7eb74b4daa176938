// Runs the fuzz target in every build: over the stored corpus, and over mutations of it.
#include "corpus_replay.h"

namespace switchyard::testing {
namespace {

constexpr char kCorpus[] = SWITCHYARD_TEST_DATA "/fuzz/http_request";

TEST(HttpRequestCorpusTest, SurvivesTheStoredCorpus) {
  const std::vector<std::string> corpus = ReadCorpus(kCorpus);
  EXPECT_GE(corpus.size(), 7u);
  for (const std::string& bytes : corpus) RunFuzzTarget(bytes);
}

TEST(HttpRequestCorpusTest, SurvivesMutations) {
  RunMutations(ReadCorpus(kCorpus), /*seed=*/20260705, /*count=*/2000);
}

}  // namespace
}  // namespace switchyard::testing
