// Strict UTF-8, one code point at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace switchyard::model {

enum class Utf8Status : uint8_t {
  kValid,       // `num_bytes` bytes encode `code_point`
  kInvalid,     // the first `num_bytes` bytes begin no code point, whatever follows
  kIncomplete,  // the text ends after `num_bytes` bytes that more bytes may complete
};

// What stands at the beginning of a text. When not valid, `num_bytes` is the maximal subpart: what
// one U+FFFD replaces.
struct Utf8Unit {
  uint32_t code_point = 0;
  size_t num_bytes = 0;
  Utf8Status status = Utf8Status::kValid;
};

// Decodes the first code point of `text`. Surrogates, overlong forms and values above U+10FFFF are
// invalid.
//
// REQUIRES: !text.empty().
// Source: The Unicode Standard 14.0, table 3-7 and "U+FFFD Substitution of Maximal Subparts".
Utf8Unit DecodeUtf8(std::string_view text);

// Whether the whole of `text` is valid.
bool IsValidUtf8(std::string_view text);

}  // namespace switchyard::model
