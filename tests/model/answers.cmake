foreach(test IN ITEMS answer_format answer_parser json_scanner tool_call_reader tool_schemas)
  switchyard_test(${test}_test ${test}_test.cc LABELS cpu DEPS switchyard::model)
endforeach()
