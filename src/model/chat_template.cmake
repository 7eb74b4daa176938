# The chat template interpreter, added to the lists of the model room.
list(APPEND model_headers chat_template.h)
list(APPEND model_sources
  chat_template.cc
  template/arguments.cc
  template/evaluate.cc
  template/expression_parser.cc
  template/filters.cc
  template/formatting.cc
  template/interpreter.cc
  template/lexer.cc
  template/message_borders.cc
  template/methods.cc
  template/normalize_messages.cc
  template/operators.cc
  template/parser.cc
  template/sequence_filters.cc
  template/tests.cc
  template/text.cc
  template/text_functions.cc
  template/token_stream.cc
  template/unicode.cc
  template/value.cc)
