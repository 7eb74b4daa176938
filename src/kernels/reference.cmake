# The reference backend, and what the backends share.
list(APPEND kernels_headers
  backend.h kv_layout.h ledger_slot.h rope.h shard_segments.h stage_fault.h stage_types.h
  reference/reference_backend.h)
list(APPEND kernels_sources
  reference/attention.cc
  reference/experts.cc
  reference/gated_delta_net.cc
  reference/matmul.cc
  reference/mixer.cc
  reference/ple.cc
  reference/qsa.cc
  reference/reference_backend.cc
  reference/router.cc
  reference/weight.cc)
