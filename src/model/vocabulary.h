// Tokens by id: their bytes and their types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "model/bpe.h"
#include "model/tokenizer_data.h"

namespace switchyard::model {

// Values as in `tokenizer.ggml.token_type`.
enum class TokenType : uint8_t {
  kNormal = 1,       // bytes of text
  kUnknown = 2,      // stands for text without a token; treated like kControl
  kControl = 3,      // structure: end of text, begin of a message; no text of its own
  kUserDefined = 4,  // literal text that is always one token, such as <think>
  kUnused = 5,       // a row without meaning; must never be sampled
  kByte = 6,         // one byte, written <0x0A>
};

// Threads: immutable, any thread.
class Vocabulary {
 public:
  Vocabulary() = default;  // no tokens

  // Errors: DATA_LOSS, see Tokenizer::Create().
  static absl::StatusOr<Vocabulary> Create(const TokenizerData& data);

  int size() const { return static_cast<int>(types_.size()); }

  // REQUIRES (both): 0 <= token_id < size().
  TokenType type(int32_t token_id) const { return types_[static_cast<size_t>(token_id)]; }
  // What the token stands for: of a normal or unused token its text decoded from the byte alphabet,
  // of a byte token its byte, of any other token its text as it is (also of a normal token whose
  // text does not fit the alphabet: no input encodes to it).
  std::string_view bytes(int32_t token_id) const {
    const auto id = static_cast<size_t>(token_id);
    return std::string_view(bytes_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
  }

 private:
  std::vector<TokenType> types_;
  std::string bytes_;                  // of all tokens, one after the other
  std::vector<size_t> offsets_ = {0};  // [size() + 1] into bytes_
};

// Makes the encoder of a vocabulary that Vocabulary::Create() has accepted.
//
// Errors: DATA_LOSS, see Tokenizer::Create().
absl::StatusOr<BpeEncoder> MakeBpeEncoder(const TokenizerData& data);

}  // namespace switchyard::model
