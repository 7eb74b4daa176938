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
