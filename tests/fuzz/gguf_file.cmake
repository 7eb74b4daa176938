# Replays the corpus and a fixed set of mutations in every build.
switchyard_test(gguf_file_corpus_test gguf_file_corpus_test.cc LABELS cpu
  DEPS switchyard::model switchyard::testing)
target_sources(gguf_file_corpus_test PRIVATE gguf_file_fuzz.cc)

# gguf_file_fuzz tests/data/fuzz/gguf_file -max_total_time=60
if(SWITCHYARD_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "SWITCHYARD_FUZZ=ON needs clang: -DCMAKE_CXX_COMPILER=clang++")
  endif()
  # The room is compiled once more, with the coverage that the fuzzer follows.
  get_target_property(fuzz_sources switchyard_model SOURCES)
  get_target_property(fuzz_directory switchyard_model SOURCE_DIR)
  list(FILTER fuzz_sources INCLUDE REGEX "\\.cc$")
  list(TRANSFORM fuzz_sources PREPEND ${fuzz_directory}/)
  add_executable(gguf_file_fuzz gguf_file_fuzz.cc ${fuzz_sources})
  target_compile_options(gguf_file_fuzz PRIVATE -fsanitize=fuzzer,address,undefined)
  target_link_options(gguf_file_fuzz PRIVATE -fsanitize=fuzzer,address,undefined)
  target_include_directories(gguf_file_fuzz PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(gguf_file_fuzz PRIVATE
    switchyard_options switchyard::base nlohmann_json::nlohmann_json)
endif()
