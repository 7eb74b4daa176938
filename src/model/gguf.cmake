list(APPEND model_headers
  mapped_file.h gguf_metadata.h gguf_header.h gguf_file.h
  model_spec.h model_summary.h architectures.h arch/arch_reader.h arch/qwen4exp.h)
list(APPEND model_sources
  mapped_file.cc gguf_metadata.cc gguf_header.cc gguf_file.cc
  model_spec.cc model_summary.cc architectures.cc arch/arch_reader.cc arch/qwen4exp.cc)
