#include "model/chat_template.h"

#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "model/template/interpreter.h"
#include "model/template/parser.h"

namespace switchyard::model {
namespace {

// Tools are offered and called in the form that most ChatML models know: one JSON object a line,
// calls as JSON in <tool_call> tags, results of consecutive calls in one user turn.
constexpr std::string_view kBuiltInSource = R"jinja(
{%- set ns = namespace(system='') -%}
{%- for message in messages if message.role in ['system', 'developer'] -%}
{%- set ns.system = (ns.system + '\n' + message.content) | trim -%}
{%- endfor -%}
{%- if tools -%}
{{- '<|im_start|>system\n' + (ns.system + '\n\n' if ns.system else '') -}}
{{- '# Tools\n\nYou may call these functions:\n<tools>' -}}
{%- for tool in tools -%}{{- '\n' + (tool | tojson) -}}{%- endfor -%}
{{- '\n</tools>\n\nTo call one, write a JSON object with its name and arguments:\n<tool_call>\n' -}}
{{- '{"name": NAME, "arguments": {...}}\n</tool_call><|im_end|>\n' -}}
{%- elif ns.system -%}
{{- '<|im_start|>system\n' + ns.system + '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{- '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' -}}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' -}}
{{- '<|im_end|>\n' if loop.last or loop.nextitem.role != 'tool' -}}
{%- elif message.role not in ['system', 'developer'] -%}
{{- '<|im_start|>' + message.role + '\n' + message.content -}}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function or call -%}
{{- '\n' if message.content or not loop.first -}}
{{- '<tool_call>\n{"name": ' + (function.name | tojson) -}}
{{- ', "arguments": ' + (function.arguments | tojson) + '}\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- endif -%}
)jinja";

RenderedChat ToRenderedChat(const jinja::Text& text, std::vector<size_t> message_ends) {
  RenderedChat chat;
  size_t begin = 0;
  for (const jinja::Text::Run& run : text.runs()) {
    const bool is_template = run.origin == jinja::kFromTemplate;
    const std::string_view bytes = text.view().substr(begin, run.end - begin);
    if (!chat.spans.empty() && chat.spans.back().is_template == is_template) {
      chat.spans.back().text.append(bytes);
    } else {
      chat.spans.push_back({std::string(bytes), is_template});
    }
    begin = run.end;
  }
  chat.message_ends = std::move(message_ends);
  return chat;
}

}  // namespace

std::string RenderedChat::Text() const {
  std::string text;
  for (const Span& span : spans) text += span.text;
  return text;
}

ChatTemplate::ChatTemplate(std::shared_ptr<const std::string> source,
                           std::shared_ptr<const jinja::Program> program, bool is_builtin)
    : source_(std::move(source)), program_(std::move(program)), is_builtin_(is_builtin) {}

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source) {
  SWITCHYARD_ASSIGN_OR_RETURN(jinja::Program program, jinja::ParseTemplate(source));
  return ChatTemplate(std::make_shared<const std::string>(source),
                      std::make_shared<const jinja::Program>(std::move(program)), false);
}

ChatTemplate ChatTemplate::BuiltInChatMl() {
  absl::StatusOr<ChatTemplate> chat_template = Parse(kBuiltInSource);
  SWITCHYARD_CHECK(chat_template.ok());  // a constant, tested
  chat_template->is_builtin_ = true;
  return *std::move(chat_template);
}

bool ChatTemplate::Reads(std::string_view variable) const {
  return program_->names.contains(ToAbsl(variable));
}

absl::StatusOr<RenderedChat> ChatTemplate::Render(const nlohmann::ordered_json& context,
                                                  const RenderOptions& options) const {
  SWITCHYARD_ASSIGN_OR_RETURN(const jinja::MapPtr variables,
                              jinja::FromContext(context, options.special_tokens));
  const auto messages = context.find("messages");
  const size_t num_messages =
      messages != context.end() && messages->is_array() ? messages->size() : 0;
  jinja::Interpreter interpreter(*program_, variables, options.now.value_or(std::time(nullptr)));
  SWITCHYARD_ASSIGN_OR_RETURN(const jinja::Text text, interpreter.Run());
  return ToRenderedChat(text, interpreter.MessageEnds(text, num_messages));
}

}  // namespace switchyard::model
