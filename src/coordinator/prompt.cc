#include "coordinator/prompt.h"

#include <utility>

#include "base/status_macros.h"
#include "model/answer_format.h"

namespace switchyard::coordinator {
namespace {

void PutBosInFront(const model::Tokenizer& tokenizer, std::vector<int32_t>& token_ids) {
  if (tokenizer.add_bos()) token_ids.insert(token_ids.begin(), *tokenizer.bos_token_id());
}

// Number of leading tokens that end at or before each byte offset. Both ascend.
std::vector<int64_t> TokenBorders(const model::Tokenizer& tokenizer,
                                  const std::vector<int32_t>& token_ids,
                                  const std::vector<size_t>& byte_offsets) {
  std::vector<int64_t> borders;
  size_t bytes = 0;
  size_t i = 0;
  for (size_t offset : byte_offsets) {
    while (i < token_ids.size() && bytes + tokenizer.token_bytes(token_ids[i]).size() <= offset) {
      bytes += tokenizer.token_bytes(token_ids[i++]).size();
    }
    borders.push_back(static_cast<int64_t>(i));
  }
  return borders;
}

}  // namespace

absl::StatusOr<Prompt> ChatPrompt(const model::Tokenizer& tokenizer,
                                  const model::ChatTemplate& chat_template,
                                  nlohmann::ordered_json context) {
  SWITCHYARD_RETURN_IF_ERROR(model::NormalizeMessages(context["messages"]));
  if (!context.contains("add_generation_prompt")) context["add_generation_prompt"] = true;
  SWITCHYARD_ASSIGN_OR_RETURN(model::RenderedChat chat, chat_template.Render(context));
  std::vector<model::TextSpan> spans;
  for (const auto& span : chat.spans) {
    spans.push_back({span.text, span.is_template ? model::SpecialMatching::kAll
                                                 : model::SpecialMatching::kNone});
  }
  Prompt prompt;
  prompt.token_ids = tokenizer.Encode(spans);
  prompt.message_borders = TokenBorders(tokenizer, prompt.token_ids, chat.message_ends);
  if (tokenizer.add_bos()) {
    PutBosInFront(tokenizer, prompt.token_ids);
    for (int64_t& border : prompt.message_borders) ++border;
  }
  prompt.opens_reasoning = model::OpensReasoning(chat);
  prompt.text = chat.Text();
  prompt.spans = std::move(chat.spans);
  return prompt;
}

Prompt RawPrompt(const model::Tokenizer& tokenizer, std::string_view text) {
  Prompt prompt;
  prompt.token_ids = tokenizer.Encode(text, model::SpecialMatching::kAll);
  PutBosInFront(tokenizer, prompt.token_ids);
  prompt.text = text;
  if (!text.empty()) prompt.spans.push_back({prompt.text, /*is_template=*/true});
  return prompt;
}

}  // namespace switchyard::coordinator
