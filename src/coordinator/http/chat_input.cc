#include "coordinator/http/chat_input.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/error_info.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "coordinator/request_limits.h"
#include "model/answer_format.h"

namespace switchyard::coordinator::http {
namespace {

absl::Status Unsupported(std::string_view field, std::string_view what) {
  return WithField(Unimplemented("{} is not supported: {}", field, what), field);
}

// Parts that are no text are a feature that is missing, not a mistake of the client.
void CheckParts(JsonFields& fields, const Json& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object()) continue;  // NormalizeMessages() says so
    const auto content = messages[i].find("content");
    if (content == messages[i].end() || !content->is_array()) continue;
    for (const Json& part : *content) {
      if (!part.is_object()) continue;
      const auto type = part.find("type");
      if (type == part.end() || !type->is_string() || *type == "text") continue;
      fields.Fail(Unsupported(fmt::format("messages[{}].content", i),
                              "a part of type " + type->get<std::string>()));
      return;
    }
  }
}

void CheckTools(JsonFields& fields, const Json& tools) {
  if (tools.size() > kMaxTools) {
    fields.FailType("tools", fmt::format("a list of at most {}", kMaxTools));
    return;
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    JsonFields tool(tools[i], path);
    const auto type = tool.String("type");
    if (tool.ok() && type.value_or("function") != "function") {
      tool.Fail(Unsupported(path + ".type", *type));
    }
    if (const Json* const function = tool.Object("function")) {
      JsonFields inner(*function, path + ".function");
      if (inner.String("name").value_or("").empty()) inner.FailType("name", "a name");
      inner.Object("parameters");
      tool.Fail(inner.status());
    } else {
      tool.FailType("function", "an object");
    }
    if (!tool.ok()) {
      fields.Fail(tool.status());
      return;
    }
  }
}

// Returns whether the tools are to be shown to the model.
bool ReadToolChoice(JsonFields& fields) {
  const Json* const choice = fields.Find("tool_choice");
  if (choice == nullptr) return true;
  if (choice->is_object() || *choice == "required") {
    fields.Fail(Unsupported("tool_choice", "a call cannot be forced"));
  } else if (*choice != "auto" && *choice != "none") {
    fields.FailType("tool_choice", R"("none" or "auto")");
  }
  return *choice != "none";
}

void ReadTools(JsonFields& fields, const ServedModel& model, Json& context) {
  const bool are_shown = ReadToolChoice(fields);
  const Json* const tools = fields.Array("tools");
  if (tools == nullptr || tools->empty()) return;
  if (!model.chat_template.Reads("tools")) {
    fields.Fail(Unsupported("tools", "the model's chat template does not know them"));
    return;
  }
  CheckTools(fields, *tools);
  if (are_shown) context["tools"] = *tools;
}

void ReadThinking(JsonFields& fields, Json& context) {
  if (const auto effort = fields.String("reasoning_effort")) {
    static constexpr std::array kEfforts = {"none", "minimal", "low", "medium", "high", "xhigh"};
    if (std::ranges::find(kEfforts, *effort) == kEfforts.end()) {
      fields.FailType("reasoning_effort", "none, minimal, low, medium, high or xhigh");
    }
    context["reasoning_effort"] = *effort;
    context["enable_thinking"] = *effort != "none";
  }
  if (const auto enabled = fields.Bool("enable_thinking")) context["enable_thinking"] = *enabled;
  if (const Json* const arguments = fields.Object("chat_template_kwargs")) {
    JsonFields(*arguments, "chat_template_kwargs");
    for (const auto& [key, value] : arguments->items()) {
      if (key == "messages" || key == "tools") continue;
      if (key == "enable_thinking" && !value.is_boolean()) {
        fields.FailType("chat_template_kwargs.enable_thinking", "true or false");
      }
      context[key] = value;
    }
  }
  if (const auto prompt = fields.Bool("add_generation_prompt")) {
    context["add_generation_prompt"] = *prompt;
  }
}

}  // namespace

Json ChatContext(JsonFields& fields, const ServedModel& model) {
  Json context = Json::object();
  const Json* const messages = fields.Array("messages");
  if (messages == nullptr) {
    fields.FailType("messages", "a list");
    return context;
  }
  CheckParts(fields, *messages);
  if (!fields.ok()) return context;
  context["messages"] = *messages;
  ReadTools(fields, model, context);
  ReadThinking(fields, context);
  return context;
}

absl::StatusOr<ChatInput> MakeChatInput(const ServedModel& model, Json context) {
  ChatInput input;
  if (const auto tools = context.find("tools"); tools != context.end()) {
    input.answer.tools = *tools;
    input.answer.tool_format = model::DetectToolFormat(model.chat_template);
  }
  auto prompt = ChatPrompt(model.tokenizer, model.chat_template, std::move(context));
  if (!prompt.ok()) {
    // Also where the template ran into a limit: it is this conversation that cannot be taken.
    return WithField(InvalidArgument("{}", Message(prompt.status())), "messages");
  }
  input.prompt = *std::move(prompt);
  input.answer.starts_in_reasoning =
      model::OpensReasoning(model::RenderedChat{.spans = input.prompt.spans, .message_ends = {}});
  return input;
}

}  // namespace switchyard::coordinator::http
