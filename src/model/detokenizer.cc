#include "model/detokenizer.h"

#include <string_view>

#include "model/utf8.h"

namespace switchyard::model {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool GivesText(TokenType type, const DetokenizerOptions& options) {
  switch (type) {
    case TokenType::kNormal:
    case TokenType::kUserDefined:
    case TokenType::kByte:
      return true;
    case TokenType::kUnknown:
    case TokenType::kControl:
      return options.include_special;
    case TokenType::kUnused:
      break;
  }
  return false;
}

}  // namespace

std::string Detokenizer::Push(int32_t token_id) {
  if (token_id < 0 || token_id >= tokenizer_.vocab_size()) return {};
  if (!GivesText(tokenizer_.type(token_id), options_)) return {};
  waiting_ += tokenizer_.token_bytes(token_id);
  std::string text;
  std::string_view rest = waiting_;
  while (!rest.empty()) {
    const Utf8Unit unit = DecodeUtf8(rest);
    if (unit.status == Utf8Status::kIncomplete) break;
    text += unit.status == Utf8Status::kValid ? rest.substr(0, unit.num_bytes) : kReplacement;
    rest.remove_prefix(unit.num_bytes);
  }
  waiting_.erase(0, waiting_.size() - rest.size());
  return text;
}

std::string Detokenizer::Flush() {
  if (waiting_.empty()) return {};
  waiting_.clear();
  return std::string(kReplacement);
}

}  // namespace switchyard::model
