// Cuts text into the pieces that byte-pair merges never cross.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace switchyard::model {

// The known ways to cut; the names are those of the key `tokenizer.ggml.pre`.
enum class PreTokenizerKind : uint8_t {
  kQwen2,   // combining marks count as symbols: they end a word
  kQwen35,  // combining marks are part of words
};

// Errors: UNIMPLEMENTED for a name that is not known; the message lists the known ones.
absl::StatusOr<PreTokenizerKind> ParsePreTokenizerKind(std::string_view name);

// Returns the end of the piece that begins at `begin`. Pieces follow each other without gaps: to
// cut a text, call with 0, then with each result, until the result is text.size().
//
// The pieces are the matches of this regular expression, alternatives in order, where `W` is
// [\p{L}\p{M}] for qwen35 and \p{L} for qwen2, and `S` is what is neither \s nor W nor \p{N}:
//
//   '(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])
//   | [^\r\n\p{L}\p{N}]? W+
//   | \p{N}
//   | \x20? S+ [\r\n]*
//   | \s* [\r\n]+
//   | \s+ (?!\S)
//   | \s+
//
// A byte that belongs to no valid UTF-8 sequence counts as one code point of class kOther, so any
// bytes can be cut and no byte is lost. Cutting a whole text takes time linear in its length and
// constant stack, whatever the text.
//
// REQUIRES: begin < text.size(), and it is 0 or an earlier result for the same text.
// Source: `tokenizer.json` of the Qwen2 and Qwen3.5 releases.
size_t PieceEnd(PreTokenizerKind kind, std::string_view text, size_t begin);

}  // namespace switchyard::model
