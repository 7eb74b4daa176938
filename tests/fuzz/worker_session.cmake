# Replays the corpus and a fixed set of mutations in every build.
switchyard_test(worker_session_corpus_test worker_session_corpus_test.cc LABELS cpu
  DEPS switchyard::coordinator)
target_sources(worker_session_corpus_test PRIVATE worker_session_fuzz.cc)

# worker_session_fuzz tests/data/fuzz/worker_session -max_total_time=60
# The cluster is compiled once more, with the coverage that the fuzzer follows.
if(SWITCHYARD_FUZZ)
  add_executable(worker_session_fuzz worker_session_fuzz.cc
    ${PROJECT_SOURCE_DIR}/src/coordinator/cluster.cc
    ${PROJECT_SOURCE_DIR}/src/coordinator/plan_book.cc)
  target_compile_options(worker_session_fuzz PRIVATE -fsanitize=fuzzer,address,undefined)
  target_link_options(worker_session_fuzz PRIVATE -fsanitize=fuzzer,address,undefined)
  target_include_directories(worker_session_fuzz PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(worker_session_fuzz PRIVATE switchyard_options switchyard::base
    switchyard::proto)
endif()
