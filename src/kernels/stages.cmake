# The cpu backend.
list(APPEND kernels_headers
  cpu/cpu_backend.h
  cpu/cpu_weight.h)
list(APPEND kernels_sources
  cpu/attention.cc
  cpu/attention_qkv.cc
  cpu/causal_conv.cc
  cpu/cpu_backend.cc
  cpu/cpu_weight.cc
  cpu/experts.cc
  cpu/gated_delta_net.cc
  cpu/mixer.cc
  cpu/ple.cc
  cpu/products.cc
  cpu/qsa.cc
  cpu/router.cc
  cpu/stage_kernels_avx2.cc
  cpu/stage_kernels_avx512.cc
  cpu/stage_kernels_portable.cc)

# The only files of these that may use more than the baseline instruction set.
set_source_files_properties(cpu/stage_kernels_avx2.cc PROPERTIES
  COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
# GCC 12 warns about its own AVX-512 headers (bug 105593).
set_source_files_properties(cpu/stage_kernels_avx512.cc PROPERTIES
  COMPILE_OPTIONS
  "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-Wno-uninitialized;-Wno-maybe-uninitialized")
