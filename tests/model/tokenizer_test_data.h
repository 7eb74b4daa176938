// Vocabularies for tests of the tokenizer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "model/byte_alphabet.h"
#include "model/tokenizer.h"

namespace switchyard::model {

// The 256 byte tokens (id = byte), then one token for the result of each merge that is not there
// yet, in order. A merge is written in the byte alphabet.
inline TokenizerData ByteTokenizerData(const std::vector<std::string>& merges = {}) {
  TokenizerData data;
  data.pre_tokenizer = "qwen35";
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(ByteToAlphabet(static_cast<uint8_t>(byte)));
  }
  for (const std::string& merge : merges) {
    std::string result = merge;
    result.erase(result.find(' '), 1);
    if (std::find(data.tokens.begin(), data.tokens.end(), result) == data.tokens.end()) {
      data.tokens.push_back(result);
    }
  }
  data.merges = merges;
  data.token_types.assign(data.tokens.size(), static_cast<int32_t>(TokenType::kNormal));
  return data;
}

// Appends a token and returns its id.
inline int32_t AddToken(TokenizerData& data, std::string text, TokenType type) {
  data.tokens.push_back(std::move(text));
  data.token_types.push_back(static_cast<int32_t>(type));
  return static_cast<int32_t>(data.tokens.size()) - 1;
}

// The demo model's tokenizer from its Hugging Face form; all its added tokens are control tokens
// there, but for the unused ones.
inline TokenizerData DemoTokenizerData() {
  std::ifstream file(SWITCHYARD_TEST_DATA "/demo/tokenizer.json");
  const nlohmann::json json = nlohmann::json::parse(file);
  TokenizerData data;
  data.pre_tokenizer = "qwen35";
  const auto set_token = [&data](size_t id, const std::string& text, TokenType type) {
    if (data.tokens.size() <= id) {
      data.tokens.resize(id + 1);
      data.token_types.resize(id + 1);
    }
    data.tokens[id] = text;
    data.token_types[id] = static_cast<int32_t>(type);
  };
  for (const auto& [text, id] : json.at("model").at("vocab").items()) {
    set_token(id.get<size_t>(), text, TokenType::kNormal);
  }
  for (const auto& token : json.at("added_tokens")) {
    const auto text = token.at("content").get<std::string>();
    const bool unused = text.rfind("<|unused_", 0) == 0;
    set_token(token.at("id").get<size_t>(), text,
              unused ? TokenType::kUnused : TokenType::kControl);
  }
  for (const auto& merge : json.at("model").at("merges")) {
    data.merges.push_back(merge.is_string() ? merge.get<std::string>()
                                            : merge.at(0).get<std::string>() + " " +
                                                  merge.at(1).get<std::string>());
  }
  return data;
}

// REQUIRES: the data is valid.
inline Tokenizer MakeTokenizer(const TokenizerData& data) {
  absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Create(data);
  if (!tokenizer.ok()) ADD_FAILURE() << tokenizer.status();
  return std::move(tokenizer).value();
}

}  // namespace switchyard::model
