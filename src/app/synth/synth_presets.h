// Named sizes of synthetic models, for each architecture.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "app/synth/synth_options.h"

namespace switchyard::app {

// "qwen4exp" and its relatives, in the order of their age, newest first.
const std::vector<std::string>& SynthArchitectureNames();

// All names that an architecture has a preset for: "tiny", "bench", "flash-next".
const std::vector<std::string>& SynthPresetNames();

// Returns the preset of an architecture.
// Errors: kInvalidArgument, with the known names, for names that are not known or do not go
//         together.
//
//   tiny        every part of the architecture, for tests
//   bench       the widths of a released model with few layers and experts: about as many bytes
//               read per token and layer as there
//     qwen4exp    8 layers, 32 experts, about 1.4 GB
//     qwen35moe   35B-A3B: 8 layers, 32 experts
//     qwen3next   80B-A3B: 8 layers, 32 experts
//     qwen3moe    30B-A3B: 12 layers, 128 experts
//   flash-next  qwen4exp only: the released model's shapes and types in full, as a sparse file
absl::StatusOr<SynthOptions> SynthPreset(std::string_view preset,
                                         std::string_view architecture = "qwen4exp");

}  // namespace switchyard::app
