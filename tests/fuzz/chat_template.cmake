# Replays the corpus and a fixed set of mutations in every build.
switchyard_test(chat_template_corpus_test chat_template_corpus_test.cc LABELS cpu
  DEPS switchyard::model)
target_sources(chat_template_corpus_test PRIVATE chat_template_fuzz.cc)

# chat_template_fuzz tests/data/fuzz/chat_template tests/data/chat_templates -max_total_time=60
if(SWITCHYARD_FUZZ)
  # The room is compiled once more, with the coverage that the fuzzer follows.
  get_target_property(fuzz_sources switchyard_model SOURCES)
  get_target_property(fuzz_directory switchyard_model SOURCE_DIR)
  list(FILTER fuzz_sources INCLUDE REGEX "\\.cc$")
  list(TRANSFORM fuzz_sources PREPEND ${fuzz_directory}/)
  add_executable(chat_template_fuzz chat_template_fuzz.cc ${fuzz_sources})
  target_compile_options(chat_template_fuzz PRIVATE -fsanitize=fuzzer,address,undefined)
  target_link_options(chat_template_fuzz PRIVATE -fsanitize=fuzzer,address,undefined)
  target_include_directories(chat_template_fuzz PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(chat_template_fuzz PRIVATE
    switchyard_options switchyard::base absl::flat_hash_map absl::node_hash_map
    nlohmann_json::nlohmann_json)
endif()
