// A conversation as HTTP clients send it -> a prompt, and how the answer to it is to be read.
#pragma once

#include "absl/status/statusor.h"

#include "coordinator/http/json_fields.h"
#include "coordinator/prompt.h"
#include "coordinator/served_model.h"
#include "model/answer_parser.h"

namespace switchyard::coordinator::http {

struct ChatInput {
  Prompt prompt;
  model::AnswerParserOptions answer;
};

// Variables of the template out of an OpenAI request: messages, tools (none with tool_choice
// "none"), chat_template_kwargs, enable_thinking, reasoning_effort. Members of
// chat_template_kwargs do not replace messages or tools.
//
// Errors (in `fields`): kInvalidArgument; kUnimplemented for content that is not text, and for
// tools where the template does not know any, or where a call is to be forced.
Json ChatContext(JsonFields& fields, const ServedModel& model);

// Renders and encodes. Takes long for long texts.
// Errors: kInvalidArgument for what the template refuses.
absl::StatusOr<ChatInput> MakeChatInput(const ServedModel& model, Json context);

}  // namespace switchyard::coordinator::http
