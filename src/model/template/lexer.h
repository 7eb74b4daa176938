// Splits the source of a template into tokens, white space control applied.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace switchyard::model::jinja {

struct Token {
  enum class Type {
    kData,           // text between tags, as it is to be printed
    kVariableBegin,  // {{
    kVariableEnd,    // }}
    kBlockBegin,     // {%
    kBlockEnd,       // %}
    kName,
    kString,   // `text` holds the unescaped characters
    kInteger,  // `text` holds digits with an optional 0x, 0o or 0b, without underscores
    kFloat,
    kOperator,
    kEnd,  // after the last token
  };
  Type type;
  int line;  // from 1
  std::string text;
};

// Tokens of `source`; the last one is kEnd. White space is handled as chat templates expect it: a
// line break after a block or comment is dropped (trim_blocks), blanks before one on its line too
// (lstrip_blocks), and one line break at the end of the source; all line breaks become "\n".
//
// Errors: InvalidArgument with the line.
// Source: the lexer of Jinja2 3.1 and its documentation, "Whitespace Control".
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace switchyard::model::jinja
