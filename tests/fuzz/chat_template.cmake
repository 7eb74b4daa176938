# Replays the corpus and a fixed set of mutations in every build.
switchyard_test(chat_template_corpus_test chat_template_corpus_test.cc LABELS cpu
  DEPS switchyard::model)
target_sources(chat_template_corpus_test PRIVATE chat_template_fuzz.cc)

# chat_template_fuzz tests/data/fuzz/chat_template tests/data/chat_templates -max_total_time=60
switchyard_model_fuzz(chat_template_fuzz chat_template_fuzz.cc)
