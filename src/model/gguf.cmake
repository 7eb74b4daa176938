list(APPEND model_headers mapped_file.h gguf_metadata.h gguf_header.h gguf_file.h)
list(APPEND model_sources mapped_file.cc gguf_metadata.cc gguf_header.cc gguf_file.cc)
