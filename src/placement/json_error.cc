#include "placement/json_error.h"

#include <cstddef>

#include "base/status.h"

namespace switchyard::placement {
namespace {

constexpr int kMaxDepth = 64;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Walks over one value at a time; every method returns false where the text is wrong, with `what_`
// set and `at_` on the place.
class Walker {
 public:
  explicit Walker(std::string_view text) : text_(text) {}

  std::optional<JsonError> Find() {
    SkipSpace();
    if (Value(0)) {
      SkipSpace();
      if (at_ == text_.size()) return std::nullopt;
      what_ = "text goes on after the value";
    }
    JsonError error;
    error.what = what_;
    for (size_t i = 0; i < at_ && i < text_.size(); ++i) {
      error.column = text_[i] == '\n' ? 1 : error.column + 1;
      error.line += text_[i] == '\n';
    }
    return error;
  }

 private:
  bool Fail(std::string what) {
    what_ = at_ >= text_.size() ? "text ends where something is wanted: " + what : "wanted " + what;
    return false;
  }

  char Next() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool Take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void SkipSpace() {
    while (Next() == ' ' || Next() == '\n' || Next() == '\t' || Next() == '\r') ++at_;
  }

  bool Value(int depth) {
    if (depth > kMaxDepth) return Fail(fmt::format("at most {} levels", kMaxDepth));
    switch (Next()) {
      case '{':
        return Object(depth);
      case '[':
        return Array(depth);
      case '"':
        return String();
      default:
        break;
    }
    if (IsDigit(Next()) || Next() == '-') return Number();
    for (const std::string_view word : {"true", "false", "null"}) {
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      return true;
    }
    return Fail("a value");
  }

  bool Object(int depth) {
    Take('{');
    SkipSpace();
    if (Take('}')) return true;
    do {
      SkipSpace();
      if (Next() != '"') return Fail("a name in quotes");
      if (!String()) return false;
      SkipSpace();
      if (!Take(':')) return Fail("a colon");
      SkipSpace();
      if (!Value(depth + 1)) return false;
      SkipSpace();
    } while (Take(','));
    return Take('}') || Fail("a comma or }");
  }

  bool Array(int depth) {
    Take('[');
    SkipSpace();
    if (Take(']')) return true;
    do {
      SkipSpace();
      if (!Value(depth + 1)) return false;
      SkipSpace();
    } while (Take(','));
    return Take(']') || Fail("a comma or ]");
  }

  bool String() {
    Take('"');
    while (at_ < text_.size() && text_[at_] != '"') {
      if (static_cast<unsigned char>(text_[at_]) < 0x20) return Fail("no control byte in a string");
      at_ += text_[at_] == '\\' ? 2 : 1;
    }
    return Take('"') || Fail("the end of a string");
  }

  bool Digits() {
    if (!IsDigit(Next())) return Fail("a digit");
    while (IsDigit(Next())) ++at_;
    return true;
  }

  bool Number() {
    Take('-');
    if (!Digits()) return false;
    if (Take('.') && !Digits()) return false;
    if (!Take('e') && !Take('E')) return true;
    if (!Take('+')) Take('-');
    return Digits();
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string what_;
};

}  // namespace

std::optional<JsonError> FindJsonError(std::string_view text) { return Walker(text).Find(); }

}  // namespace switchyard::placement
