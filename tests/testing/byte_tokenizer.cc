#include "testing/byte_tokenizer.h"

#include <string>
#include <utility>

#include "base/check.h"

namespace switchyard::testing {
namespace {

std::string Utf8(int code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | (code_point >> 6)),
          static_cast<char>(0x80 | (code_point & 0x3F))};
}

bool IsPrintable(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

}  // namespace

model::Tokenizer ByteTokenizer() {
  model::TokenizerData data;
  // Printable bytes stand for themselves; the others follow from U+0100 on.
  for (int byte = 0; byte < 256; ++byte) {
    if (IsPrintable(byte)) data.tokens.push_back(Utf8(byte));
  }
  for (int byte = 0, next = 256; byte < 256; ++byte) {
    if (!IsPrintable(byte)) data.tokens.push_back(Utf8(next++));
  }
  data.token_types.assign(256, 1);
  for (const char* text : {"<|endoftext|>", "<|im_end|>"}) {
    data.tokens.push_back(text);
    data.token_types.push_back(3);
  }
  data.pre_tokenizer = "qwen35";
  data.eos_token_id = 257;
  auto tokenizer = model::Tokenizer::Create(std::move(data));
  SWITCHYARD_CHECK(tokenizer.ok());
  return std::move(*tokenizer);
}

}  // namespace switchyard::testing
