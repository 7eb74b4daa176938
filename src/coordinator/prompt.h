// From text or messages to the token ids of a prompt.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "model/chat_template.h"
#include "model/tokenizer.h"

namespace switchyard::coordinator {

struct Prompt {
  using Span = model::RenderedChat::Span;

  std::vector<int32_t> token_ids;
  // Where messages end, in tokens; without the generation prompt.
  std::vector<int64_t> message_borders;
  std::string text;         // what was encoded
  std::vector<Span> spans;  // of `text`: what the template wrote and what came with the messages
  bool opens_reasoning = false;  // the answer begins inside the reasoning
};

// Renders context["messages"] with whatever else `context` holds for the template: tools,
// enable_thinking. `add_generation_prompt` is true unless the context says otherwise. Text of the
// messages never becomes a control token.
//
// Errors: kInvalidArgument for messages that are malformed or that the template refuses.
absl::StatusOr<Prompt> ChatPrompt(const model::Tokenizer& tokenizer,
                                  const model::ChatTemplate& chat_template,
                                  nlohmann::ordered_json context);

// Takes `text` as it is; control tokens written in it are recognised: it is the user's own.
Prompt RawPrompt(const model::Tokenizer& tokenizer, std::string_view text);

}  // namespace switchyard::coordinator
