list(APPEND testing_headers gguf_writer.h)
list(APPEND testing_sources gguf_writer.cc)
