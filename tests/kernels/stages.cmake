# The cpu backend. What runs on several threads is for the thread sanitizer too.
foreach(stage IN ITEMS attention backend experts gated_delta_net mixer qsa)
  switchyard_test(cpu_${stage}_test cpu_${stage}_test.cc LABELS cpu threads
    DEPS switchyard::stage_fixtures)
endforeach()
switchyard_test(cpu_stage_kernels_test cpu_stage_kernels_test.cc LABELS cpu
  DEPS switchyard::stage_fixtures)
switchyard_test(expert_tiers_test expert_tiers_test.cc LABELS cpu threads
  DEPS switchyard::stage_fixtures)
