// A small byte-level BPE tokenizer for synthetic models.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::app {

// Contents of the `tokenizer.*` keys. Every text has an encoding: all 256 bytes are tokens.
struct SynthTokenizer {
  std::vector<std::string> tokens;   // [vocab_size], normal ones in the byte alphabet
  std::vector<int32_t> token_types;  // [vocab_size], values of model::TokenType
  std::vector<std::string> merges;   // "left right" by rank
  int32_t end_of_text_id = 0;        // <|endoftext|>: also the separator of n-grams
  int32_t end_of_turn_id = 0;        // <|im_end|>
  int32_t image_id = 0;              // <|image_pad|>
};

// Rows that are not optional: 256 bytes and the special tokens.
int MinVocabSize();

// Makes a vocabulary: bytes, then tokens made by merges (first those that a few English sentences
// suggest, then systematically all words of two, three and four small letters), then the special
// tokens in the order of the published models, then unused rows. If there are too few merges to
// fill the vocabulary, more rows at the end are unused.
//
// REQUIRES: vocab_size >= MinVocabSize() + num_unused.
SynthTokenizer MakeSynthTokenizer(int vocab_size, int num_unused);

// ChatML with a switch for thinking (`enable_thinking`, on by default), in Jinja.
std::string_view SynthChatTemplate();

}  // namespace switchyard::app
