switchyard_test(gguf_file_test gguf_file_test.cc LABELS cpu
  DEPS switchyard::model switchyard::testing)
switchyard_test(gguf_refusal_test gguf_refusal_test.cc LABELS cpu
  DEPS switchyard::model switchyard::testing)
