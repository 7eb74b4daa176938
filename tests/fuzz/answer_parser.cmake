# Replays the corpus and a fixed set of mutations in every build.
switchyard_test(answer_parser_corpus_test answer_parser_corpus_test.cc LABELS cpu
  DEPS switchyard::model)
target_sources(answer_parser_corpus_test PRIVATE answer_parser_fuzz.cc)

# answer_parser_fuzz tests/data/fuzz/answer_parser -max_total_time=60
switchyard_model_fuzz(answer_parser_fuzz answer_parser_fuzz.cc)
