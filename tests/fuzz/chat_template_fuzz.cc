// Fuzz target: any template on any messages.
//
// Input: a template, then, after the first byte 0xFE, texts with that byte between them: contents
// of messages. Checked: nothing crashes or runs on, spans are well formed, messages end in order,
// and text of users is never taken for text of the template.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/check.h"
#include "model/chat_template.h"

namespace switchyard::model {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kSeparator = '\xFE';
constexpr std::string_view kMark = "\xEE\x80\x80";  // U+E000, in every text of a user

Json MakeContext(std::string_view texts) {
  Json messages = Json::array();
  const char* const roles[] = {"system", "user", "assistant", "tool"};
  while (true) {
    const size_t end = texts.find(kSeparator);
    const std::string text = std::string(kMark) + std::string(texts.substr(0, end));
    messages.push_back({{"role", roles[messages.size() % 4]}, {"content", text}});
    if (messages.size() % 4 == 3) {
      messages.back()["tool_calls"] =
          Json::array({{{"function", {{"name", "f"}, {"arguments", {{"k", text}, {"n", 1.5}}}}}}});
    }
    if (end == std::string_view::npos) break;
    texts.remove_prefix(end + 1);
  }
  return {{"messages", std::move(messages)},
          {"tools", Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}})},
          {"add_generation_prompt", true},
          {"s", std::string(kMark) + " text"},
          {"l", {3, 1, 2}},
          {"d", {{"z", 1}, {"a", {{"b", nullptr}}}}},
          {"i", 7}};
}

void Check(const RenderedChat& rendered, bool may_write_mark) {
  const RenderedChat::Span* previous = nullptr;
  for (const RenderedChat::Span& span : rendered.spans) {
    SWITCHYARD_CHECK(!span.text.empty());
    SWITCHYARD_CHECK(previous == nullptr || previous->is_template != span.is_template);
    SWITCHYARD_CHECK(may_write_mark || !span.is_template ||
                     span.text.find(kMark) == std::string::npos);
    previous = &span;
  }
  const size_t size = rendered.Text().size();
  SWITCHYARD_CHECK(size <= (16 << 20));
  size_t last = 0;
  for (const size_t end : rendered.message_ends) {
    SWITCHYARD_CHECK(last <= end && end <= size);
    last = end;
  }
}

void RunOneInput(std::string_view input) {
  const size_t separator = input.find(kSeparator);
  const std::string_view source = input.substr(0, separator);
  const absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::Parse(source);
  if (!chat_template.ok()) return;
  const Json context = MakeContext(
      separator == std::string_view::npos ? std::string_view() : input.substr(separator + 1));
  ChatTemplate::RenderOptions options;
  options.now = 0;
  const absl::StatusOr<RenderedChat> rendered = chat_template->Render(context, options);
  if (!rendered.ok()) return;
  SWITCHYARD_CHECK(rendered->message_ends.size() == context["messages"].size());
  // The template may hold the mark itself, or write it by an escape.
  Check(*rendered, source.find_first_of("\xEE\\") != std::string_view::npos);
}

}  // namespace
}  // namespace switchyard::model

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  switchyard::model::RunOneInput({reinterpret_cast<const char*>(data), size});
  return 0;
}
