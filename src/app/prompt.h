// From text or messages to the token ids of a prompt.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "app/loaded_model.h"

namespace switchyard::app {

struct Prompt {
  std::vector<int32_t> token_ids;
  std::vector<int64_t> message_borders;  // where messages end, in tokens; without the generation
                                         // prompt
};

// Renders `messages` (and whatever else `context` holds for the template: tools, enable_thinking)
// with a generation prompt. Text of the messages never becomes a control token.
// Errors: kInvalidArgument from the template.
absl::StatusOr<Prompt> ChatPrompt(const LoadedModel& model, nlohmann::ordered_json context);

// Takes `text` as it is; control tokens written in it are recognised, it is the user's own.
Prompt RawPrompt(const LoadedModel& model, std::string_view text);

}  // namespace switchyard::app
