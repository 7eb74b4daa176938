// Finds the literal texts of special tokens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

namespace switchyard::model {

struct SpecialToken {
  std::string_view text;
  int32_t token_id = 0;
};

// Where a special token stands in a text: bytes [begin, end).
struct SpecialTokenMatch {
  size_t begin = 0;
  size_t end = 0;
  int32_t token_id = 0;
};

// Threads: const after construction.
class SpecialTokenMatcher {
 public:
  // Tokens with an empty text are left out; of equal texts the first counts. Keeps no reference.
  explicit SpecialTokenMatcher(absl::Span<const SpecialToken> tokens);

  // Appends the matches in text[begin, end) in ascending order. They do not overlap: from left to
  // right, where several tokens begin at the same byte, the longest is taken. Time and memory are
  // linear in end - begin, whatever the tokens are.
  //
  // REQUIRES: begin <= end <= text.size().
  void FindAll(std::string_view text, size_t begin, size_t end,
               std::vector<SpecialTokenMatch>& matches) const;

 private:
  // A node of the trie of the reversed texts.
  struct State {
    int32_t fallback = 0;        // the longest proper suffix that is a node too
    int32_t longest_token = -1;  // index in tokens_ of the longest text that ends here, -1: none
  };
  struct Token {
    size_t num_bytes;
    int32_t token_id;
  };

  // The node behind `state` along `byte`, -1 if there is none.
  int32_t Child(int32_t state, uint8_t byte) const;

  std::vector<Token> tokens_;
  std::vector<State> states_;
  std::array<int32_t, 256> root_children_;  // 0: none; most bytes of a text end here
  absl::flat_hash_map<uint64_t, int32_t> children_;
};

}  // namespace switchyard::model
