list(APPEND testing_headers gguf_writer.h gguf_refusals.h)
list(APPEND testing_sources gguf_writer.cc gguf_refusals.cc)
