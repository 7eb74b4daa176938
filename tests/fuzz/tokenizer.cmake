# Replays the corpus and a fixed set of mutations in every build.
switchyard_test(tokenizer_corpus_test tokenizer_corpus_test.cc LABELS cpu DEPS switchyard::model)
target_sources(tokenizer_corpus_test PRIVATE tokenizer_fuzz.cc)

# tokenizer_fuzz tests/data/fuzz/tokenizer -max_total_time=60
switchyard_model_fuzz(tokenizer_fuzz tokenizer_fuzz.cc)
