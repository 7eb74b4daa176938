// In which form a model answers, as its chat template shows it.
#pragma once

#include "model/chat_template.h"

namespace switchyard::model {

enum class ToolFormat {
  kJson,  // <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen3, Qwen3-Next
  kTags,  // <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>:
          // Qwen3-Coder, Qwen3.5 and later
};

// The form in which the template tells the model to call tools, and repeats its calls. A template
// that shows no form known to us counts as kJson: there only a whole, valid JSON object is a call.
ToolFormat DetectToolFormat(const ChatTemplate& chat_template);

// Whether the prompt ends with an opening <think> that the template wrote, so that the answer
// begins inside the reasoning.
bool OpensReasoning(const RenderedChat& prompt);

}  // namespace switchyard::model
