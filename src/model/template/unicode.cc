#include "model/template/unicode.h"

#include <algorithm>
#include <bitset>
#include <cstring>
#include <string>
#include <vector>

#include "model/utf8.h"

namespace switchyard::model::jinja {
namespace {

bool IsContinuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

// The code points of a string, to be looked up in constant or logarithmic time.
class CharacterSet {
 public:
  explicit CharacterSet(std::string_view characters) {
    for (size_t at = 0; at < characters.size();) {
      const CodePoint c = DecodeAt(characters, at);
      if (c.value < ascii_.size()) {
        ascii_.set(c.value);
      } else {
        others_.push_back(c.value);
      }
      at += c.length;
    }
    std::sort(others_.begin(), others_.end());
  }

  bool Contains(uint32_t code_point) const {
    if (code_point < ascii_.size()) return ascii_.test(code_point);
    return std::binary_search(others_.begin(), others_.end(), code_point);
  }

 private:
  std::bitset<128> ascii_;
  std::vector<uint32_t> others_;
};

// Start of the code point that ends before `end`. Agrees with DecodeAt() from the front: a lead
// byte counts only if its sequence is whole and ends exactly there.
size_t PreviousOffset(std::string_view text, size_t begin, size_t end) {
  for (size_t length = 2; length <= 4 && begin + length <= end; ++length) {
    if (!IsContinuation(static_cast<unsigned char>(text[end - length + 1]))) break;
    if (DecodeAt(text.substr(0, end), end - length).length == length) return end - length;
  }
  return end - 1;
}

}  // namespace

CodePoint DecodeAt(std::string_view text, size_t offset) {
  const Utf8Unit unit = DecodeUtf8(text.substr(offset, 4));
  if (unit.status == Utf8Status::kValid) return {unit.code_point, unit.num_bytes};
  return {static_cast<unsigned char>(text[offset]), 1};
}

void AppendUtf8(uint32_t code_point, std::string* out) {
  if (code_point < 0x80) {
    out->push_back(static_cast<char>(code_point));
    return;
  }
  const int extra = code_point < 0x800 ? 1 : code_point < 0x10000 ? 2 : 3;
  constexpr uint32_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
  out->push_back(static_cast<char>(kLead[extra] | (code_point >> (6 * extra))));
  for (int i = extra - 1; i >= 0; --i) {
    out->push_back(static_cast<char>(0x80 | ((code_point >> (6 * i)) & 0x3F)));
  }
}

bool IsValidUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = DecodeAt(text, at);
    if (c.length == 1 && c.value >= 0x80) return false;
    at += c.length;
  }
  return true;
}

size_t CountCodePoints(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at += DecodeAt(text, at).length) ++count;
  return count;
}

bool IsPythonSpace(uint32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

ByteRange StripRange(std::string_view text, bool left, bool right,
                     const std::string_view* characters) {
  const CharacterSet set(characters == nullptr ? std::string_view() : *characters);
  const auto strips = [&](CodePoint c) {
    if (characters != nullptr) return set.Contains(c.value);
    // A stray byte 0x85 or 0xA0 is half a character, not white space.
    return IsPythonSpace(c.value) && !(c.length == 1 && c.value >= 0x80);
  };
  size_t begin = 0;
  size_t end = text.size();
  while (left && begin < end) {
    const CodePoint c = DecodeAt(text, begin);
    if (!strips(c)) break;
    begin += c.length;
  }
  while (right && begin < end) {
    const size_t previous = PreviousOffset(text, begin, end);
    if (!strips(DecodeAt(text.substr(0, end), previous))) break;
    end = previous;
  }
  return {begin, end};
}

size_t Find(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  // The first byte first: often that is the match, and then the rest of the text is not touched.
  const void* first = std::memchr(text.data() + from, needle[0], text.size() - from);
  if (first == nullptr) return std::string_view::npos;
  const auto at = static_cast<size_t>(static_cast<const char*>(first) - text.data());
  if (text.substr(at, needle.size()) == needle) return at;
  // memmem() is linear in glibc; std::string_view::find() is quadratic at its worst.
  const void* found = memmem(text.data() + at, text.size() - at, needle.data(), needle.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t FindLast(std::string_view text, std::string_view needle) {
  if (needle.size() > text.size()) return std::string_view::npos;
  // Backwards, since std::string_view::rfind() is quadratic at its worst.
  const std::string backwards(text.rbegin(), text.rend());
  const size_t found = Find(backwards, std::string(needle.rbegin(), needle.rend()), 0);
  if (found == std::string_view::npos) return found;
  return text.size() - found - needle.size();
}

size_t LineBreakAt(std::string_view text, size_t offset) {
  const CodePoint c = DecodeAt(text, offset);
  if (c.length == 1 && c.value >= 0x80) return 0;
  if (c.value == '\r') {
    return offset + 1 < text.size() && text[offset + 1] == '\n' ? 2 : 1;
  }
  const bool is_break = (c.value >= 0x0A && c.value <= 0x0C) ||
                        (c.value >= 0x1C && c.value <= 0x1E) || c.value == 0x85 ||
                        c.value == 0x2028 || c.value == 0x2029;
  return is_break ? c.length : 0;
}

}  // namespace switchyard::model::jinja
