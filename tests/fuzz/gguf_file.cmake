# Replays the corpus and a fixed set of mutations in every build.
switchyard_test(gguf_file_corpus_test gguf_file_corpus_test.cc LABELS cpu
  DEPS switchyard::model switchyard::testing)
target_sources(gguf_file_corpus_test PRIVATE gguf_file_fuzz.cc)

# gguf_file_fuzz tests/data/fuzz/gguf_file -max_total_time=60
switchyard_model_fuzz(gguf_file_fuzz gguf_file_fuzz.cc)
