list(APPEND model_headers
  mapped_file.h gguf_metadata.h gguf_header.h gguf_file.h model_digest.h
  model_spec.h model_summary.h architectures.h arch/arch_reader.h arch/qwen3_blocks.h
  arch/qwen35moe.h arch/qwen3moe.h arch/qwen3next.h arch/qwen4exp.h)
list(APPEND model_sources
  mapped_file.cc gguf_metadata.cc gguf_header.cc gguf_file.cc model_digest.cc
  model_spec.cc model_summary.cc architectures.cc arch/arch_reader.cc arch/qwen3_blocks.cc
  arch/qwen35moe.cc arch/qwen3moe.cc arch/qwen3next.cc arch/qwen4exp.cc)
