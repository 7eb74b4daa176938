// Messages as Anthropic's API has them -> variables of a chat template.
#pragma once

#include "coordinator/http/json_fields.h"
#include "coordinator/served_model.h"

namespace switchyard::coordinator::http {

// Reads system, messages, tools, tool_choice and thinking. Thinking is off unless asked for, where
// the template can switch it.
//
// Errors (in `fields`): kInvalidArgument; kUnimplemented for content that is not text, for tools
// that are not the client's own or that the template does not know, for forced calls, and for an
// answer that the client has begun.
Json AnthropicContext(JsonFields& fields, const ServedModel& model);

}  // namespace switchyard::coordinator::http
