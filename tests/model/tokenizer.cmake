switchyard_test(tokenizer_test tokenizer_test.cc LABELS cpu DEPS switchyard::model)
switchyard_test(detokenizer_test detokenizer_test.cc LABELS cpu DEPS switchyard::model)
switchyard_test(pre_tokenizer_test pre_tokenizer_test.cc LABELS cpu
  DEPS switchyard::model PkgConfig::PCRE2)
switchyard_test(tokenizer_data_test tokenizer_data_test.cc LABELS cpu
  DEPS switchyard::model switchyard::testing)
