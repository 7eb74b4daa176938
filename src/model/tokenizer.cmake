list(APPEND model_headers
  bpe.h byte_alphabet.h detokenizer.h pre_tokenizer.h special_token_matcher.h tokenizer.h
  tokenizer_data.h unicode_categories.h utf8.h vocabulary.h)
list(APPEND model_sources
  bpe.cc byte_alphabet.cc detokenizer.cc pre_tokenizer.cc special_token_matcher.cc tokenizer.cc
  tokenizer_data.cc unicode_categories.cc utf8.cc vocabulary.cc)
