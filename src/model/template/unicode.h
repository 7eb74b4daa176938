// UTF-8 and the character classes of Python's str, as far as templates need them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace switchyard::model::jinja {

struct CodePoint {
  uint32_t value;  // the byte itself where the text is not UTF-8
  size_t length;   // in bytes, at least 1
};

// Decodes the code point at byte `offset`. A byte that starts no valid sequence stands for itself.
// REQUIRES: offset < text.size().
CodePoint DecodeAt(std::string_view text, size_t offset);

void AppendUtf8(uint32_t code_point, std::string* out);

bool IsValidUtf8(std::string_view text);

// Number of code points.
size_t CountCodePoints(std::string_view text);

// What str.isspace() holds for, and what str.strip() removes.
bool IsPythonSpace(uint32_t code_point);

// Byte offsets of `text` without leading (`left`) and trailing (`right`) code points out of
// `characters`, or white space if that is null.
struct ByteRange {
  size_t begin;
  size_t end;
};
ByteRange StripRange(std::string_view text, bool left, bool right,
                     const std::string_view* characters);

// Byte offset of the first `needle` in `text` at or after `from`; npos if there is none. Linear in
// the length of both, whatever they hold.
size_t Find(std::string_view text, std::string_view needle, size_t from);

// As Find(), of the last `needle` in all of `text`.
size_t FindLast(std::string_view text, std::string_view needle);

// Byte length of the line break at `offset` as str.splitlines() sees it; 0 if there is none.
size_t LineBreakAt(std::string_view text, size_t offset);

}  // namespace switchyard::model::jinja
