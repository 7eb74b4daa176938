#include "model/pre_tokenizer.h"

#include "base/check.h"
#include "base/status.h"
#include "model/unicode_categories.h"
#include "model/utf8.h"

namespace switchyard::model {
namespace {

// One code point as the alternatives see it; num_bytes is 0 at the end of the text.
struct Unit {
  CodePointClass code_point_class = CodePointClass::kOther;
  char ascii = 0;  // the character itself, 0 if it is not ASCII
  size_t num_bytes = 0;

  bool exists() const { return num_bytes != 0; }
  bool is_newline() const { return ascii == '\r' || ascii == '\n'; }
};

// Bytes after an apostrophe that form a contraction with it ('s 't 're 've 'm 'll 'd), else 0.
size_t ContractionBytes(std::string_view rest) {
  const auto lower = [rest](size_t i) -> char {
    if (i >= rest.size()) return 0;
    return rest[i] >= 'A' && rest[i] <= 'Z' ? static_cast<char>(rest[i] + ('a' - 'A')) : rest[i];
  };
  switch (lower(0)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 1;
    case 'r':
    case 'v':
      return lower(1) == 'e' ? 2 : 0;
    case 'l':
      return lower(1) == 'l' ? 2 : 0;
    default:
      return 0;
  }
}

class Scanner {
 public:
  Scanner(PreTokenizerKind kind, std::string_view text)
      : text_(text), marks_join_words_(kind == PreTokenizerKind::kQwen35) {}

  size_t PieceEnd(size_t begin) const {
    const Unit first = At(begin);
    const size_t second = begin + first.num_bytes;
    if (first.ascii == '\'') {
      if (const size_t n = ContractionBytes(text_.substr(second)); n != 0) return second + n;
    }
    if (IsWord(first)) return WordEnd(second);
    if (first.code_point_class == CodePointClass::kNumber) return second;
    // Any one code point but a line end may lead a word; numbers and letters are dealt with above.
    const Unit next = At(second);
    if (!first.is_newline() && next.exists() && IsWord(next)) return WordEnd(second);
    if (IsSymbol(first)) return SymbolsEnd(second);
    if (first.ascii == ' ' && next.exists() && IsSymbol(next)) return SymbolsEnd(second);
    return SpaceEnd(begin);
  }

 private:
  Unit At(size_t i) const {
    if (i >= text_.size()) return {};
    const auto byte = static_cast<uint8_t>(text_[i]);
    if (byte < 0x80) return {ClassOf(byte), text_[i], 1};
    const Utf8Unit unit = DecodeUtf8(text_.substr(i));
    if (unit.status != Utf8Status::kValid) return {CodePointClass::kOther, 0, 1};
    return {ClassOf(unit.code_point), 0, unit.num_bytes};
  }

  bool IsWord(const Unit& unit) const {
    return unit.code_point_class == CodePointClass::kLetter ||
           (marks_join_words_ && unit.code_point_class == CodePointClass::kMark);
  }

  bool IsSymbol(const Unit& unit) const {
    return unit.code_point_class == CodePointClass::kOther ||
           (!marks_join_words_ && unit.code_point_class == CodePointClass::kMark);
  }

  size_t WordEnd(size_t i) const {
    for (Unit unit = At(i); unit.exists() && IsWord(unit); unit = At(i)) i += unit.num_bytes;
    return i;
  }

  // Symbols, then the line ends behind them.
  size_t SymbolsEnd(size_t i) const {
    for (Unit unit = At(i); unit.exists() && IsSymbol(unit); unit = At(i)) i += unit.num_bytes;
    while (i < text_.size() && (text_[i] == '\r' || text_[i] == '\n')) ++i;
    return i;
  }

  // White space at `begin` that leads no word and no symbols. Up to its last line end if it has
  // one; else all but its last code point if something follows, which that code point may lead;
  // else all of it. A run is thus looked at three times at most.
  size_t SpaceEnd(size_t begin) const {
    size_t after_newline = begin;
    size_t last = begin;
    size_t i = begin;
    for (Unit unit = At(i); unit.exists() && unit.code_point_class == CodePointClass::kSpace;
         unit = At(i)) {
      last = i;
      i += unit.num_bytes;
      if (unit.is_newline()) after_newline = i;
    }
    SWITCHYARD_DCHECK(i > begin);  // every other class was dealt with by the caller
    if (after_newline != begin) return after_newline;
    return i == text_.size() || last == begin ? i : last;
  }

  std::string_view text_;
  bool marks_join_words_;
};

}  // namespace

absl::StatusOr<PreTokenizerKind> ParsePreTokenizerKind(std::string_view name) {
  if (name == "qwen2") return PreTokenizerKind::kQwen2;
  if (name == "qwen35") return PreTokenizerKind::kQwen35;
  return Unimplemented("unknown pre-tokenizer: '{}', known: qwen2, qwen35", name);
}

size_t PieceEnd(PreTokenizerKind kind, std::string_view text, size_t begin) {
  SWITCHYARD_DCHECK(begin < text.size());
  return Scanner(kind, text).PieceEnd(begin);
}

}  // namespace switchyard::model
