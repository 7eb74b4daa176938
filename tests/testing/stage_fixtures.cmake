# A library of its own: only tests of kernels need it, and it needs the kernels room.
if(TARGET switchyard::kernels)
  add_library(switchyard_stage_fixtures STATIC attention_fixture.cc stage_fixtures.cc tensor_data.cc)
  target_include_directories(switchyard_stage_fixtures PUBLIC ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(switchyard_stage_fixtures
    PUBLIC switchyard::kernels
    PRIVATE switchyard_options)
  add_library(switchyard::stage_fixtures ALIAS switchyard_stage_fixtures)
endif()
