// Token ids to text, as they come.
#pragma once

#include <cstdint>
#include <string>

#include "model/tokenizer.h"

namespace switchyard::model {

struct DetokenizerOptions {
  // Control and unknown tokens give their literal text, such as <|im_end|>, instead of none.
  bool include_special = false;
};

// Turns one sequence's token ids into text. What comes out is always valid UTF-8: bytes that may
// still become a character wait for the next token; a maximal sequence that cannot becomes U+FFFD.
// All outputs together are the same however many tokens lie between two calls.
//
// Unused tokens and ids outside the vocabulary (padding rows of the model) give no text.
//
// Threads: one at a time.
class Detokenizer {
 public:
  // Keeps a reference to `tokenizer`, which must live longer.
  explicit Detokenizer(const Tokenizer& tokenizer, DetokenizerOptions options = {})
      : tokenizer_(tokenizer), options_(options) {}

  // Returns the text that has become certain with this token; empty if there is none.
  std::string Push(int32_t token_id);

  // Ends the sequence: returns U+FFFD if bytes still wait, else nothing. After it the object is as
  // new.
  std::string Flush();

 private:
  const Tokenizer& tokenizer_;
  DetokenizerOptions options_;
  std::string waiting_;  // up to 3 bytes: the beginning of a character
};

}  // namespace switchyard::model
