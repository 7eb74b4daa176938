foreach(test IN ITEMS gguf_file gguf_refusal model_spec qwen4exp model_summary)
  switchyard_test(${test}_test ${test}_test.cc LABELS cpu
    DEPS switchyard::model switchyard::testing)
endforeach()
