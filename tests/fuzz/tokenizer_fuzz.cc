// Fuzz target: tokenizers made from any vocabulary, and any text through them.
//
// Input: the part before the first byte 0xFE is a list of merges and special tokens, one a line ("a
// b" is a merge; "3<x>" a token of type 3); the rest is text. Checked: nothing crashes, ids are in
// the vocabulary, their bytes are the text again, and what is decoded piece by piece is valid
// UTF-8.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "model/byte_alphabet.h"
#include "model/detokenizer.h"
#include "model/tokenizer.h"
#include "model/utf8.h"

namespace switchyard::model {
namespace {

TokenizerData BaseData(bool qwen2) {
  TokenizerData data;
  data.pre_tokenizer = qwen2 ? "qwen2" : "qwen35";
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(ByteToAlphabet(static_cast<uint8_t>(byte)));
  }
  data.token_types.assign(256, static_cast<int32_t>(TokenType::kNormal));
  return data;
}

void AddToken(TokenizerData& data, std::string_view text, int32_t type) {
  data.tokens.emplace_back(text);
  data.token_types.push_back(type);
}

void AddLine(TokenizerData& data, std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) {
    if (!line.empty()) AddToken(data, line.substr(1), line[0] - '0');
    return;
  }
  std::string result(line);
  result.erase(space, 1);
  AddToken(data, result, static_cast<int32_t>(TokenType::kNormal));
  data.merges.emplace_back(line);
}

void CheckText(const Tokenizer& tokenizer, std::string_view text, SpecialMatching special) {
  const std::vector<int32_t> token_ids = tokenizer.Encode(text, special);
  std::string bytes;
  Detokenizer detokenizer(tokenizer, {.include_special = true});
  std::string decoded;
  for (const int32_t token_id : token_ids) {
    SWITCHYARD_CHECK(token_id >= 0 && token_id < tokenizer.vocab_size());
    if (special == SpecialMatching::kNone) {
      SWITCHYARD_CHECK(tokenizer.type(token_id) != TokenType::kControl);
    }
    bytes += tokenizer.token_bytes(token_id);
    decoded += detokenizer.Push(token_id);
  }
  decoded += detokenizer.Flush();
  SWITCHYARD_CHECK(bytes == text);
  for (std::string_view rest = decoded; !rest.empty();) {
    const Utf8Unit unit = DecodeUtf8(rest);
    SWITCHYARD_CHECK(unit.status == Utf8Status::kValid);
    rest.remove_prefix(unit.num_bytes);
  }
  // Borders of spans change nothing.
  const size_t middle = text.size() / 2;
  const TextSpan spans[] = {{text.substr(0, middle), special}, {text.substr(middle), special}};
  SWITCHYARD_CHECK(tokenizer.Encode(spans) == token_ids);
}

void RunOneInput(std::string_view input) {
  const size_t separator = input.find('\xFE');
  std::string_view lines = input.substr(0, separator);
  const std::string_view text =
      separator == std::string_view::npos ? input : input.substr(separator + 1);
  TokenizerData data = BaseData(input.size() % 2 == 0);
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    AddLine(data, line);
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
  }
  const absl::StatusOr<Tokenizer> made = Tokenizer::Create(data);
  const Tokenizer tokenizer =
      made.ok() ? *made : Tokenizer::Create(BaseData(input.size() % 2 == 0)).value();
  for (const SpecialMatching special :
       {SpecialMatching::kNone, SpecialMatching::kUserDefined, SpecialMatching::kAll}) {
    CheckText(tokenizer, text, special);
  }
}

}  // namespace
}  // namespace switchyard::model

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  switchyard::model::RunOneInput({reinterpret_cast<const char*>(data), size});
  return 0;
}
