# Replays the corpus and a fixed set of mutations in every build.
switchyard_test(http_request_corpus_test http_request_corpus_test.cc LABELS cpu
  DEPS switchyard::coordinator_http switchyard_fake_worker)
target_sources(http_request_corpus_test PRIVATE http_request_fuzz.cc)

# http_request_fuzz tests/data/fuzz/http_request -max_total_time=60
# The APIs are compiled once more, with the coverage that the fuzzer follows; sockets are not in it.
if(SWITCHYARD_FUZZ)
  set(http_directory ${PROJECT_SOURCE_DIR}/src/coordinator/http)
  set(http_sources)
  foreach(name IN ITEMS anthropic_answer anthropic_api anthropic_input answer_facts api_call api_error
      chat_input generation_call generation_options http_message json_fields json_text native_api
      openai_answer openai_api)
    list(APPEND http_sources ${http_directory}/${name}.cc)
  endforeach()
  add_executable(http_request_fuzz http_request_fuzz.cc ../testing/byte_tokenizer.cc ${http_sources}
    ${PROJECT_BINARY_DIR}/src/coordinator/http/openapi_json.cc)
  set_source_files_properties(${PROJECT_BINARY_DIR}/src/coordinator/http/openapi_json.cc
    PROPERTIES GENERATED ON)
  add_dependencies(http_request_fuzz switchyard_coordinator_http)
  target_compile_options(http_request_fuzz PRIVATE -fsanitize=fuzzer,address,undefined)
  target_link_options(http_request_fuzz PRIVATE -fsanitize=fuzzer,address,undefined)
  target_include_directories(http_request_fuzz PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(http_request_fuzz PRIVATE switchyard::coordinator switchyard_options)
endif()
