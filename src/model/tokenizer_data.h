// What a model file says about its tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "model/gguf_metadata.h"

namespace switchyard::model {

// Plain contents of the `tokenizer.*` keys; nothing is checked but the types of the values.
struct TokenizerData {
  std::vector<std::string> tokens;   // by token id; normal tokens in the byte alphabet
  std::vector<int32_t> token_types;  // by token id, values of TokenType; empty: all are normal
  std::vector<std::string> merges;   // "left right" by rank, in the byte alphabet
  std::string pre_tokenizer;         // `tokenizer.ggml.pre`
  std::optional<int64_t> eos_token_id;
  std::optional<int64_t> eot_token_id;  // end of turn, where a file has it besides the former
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> padding_token_id;
  bool add_bos = false;       // a prompt begins with bos_token_id
  std::string chat_template;  // Jinja; empty: the file has none
};

// Reads the `tokenizer.*` keys.
//
// Errors: UNIMPLEMENTED (`tokenizer.ggml.model` is not gpt2), NOT_FOUND (a key is missing),
// INVALID_ARGUMENT (a value or an array element has another type than expected); the message names
// the key.
absl::StatusOr<TokenizerData> ReadTokenizerData(const GgufMetadata& metadata);

}  // namespace switchyard::model
