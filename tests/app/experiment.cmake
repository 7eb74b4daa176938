# Commands experiment and report.
foreach(name IN ITEMS
    experiment_spec_test combinations_test diagnosis_test experiment_result_test report_page_test
    report_browser_test)
  switchyard_test(${name} experiment/${name}.cc LABELS cpu DEPS switchyard::experiment)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
endforeach()
find_package(ZLIB REQUIRED)
target_sources(report_browser_test PRIVATE experiment/png_pixels.cc)
target_link_libraries(report_browser_test PRIVATE switchyard_process ZLIB::ZLIB)

switchyard_test(experiment_files_test experiment/experiment_files_test.cc LABELS cpu
  DEPS switchyard::app)
target_include_directories(experiment_files_test PRIVATE ${PROJECT_SOURCE_DIR}/tests)
