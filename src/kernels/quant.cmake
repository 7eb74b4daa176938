# Formats and matrix products.
list(APPEND kernels_headers
  quant/block.h
  quant/codebooks.h
  quant/dequantize.h
  quant/formats.h
  quant/half.h
  quant/k_scales.h
  quant/iq1_m.h quant/iq1_s.h quant/iq2_s.h quant/iq2_xs.h quant/iq2_xxs.h quant/iq3_s.h
  quant/iq3_xxs.h quant/iq4_nl.h quant/iq4_xs.h quant/q2_k.h quant/q3_k.h quant/q4_0.h
  quant/q4_1.h quant/q4_k.h quant/q5_0.h quant/q5_1.h quant/q5_k.h quant/q6_k.h quant/q8_0.h
  quant/quantize.h)
list(APPEND kernels_sources
  quant/codebooks.cc
  quant/dequantize.cc
  quant/quantize.cc)

list(APPEND kernels_headers
  cpu/activation_rows.h
  cpu/cpu_features.h
  cpu/matmul.h)
list(APPEND kernels_sources
  cpu/activation_rows.cc
  cpu/cpu_features.cc
  cpu/expanded_dot_avx2.cc
  cpu/float_dot_avx2.cc
  cpu/float_dot_avx512.cc
  cpu/matmul.cc
  cpu/panel.cc
  cpu/panel_dot_avx2.cc
  cpu/panel_dot_avx512.cc
  cpu/panel_dot_avxvnni.cc
  cpu/panel_dot_scalar.cc)

# Only these files may use more than the baseline instruction set; cpu_features.cc says who may
# call them.
set(avx2_flags -mavx2 -mfma -mf16c)
set_source_files_properties(cpu/float_dot_avx2.cc PROPERTIES COMPILE_OPTIONS "${avx2_flags}")
# Integer sums stay in the order in which they are written: GCC would put them off to the end of a
# run, with more terms alive than there are registers.
set_source_files_properties(cpu/expanded_dot_avx2.cc cpu/panel_dot_avx2.cc PROPERTIES
  COMPILE_OPTIONS "${avx2_flags};-fno-tree-reassoc;-fno-tree-ter")
set_source_files_properties(cpu/panel_dot_avxvnni.cc PROPERTIES
  COMPILE_OPTIONS "${avx2_flags};-mavxvnni")
# GCC 12 warns about its own AVX-512 headers (bug 105593).
set_source_files_properties(cpu/float_dot_avx512.cc cpu/panel_dot_avx512.cc PROPERTIES
  COMPILE_OPTIONS
  "${avx2_flags};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512vbmi;-mavx512vnni;-Wno-uninitialized;-Wno-maybe-uninitialized")
