#include "coordinator/http/anthropic_input.h"

#include <fmt/format.h>
#include <string>
#include <utility>

#include "base/error_info.h"
#include "base/status.h"
#include "coordinator/request_limits.h"

namespace switchyard::coordinator::http {
namespace {

absl::Status Unsupported(const std::string& field, std::string_view what) {
  return WithField(Unimplemented("{} is not supported: {}", field, what), field);
}

void AppendLine(std::string& text, std::string_view line) {
  if (!text.empty()) text += '\n';
  text += line;
}

// A string, or a list of text blocks, as one text.
std::string ReadText(JsonFields& fields, const std::string& path, const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  if (!content.is_array()) {
    fields.Fail(
        WithField(InvalidArgument("{} must be a string or a list of text blocks", path), path));
    return text;
  }
  for (size_t i = 0; i < content.size(); ++i) {
    JsonFields block(content[i], fmt::format("{}[{}]", path, i));
    const std::string type = block.String("type").value_or("");
    if (block.ok() && type != "text") block.Fail(Unsupported(path, "a block of type " + type));
    AppendLine(text, block.String("text").value_or(""));
    fields.Fail(block.status());
    if (!fields.ok()) break;
  }
  return text;
}

// Blocks of one message become one or more messages: results of tools are messages of their own.
class MessageReader {
 public:
  MessageReader(JsonFields& fields, Json& out) : fields_(fields), out_(out) {}

  void Read(const Json& message, const std::string& path) {
    JsonFields fields(message, path);
    const std::string role = fields.String("role").value_or("");
    if (role != "user" && role != "assistant" && role != "system") {
      fields.FailType("role", R"("user" or "assistant")");
    }
    const Json* const content = fields.Find("content");
    if (content == nullptr) fields.FailType("content", "a string or a list of blocks");
    fields_.Fail(fields.status());
    if (!fields_.ok()) return;
    if (content->is_string()) {
      out_.push_back({{"role", role}, {"content", *content}});
      return;
    }
    if (!content->is_array()) {
      fields.FailType("content", "a string or a list of blocks");
      fields_.Fail(fields.status());
      return;
    }
    message_ = {{"role", role}, {"content", ""}};
    for (size_t i = 0; i < content->size() && fields_.ok(); ++i) {
      ReadBlock((*content)[i], fmt::format("{}.content[{}]", path, i), role);
    }
    Flush(/*is_last=*/true);
  }

 private:
  void ReadBlock(const Json& json, const std::string& path, const std::string& role) {
    JsonFields block(json, path);
    const std::string type = block.String("type").value_or("");
    if (type == "text") {
      AppendLine(message_["content"].get_ref<std::string&>(), block.String("text").value_or(""));
      has_content_ = true;
    } else if (type == "thinking" && role == "assistant") {
      std::string& text = Member("reasoning_content", "").get_ref<std::string&>();
      AppendLine(text, block.String("thinking").value_or(""));
    } else if (type == "redacted_thinking") {
      // Cannot be read, so it cannot be shown to the model either.
    } else if (type == "tool_use" && role == "assistant") {
      ReadToolUse(block);
    } else if (type == "tool_result" && role == "user") {
      ReadToolResult(block, path);
    } else if (block.ok()) {
      block.Fail(Unsupported(path, fmt::format("a block of type {} from the {}", type, role)));
    }
    fields_.Fail(block.status());
  }

  void ReadToolUse(JsonFields& block) {
    const Json* const input = block.Object("input");
    const std::string name = block.String("name").value_or("");
    if (name.empty()) block.FailType("name", "a name");
    Member("tool_calls", Json::array())
        .push_back(
            {{"id", block.String("id").value_or("")},
             {"type", "function"},
             {"function", {{"name", name}, {"arguments", input ? *input : Json::object()}}}});
    has_content_ = true;
  }

  void ReadToolResult(JsonFields& block, const std::string& path) {
    Flush(/*is_last=*/false);
    const Json* const content = block.Find("content");
    const std::string text =
        content == nullptr ? "" : ReadText(fields_, path + ".content", *content);
    out_.push_back({{"role", "tool"},
                    {"tool_call_id", block.String("tool_use_id").value_or("")},
                    {"content", text}});
    has_result_ = true;
  }

