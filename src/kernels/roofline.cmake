# The limits that kernels are compared with: read bandwidth and byte products.
list(APPEND kernels_headers
  cpu/dot_peak.h
  cpu/read_bandwidth.h)
list(APPEND kernels_sources
  cpu/dot_peak.cc
  cpu/dot_peak_avx2.cc
  cpu/dot_peak_avx512.cc
  cpu/dot_peak_avxvnni.cc
  cpu/read_bandwidth.cc
  cpu/read_bandwidth_avx2.cc
  cpu/read_bandwidth_avx512.cc)

set_source_files_properties(cpu/dot_peak_avx2.cc cpu/read_bandwidth_avx2.cc PROPERTIES
  COMPILE_OPTIONS "-mavx2")
set_source_files_properties(cpu/dot_peak_avxvnni.cc PROPERTIES
  COMPILE_OPTIONS "-mavx2;-mavxvnni")
# GCC 12 warns about its own AVX-512 headers (bug 105593).
set_source_files_properties(cpu/dot_peak_avx512.cc cpu/read_bandwidth_avx512.cc PROPERTIES
  COMPILE_OPTIONS "-mavx512f;-mavx512bw;-mavx512vnni;-Wno-uninitialized;-Wno-maybe-uninitialized")
