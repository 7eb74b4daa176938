// Checks and normalises the messages of a request.
#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "base/status_macros.h"
#include "model/chat_template.h"
#include "model/json_scanner.h"

namespace switchyard::model {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxMessages = 4096;

// Checks brackets and members without parsing: what is in strings does not count.
absl::Status CheckSize(std::string_view json) {
  int depth = 0;
  int num_members = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (c == ':') ++num_members;
    if (depth > kMaxArgumentDepth) {
      return InvalidArgument("arguments of a tool call nest too deep, limit: {}",
                             kMaxArgumentDepth);
    }
    if (num_members > kMaxArgumentMembers) {
      return InvalidArgument("arguments of a tool call have too many members, limit: {}",
                             kMaxArgumentMembers);
    }
  }
  return absl::OkStatus();
}

absl::Status NormalizeArguments(Json* function) {
  Json& arguments = (*function)["arguments"];  // null if it was absent
  if (arguments.is_null()) arguments = Json::object();
  if (arguments.is_string()) {
    const auto text = arguments.get<std::string>();
    SWITCHYARD_RETURN_IF_ERROR(CheckSize(text));
    if (IsJson(text)) arguments = Json::parse(text);
    if (!arguments.is_object()) {
      return InvalidArgument("arguments of a tool call are not a JSON object");
    }
  }
  if (!arguments.is_object()) return InvalidArgument("arguments of a tool call are not an object");
  return absl::OkStatus();
}

absl::Status NormalizeToolCall(Json* call) {
  if (!call->is_object()) return InvalidArgument("tool call is not an object");
  const auto nested = call->find("function");
  Json* const function = nested == call->end() ? call : &*nested;
  if (!function->is_object()) return InvalidArgument("function of a tool call is not an object");
  const auto name = function->find("name");
  if (name == function->end() || !name->is_string()) {
    return InvalidArgument("tool call has no function name");
  }
  return NormalizeArguments(function);
}

absl::Status NormalizeContent(Json* message) {
  Json& content = (*message)["content"];  // null if it was absent
  if (content.is_string()) return absl::OkStatus();
  if (content.is_null()) {
    content = "";
    return absl::OkStatus();
  }
  if (!content.is_array())
    return InvalidArgument("content is neither a string nor a list of parts");
  std::string joined;
  bool is_first = true;
  for (const Json& part : content) {
    if (!part.is_object()) return InvalidArgument("content part is not an object");
    const auto type = part.find("type");
    if (type == part.end() || !type->is_string()) {
      return InvalidArgument("content part has no type");
    }
    if (*type != "text") {
      return InvalidArgument("content part is not text, its type: {}", type->get<std::string>());
    }
    const auto text = part.find("text");
    if (text == part.end() || !text->is_string()) {
      return InvalidArgument("content part has no text");
    }
    if (!std::exchange(is_first, false)) joined += '\n';
    joined += text->get_ref<const std::string&>();
  }
  content = std::move(joined);
  return absl::OkStatus();
}

absl::Status NormalizeMessage(Json* message) {
  if (!message->is_object()) return InvalidArgument("message is not an object");
  const auto role = message->find("role");
  if (role == message->end() || !role->is_string()) return InvalidArgument("role is not a string");
  if (role->get_ref<const std::string&>().empty()) return InvalidArgument("role is empty");
  SWITCHYARD_RETURN_IF_ERROR(NormalizeContent(message));
  for (const char* const key : {"reasoning_content", "tool_calls"}) {
    const auto member = message->find(key);
    if (member != message->end() && member->is_null()) message->erase(member);
  }
  const auto reasoning = message->find("reasoning_content");
  if (reasoning != message->end() && !reasoning->is_string()) {
    return InvalidArgument("reasoning_content is not a string");
  }
  const auto calls = message->find("tool_calls");
  if (calls == message->end()) return absl::OkStatus();
  if (!calls->is_array()) return InvalidArgument("tool_calls is not a list");
  for (Json& call : *calls) SWITCHYARD_RETURN_IF_ERROR(NormalizeToolCall(&call));
  return absl::OkStatus();
}

}  // namespace

absl::Status NormalizeMessages(Json& messages) {
  if (!messages.is_array()) return InvalidArgument("messages is not a list");
  if (messages.empty()) return InvalidArgument("messages is empty");
  if (messages.size() > kMaxMessages) {
    return InvalidArgument("too many messages, limit: {}, got: {}", kMaxMessages, messages.size());
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    SWITCHYARD_RETURN_IF_ERROR(
        WithContext(NormalizeMessage(&messages[i]), fmt::format("messages[{}]", i)));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::model
