// The model as services show it to clients.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "model/chat_template.h"
#include "model/model_spec.h"
#include "model/tokenizer.h"

namespace switchyard::coordinator {

// How the model is divided over workers.
struct ServedPlan {
  std::string mode;  // "single", "layer_split", ...
  std::string id;    // the same for the same division
};

// Plain references: whoever makes it keeps what they lead to alive.
struct ServedModel {
  std::string name;  // in requests: the file's stem unless --model-name says another
  int64_t created_unix_seconds = 0;  // when the server began to serve it
  const model::ModelSpec& spec;
  const model::Tokenizer& tokenizer;
  const model::ChatTemplate& chat_template;
  int64_t max_context = 0;  // tokens of prompt and answer together, on this server
  int64_t file_bytes = 0;   // of all parts
  std::string digest;       // of the file's header and size, hexadecimal
  std::string path_name;    // file name without its folders
  std::string mode = "single";
  std::string plan_id{};
  // The division at this moment, where it can be another one; called from any thread.
  std::function<ServedPlan()> present_plan{};

  ServedPlan plan() const { return present_plan ? present_plan() : ServedPlan{mode, plan_id}; }
};

}  // namespace switchyard::coordinator
