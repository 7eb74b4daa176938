// The metadata of a synthetic model.
#pragma once

#include "app/synth/gguf_encoder.h"
#include "app/synth/synth_options.h"
#include "app/synth/type_rules.h"

namespace switchyard::app {

// Adds all keys of the architecture and of the tokenizer.
// REQUIRES: CheckSynthOptions(options) is OK.
void AddSynthMetadata(const SynthOptions& options, const TypeRules& types, GgufEncoder& encoder);

}  // namespace switchyard::app
