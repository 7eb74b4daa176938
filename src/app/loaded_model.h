// A model file with everything that can be known of it without its weights.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "model/chat_template.h"
#include "model/gguf_file.h"
#include "model/model_spec.h"
#include "model/tokenizer.h"

namespace switchyard::app {

struct LoadedModel {
  model::GgufFile file;
  model::ModelSpec spec;  // points into `file`
  model::Tokenizer tokenizer;
  model::ChatTemplate chat_template;  // of the file, or the built-in one with a warning in the log
};

// Opens the model at `path`.
// Errors: those of the readers, with the exit code of a rejected model.
absl::StatusOr<std::unique_ptr<LoadedModel>> OpenModel(const std::string& path);

}  // namespace switchyard::app
