foreach(test IN ITEMS gguf_file model_digest gguf_refusal model_spec model_summary
    qwen3moe qwen3next qwen35moe qwen4exp)
  switchyard_test(${test}_test ${test}_test.cc LABELS cpu
    DEPS switchyard::model switchyard::testing)
endforeach()
