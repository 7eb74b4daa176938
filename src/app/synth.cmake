# Commands synth and inspect.
list(APPEND app_sources
  commands/inspect_command.cc
  commands/synth_command.cc
  inspect/block_check.cc
  inspect/inspect_json.cc
  inspect/inspect_report.cc
  inspect/inspect_text.cc
  inspect/verify.cc
  synth/gguf_encoder.cc
  synth/ple_constants.cc
  synth/random_blocks.cc
  synth/router_skew.cc
  synth/synth_metadata.cc
  synth/synth_options.cc
  synth/synth_presets.cc
  synth/synth_tokenizer.cc
  synth/synthetic_model.cc
  synth/tensor_list.cc
  synth/type_rules.cc)
