// The printable alphabet in which byte-level vocabularies write bytes: one code point per byte.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace switchyard::model {

// Returns how `byte` is written in a token string (UTF-8). Printable characters of Latin-1 other
// than space, no-break space and soft hyphen stand for themselves; the other 68 bytes, in ascending
// order, are U+0100, U+0101, ...: a space is U+0120.
//
// Source: GPT-2, openai/gpt-2 src/encoder.py, bytes_to_unicode().
std::string ByteToAlphabet(uint8_t byte);

// Returns the bytes that `text` stands for; nothing if it holds a character outside the alphabet.
std::optional<std::string> DecodeByteAlphabet(std::string_view text);

}  // namespace switchyard::model
