// Text to token ids and back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "model/bpe.h"
#include "model/pre_tokenizer.h"
#include "model/special_token_matcher.h"
#include "model/tokenizer_data.h"
#include "model/vocabulary.h"

namespace switchyard::model {

// Which literal texts of special tokens become those tokens.
enum class SpecialMatching : uint8_t {
  kNone,         // none: text that is not trusted, such as the messages of a chat
  kUserDefined,  // user-defined ones: plain text outside a chat (llama.cpp's parse_special = false)
  kAll,          // control tokens as well: the text of a chat template, raw prompts of the owner
};

// A stretch of text and how far it is trusted. A special token is matched only if all its bytes are
// in text that allows it; adjacent spans with the same matching count as one. In all else, borders
// of spans mean nothing: words and merges go across them as if the text had come in one.
struct TextSpan {
  std::string_view text;
  SpecialMatching special = SpecialMatching::kNone;
};

// A byte-level BPE tokenizer.
//
// Threads: immutable, so any thread at any time.
class Tokenizer {
 public:
  // Checks everything that encoding and decoding rely on. Of several tokens with the same text, the
  // one with the lowest id that is not unused stands for it.
  //
  // Errors: UNIMPLEMENTED (unknown pre-tokenizer; the message names the known ones), DATA_LOSS (no
  // tokens, another number of types than tokens, unknown type, token longer than 1 MiB, byte token
  // that is not <0x00> to <0xFF>, a byte without a token, merge that is not two tokens with a token
  // as result, all of them for text, special id outside the vocabulary, add_bos without such an
  // id).
  static absl::StatusOr<Tokenizer> Create(const TokenizerData& data);

  // Encodes spans that follow each other. Adds no token of its own (see add_bos()).
  //
  // Time n log n at most in the total length, also for a text that is one long word.
  std::vector<int32_t> Encode(absl::Span<const TextSpan> spans) const;
  std::vector<int32_t> Encode(std::string_view text, SpecialMatching special) const;

  // The text of `token_ids` as a Detokenizer with `include_special` gives it: valid UTF-8, U+FFFD
  // for what is none.
  std::string Decode(absl::Span<const int32_t> token_ids, bool include_special) const;

  // Number of tokens. The model may have more rows: those from vocab_size() on must never be
  // sampled.
  int vocab_size() const { return vocabulary_.size(); }

  // REQUIRES (both): 0 <= token_id < vocab_size().
  TokenType type(int32_t token_id) const { return vocabulary_.type(token_id); }
  // The bytes that the token stands for, not always whole UTF-8 characters. For control tokens the
  // literal text, such as <|im_end|>. Lives as long as the tokenizer.
  std::string_view token_bytes(int32_t token_id) const { return vocabulary_.bytes(token_id); }

  // Looks up the literal text of a control, unknown or user-defined token.
  std::optional<int32_t> FindSpecialToken(std::string_view text) const;

  // Ids that end a generation, ascending: eos and end of turn of the file, and <|im_end|> and
  // <|endoftext|> if they are control tokens.
  const std::vector<int32_t>& end_of_generation_ids() const { return end_of_generation_ids_; }
  bool is_end_of_generation(int32_t token_id) const;

  // Ids below vocab_size() that must never be sampled, ascending: the unused ones. (The padding id
  // is not among them: files name an end token or a harmless one for it.)
  const std::vector<int32_t>& unused_ids() const { return unused_ids_; }

  std::optional<int32_t> eos_token_id() const { return eos_token_id_; }
  std::optional<int32_t> bos_token_id() const { return bos_token_id_; }
  std::optional<int32_t> padding_token_id() const { return padding_token_id_; }
  // If true, the caller puts bos_token_id(), which then exists, in front of a prompt.
  bool add_bos() const { return add_bos_; }
  PreTokenizerKind pre_tokenizer() const { return pre_tokenizer_; }
  const std::string& chat_template() const { return chat_template_; }

 private:
  Tokenizer() = default;

  absl::Status CollectSpecialTokens();
  absl::Status ReadSpecialIds(const TokenizerData& data);

  // Appends the tokens of a text that holds no special token.
  void EncodePlain(std::string_view text, std::vector<int32_t>& token_ids) const;

  PreTokenizerKind pre_tokenizer_ = PreTokenizerKind::kQwen35;
  Vocabulary vocabulary_;
  std::optional<BpeEncoder> bpe_;
  std::optional<SpecialTokenMatcher> user_defined_matcher_;
  std::optional<SpecialTokenMatcher> all_matcher_;
  absl::flat_hash_map<std::string, int32_t> special_tokens_;
  std::vector<int32_t> end_of_generation_ids_;
  std::vector<int32_t> unused_ids_;
  std::optional<int32_t> eos_token_id_;
  std::optional<int32_t> bos_token_id_;
  std::optional<int32_t> padding_token_id_;
  bool add_bos_ = false;
  std::string chat_template_;
};

}  // namespace switchyard::model
