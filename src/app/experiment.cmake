# Commands experiment and report. What reads and explains results needs no engine.
list(APPEND app_sources
  commands/experiment_command.cc
  commands/report_command.cc
  experiment/answer_client.cc
  experiment/child_process.cc
  experiment/experiment_run.cc
  experiment/result_text.cc)
add_library(switchyard_experiment STATIC
  experiment/combinations.cc
  experiment/diagnosis.cc
  experiment/experiment_result.cc
  experiment/experiment_spec.cc
  load/percentiles.cc
  report/charts.cc
  report/html_text.cc
  report/report_page.cc)
target_link_libraries(switchyard_experiment
  PUBLIC switchyard::base nlohmann_json::nlohmann_json
  PRIVATE switchyard_options)
target_include_directories(switchyard_experiment PUBLIC ${PROJECT_SOURCE_DIR}/src)
target_include_directories(switchyard_experiment SYSTEM PRIVATE ${TOMLPLUSPLUS_INCLUDE_DIR})
add_library(switchyard::experiment ALIAS switchyard_experiment)