  // Ends the message that text goes to. One without content is left out where results were.
  void Flush(bool is_last) {
    if (has_content_ || (is_last && !has_result_)) out_.push_back(message_);
    message_["content"] = "";
    has_content_ = false;
  }

  Json& Member(const char* name, Json initial) {
    Json& member = message_[name];
    if (member.is_null()) member = std::move(initial);
    return member;
  }

  JsonFields& fields_;
  Json& out_;
  Json message_;
  bool has_content_ = false;
  bool has_result_ = false;
};

Json ReadMessages(JsonFields& fields) {
  Json out = Json::array();
  if (const Json* const system = fields.Find("system")) {
    std::string text = ReadText(fields, "system", *system);
    if (!text.empty()) out.push_back({{"role", "system"}, {"content", std::move(text)}});
  }
  const Json* const messages = fields.Array("messages");
  if (messages == nullptr || messages->empty()) {
    fields.FailType("messages", "a list of at least one");
    return out;
  }
  if (messages->size() > kMaxMessages) {
    fields.FailType("messages", fmt::format("a list of at most {}", kMaxMessages));
    return out;
  }
  for (size_t i = 0; i < messages->size() && fields.ok(); ++i) {
    MessageReader(fields, out).Read((*messages)[i], fmt::format("messages[{}]", i));
  }
  if (fields.ok() && !out.empty() && out.back()["role"] == "assistant") {
    fields.Fail(Unsupported("messages", "the last one is the assistant's"));
  }
  return out;
}

// {"name", "description", "input_schema"} -> the form that templates know.
Json ReadTools(JsonFields& fields, const Json& tools) {
  Json out = Json::array();
  if (tools.size() > kMaxTools) fields.FailType("tools", fmt::format("of at most {}", kMaxTools));
  for (size_t i = 0; i < tools.size() && fields.ok(); ++i) {
    JsonFields tool(tools[i], fmt::format("tools[{}]", i));
    const std::string type = tool.String("type").value_or("custom");
    if (tool.ok() && type != "custom") tool.Fail(Unsupported(tool.Path("type"), type));
    Json function = {{"name", tool.String("name").value_or("")}};
    if (function["name"].get_ref<const std::string&>().empty()) tool.FailType("name", "a name");
    if (const auto description = tool.String("description")) {
      function["description"] = *description;
    }
    const Json* const schema = tool.Object("input_schema");
    function["parameters"] = schema ? *schema : Json{{"type", "object"}};
    fields.Fail(tool.status());
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

bool ReadToolChoice(JsonFields& fields) {
  const Json* const choice = fields.Object("tool_choice");
  if (choice == nullptr) return true;
  JsonFields inner(*choice, "tool_choice");
  const std::string type = inner.String("type").value_or("");
  if (type == "any" || type == "tool") {
    inner.Fail(Unsupported("tool_choice", "a call cannot be forced"));
  } else if (type != "auto" && type != "none") {
    inner.FailType("type", R"("auto" or "none")");
  }
  fields.Fail(inner.status());
  return type != "none";
}

}  // namespace

Json AnthropicContext(JsonFields& fields, const ServedModel& model) {
  Json context = {{"messages", ReadMessages(fields)}};
  const bool are_tools_shown = ReadToolChoice(fields);
  if (const Json* const tools = fields.Array("tools"); tools != nullptr && !tools->empty()) {
    if (!model.chat_template.Reads("tools")) {
      fields.Fail(Unsupported("tools", "the model's chat template does not know them"));
    }
    Json converted = ReadTools(fields, *tools);
    if (are_tools_shown) context["tools"] = std::move(converted);
  }
  bool thinks = false;
  if (const Json* const thinking = fields.Object("thinking")) {
    JsonFields inner(*thinking, "thinking");
    const std::string type = inner.String("type").value_or("");
    if (type != "enabled" && type != "adaptive" && type != "disabled") {
      inner.FailType("type", R"("enabled", "adaptive" or "disabled")");
    }
    fields.Fail(inner.status());
    thinks = type != "disabled";
  }
  context["enable_thinking"] = thinks;
  return context;
}

}  // namespace switchyard::coordinator::http
