#include "model/answer_format.h"

#include <string_view>

#include "model/json_scanner.h"

namespace switchyard::model {

ToolFormat DetectToolFormat(const ChatTemplate& chat_template) {
  const std::string& source = chat_template.source();
  const auto shows = [&](std::string_view tag) { return source.find(tag) != source.npos; };
  // Both, because "<function=NAME>{...}</function>" with JSON is a form of other families.
  return shows("<function=") && shows("<parameter=") ? ToolFormat::kTags : ToolFormat::kJson;
}

bool OpensReasoning(const RenderedChat& prompt) {
  if (prompt.spans.empty() || !prompt.spans.back().is_template) return false;
  constexpr std::string_view kTag = "<think>";
  const std::string_view tail = TrimJsonSpace(prompt.spans.back().text);
  return tail.size() >= kTag.size() && tail.substr(tail.size() - kTag.size()) == kTag;
}

}  // namespace switchyard::model
