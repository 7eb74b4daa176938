# Reading what a chat model answers, added to the lists of the model room.
list(APPEND model_headers
  answer_format.h answer_parser.h json_scanner.h tool_call_reader.h tool_schemas.h)
list(APPEND model_sources
  answer_format.cc answer_parser.cc json_scanner.cc tool_call_reader.cc tool_schemas.cc)
