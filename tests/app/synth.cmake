# Commands synth and inspect.
foreach(name IN ITEMS
    synth_options_test synth_blocks_test synth_model_test synth_command_test
    synth_router_skew_test inspect_test)
  switchyard_test(${name} ${name}.cc LABELS cpu DEPS switchyard::app switchyard::testing)
endforeach()
