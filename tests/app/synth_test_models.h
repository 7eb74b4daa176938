// What the tests of synthetic models share.
#pragma once

#include <string>

#include "gtest/gtest.h"

#include "app/synth/synth_options.h"
#include "app/synth/synthetic_model.h"
#include "testing/gguf_writer.h"

namespace switchyard::app {

// Writes a model to a test file of this name and returns the path of the first file.
inline std::string WriteTestModel(const SynthOptions& options, const std::string& name) {
  const absl::StatusOr<SynthResult> result =
      WriteSyntheticModel(options, testing::TestFilePath(name), /*overwrite=*/true, nullptr);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->paths.front() : "";
}

// Sizes at which rows fit blocks of 256 elements wherever they do in the released model.
inline SynthOptions BlockSizedOptions() {
  SynthOptions options;
  options.hidden_size = 256;
  options.head_dim = 64;         // attention output: 256 columns
  options.delta_head_dim = 128;  // delta-net output: 768 columns
  options.expert_hidden_size = 256;
  options.shared_expert_hidden_size = 256;
  options.hc_low_rank = 32;
  return options;
}

}  // namespace switchyard::app
