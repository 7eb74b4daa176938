foreach(stage IN ITEMS dense mixer ple gated_delta_net attention qsa experts)
  switchyard_test(reference_${stage}_test reference_${stage}_test.cc LABELS cpu
    DEPS switchyard::stage_fixtures)
endforeach()
