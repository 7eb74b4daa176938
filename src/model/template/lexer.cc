#include "model/template/lexer.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/status_macros.h"
#include "model/template/unicode.h"

namespace switchyard::model::jinja {
namespace {

constexpr size_t kNone = std::string_view::npos;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsNameByte(char c) { return IsNameStart(c) || IsDigit(c); }

int HexDigit(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string NormalizeLineBreaks(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) SWITCHYARD_RETURN_IF_ERROR(LexDataAndTag());
    Add(Token::Type::kEnd, "");
    return std::move(tokens_);
  }

 private:
  template <typename... Args>
  absl::Status Error(fmt::format_string<Args...> format, Args&&... args) const {
    return InvalidArgument("line {}: {}", line_, fmt::format(format, std::forward<Args>(args)...));
  }

  void Add(Token::Type type, std::string text) {
    tokens_.push_back({type, line_, std::move(text)});
  }

  bool StartsWith(size_t at, std::string_view text) const {
    return source_.substr(std::min(at, source_.size()), text.size()) == text;
  }

  // Moves to `end` and counts the lines in between.
  void Advance(size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(end), '\n'));
    at_ = end;
  }

  size_t SkipSpace(size_t at) const {
    return at + StripRange(source_.substr(at), true, false, nullptr).begin;
  }

  size_t FindTag(size_t from) const {
    for (size_t at = source_.find('{', from); at != kNone; at = source_.find('{', at + 1)) {
      if (at + 1 < source_.size() &&
          (source_[at + 1] == '{' || source_[at + 1] == '%' || source_[at + 1] == '#')) {
        return at;
      }
    }
    return kNone;
  }

  // `text` before a tag with this sign, without the white space that sign or lstrip_blocks remove.
  std::string_view TrimBeforeTag(std::string_view text, char sign, bool is_variable) const {
    if (sign == '-') return text.substr(0, StripRange(text, false, true, nullptr).end);
    if (sign == '+' || is_variable) return text;
    const size_t line_break = text.rfind('\n');
    const size_t line_start = line_break == kNone ? 0 : line_break + 1;
    if (line_start == 0 && !line_starting_) return text;
    const std::string_view blanks = text.substr(line_start);
    const bool is_blank = StripRange(blanks, true, false, nullptr).begin == blanks.size();
    return is_blank ? text.substr(0, line_start) : text;
  }

  void EmitData(std::string_view text) {
    if (!text.empty()) Add(Token::Type::kData, std::string(text));
  }

  char SignAt(size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
  }

  // Offset after a tag that ends with `close` (with its sign) at `at`, and what white space control
  // removes after it; kNone if no such end is there.
  size_t EndOfTag(size_t at, std::string_view close, bool allow_plus, bool trim_line_break) const {
    if (StartsWith(at, "-") && StartsWith(at + 1, close)) {
      return SkipSpace(at + 1 + close.size());
    }
    if (allow_plus && StartsWith(at, "+") && StartsWith(at + 1, close)) {
      return at + 1 + close.size();
    }
    if (!StartsWith(at, close)) return kNone;
    const size_t end = at + close.size();
    return trim_line_break && StartsWith(end, "\n") ? end + 1 : end;
  }

  void FinishTag(size_t end) {
    line_starting_ = end > 0 && source_[end - 1] == '\n';
    Advance(end);
  }

  // {% raw %}: the end of its opening tag; kNone if the tag at `tag` is another one.
  size_t EndOfRawBegin(size_t tag) const {
    size_t at = tag + 2;
    if (SignAt(at) != '\0') ++at;
    at = SkipSpace(at);
    if (!StartsWith(at, "raw")) return kNone;
    return EndOfTag(SkipSpace(at + 3), "%}", /*allow_plus=*/false, /*trim_line_break=*/false);
  }

  absl::Status LexDataAndTag() {
    const size_t tag = FindTag(at_);
    if (tag == kNone) {
      EmitData(source_.substr(at_));
      Advance(source_.size());
      return absl::OkStatus();
    }
    const char kind = source_[tag + 1];
    const char sign = SignAt(tag + 2);
    EmitData(TrimBeforeTag(source_.substr(at_, tag - at_), sign, kind == '{'));
    Advance(tag);
    if (kind == '#') return LexComment();
    if (kind == '%') {
      if (const size_t end = EndOfRawBegin(tag); end != kNone) return LexRaw(end);
    }
    Add(kind == '{' ? Token::Type::kVariableBegin : Token::Type::kBlockBegin, "");
    Advance(tag + 2 + (sign == '\0' ? 0 : 1));
    return LexTag(kind == '{');
  }

  absl::Status LexComment() {
    // The sign after {# is not part of the comment: {#-#} is the shortest one with a sign.
    const size_t body = at_ + 2 + (SignAt(at_ + 2) == '\0' ? 0 : 1);
    const size_t close = source_.find("#}", body);
    if (close == kNone) return Error("comment does not end");
    const bool has_sign = close > body && SignAt(close - 1) != '\0';
    FinishTag(EndOfTag(has_sign ? close - 1 : close, "#}", true, true));
    return absl::OkStatus();
  }

  absl::Status LexRaw(size_t body) {
    FinishTag(body);
    for (size_t tag = source_.find("{%", body); tag != kNone; tag = source_.find("{%", tag + 2)) {
      const char sign = SignAt(tag + 2);
      const size_t name = SkipSpace(tag + 2 + (sign == '\0' ? 0 : 1));
      if (!StartsWith(name, "endraw")) continue;
      const size_t end = EndOfTag(SkipSpace(name + 6), "%}", true, true);
      if (end == kNone) continue;
      EmitData(TrimBeforeTag(source_.substr(body, tag - body), sign, false));
      FinishTag(end);
      return absl::OkStatus();
    }
    return Error("raw block does not end");
  }

  // Tokens up to the end of a {{ }} or {% %} tag.
  absl::Status LexTag(bool is_variable) {
    const std::string_view close = is_variable ? "}}" : "%}";
    std::string brackets;  // closing ones that are still to come
    while (at_ < source_.size()) {
      if (const size_t end = SkipSpace(at_); end > at_) {
        Advance(end);
        continue;
      }
      if (brackets.empty()) {
        const size_t end = EndOfTag(at_, close, !is_variable, !is_variable);
        if (end != kNone) {
          Add(is_variable ? Token::Type::kVariableEnd : Token::Type::kBlockEnd, "");
          FinishTag(end);
          return absl::OkStatus();
        }
      }
      const char c = source_[at_];
      if (IsNameStart(c)) {
        size_t end = at_;
        while (end < source_.size() && IsNameByte(source_[end])) ++end;
        Add(Token::Type::kName, std::string(source_.substr(at_, end - at_)));
        Advance(end);
      } else if (IsDigit(c)) {
        SWITCHYARD_RETURN_IF_ERROR(LexNumber());
      } else if (c == '\'' || c == '"') {
        SWITCHYARD_RETURN_IF_ERROR(LexString(c));
      } else {
        SWITCHYARD_RETURN_IF_ERROR(LexOperator(&brackets));
      }
    }
    return Error("tag does not end, expected: {}", close);
  }

  // Digits with single underscores between them.
  size_t DigitsEnd(size_t at) const {
    while (at < source_.size() &&
           (IsDigit(source_[at]) ||
            (source_[at] == '_' && at + 1 < source_.size() && IsDigit(source_[at + 1])))) {
      ++at;
    }
    return at;
  }

  absl::Status LexNumber() {
    size_t end = at_;
    Token::Type type = Token::Type::kInteger;
    const char marker = at_ + 1 < source_.size() ? source_[at_ + 1] : '\0';
    if (source_[at_] == '0' && std::string_view("xXoObB").find(marker) != kNone && marker != '\0') {
      end += 2;
      while (end < source_.size() && (HexDigit(source_[end]) >= 0 || source_[end] == '_')) ++end;
    } else {
      end = DigitsEnd(end);
      if (end + 1 < source_.size() && source_[end] == '.' && IsDigit(source_[end + 1])) {
        type = Token::Type::kFloat;
        end = DigitsEnd(end + 1);
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        size_t digits = end + 1;
        if (SignAt(digits) != '\0') ++digits;
        if (digits < source_.size() && IsDigit(source_[digits])) {
          type = Token::Type::kFloat;
          end = DigitsEnd(digits);
        }
      }
    }
    std::string text(source_.substr(at_, end - at_));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    Add(type, std::move(text));
    Advance(end);
    return absl::OkStatus();
  }

  absl::Status LexString(char quote) {
    const size_t begin = at_ + 1;
    size_t end = begin;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return Error("string does not end");
    std::string text;
    SWITCHYARD_RETURN_IF_ERROR(Unescape(source_.substr(begin, end - begin), &text));
    Add(Token::Type::kString, std::move(text));
    Advance(end + 1);
    return absl::OkStatus();
  }

  // Python's escapes; an unknown one stays as it is, backslash included.
  absl::Status Unescape(std::string_view body, std::string* out) const {
    for (size_t i = 0; i < body.size(); ++i) {
      if (body[i] != '\\') {
        out->push_back(body[i]);
        continue;
      }
      const char c = body[++i];  // the scan for the quote never ends on a backslash
      constexpr std::string_view kNames = "abfnrtv\\'\"";
      constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
      if (c == '\n') continue;
      if (const size_t simple = kNames.find(c); simple != kNone) {
        out->push_back(kValues[simple]);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t num_digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        uint32_t value = 0;
        for (size_t k = 0; k < num_digits; ++k) {
          const int digit = ++i < body.size() ? HexDigit(body[i]) : -1;
          if (digit < 0) return Error("escape is incomplete: \\{}", c);
          value = value * 16 + static_cast<uint32_t>(digit);
        }
        if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
          return Error("escape is no character: \\{}", c);
        }
        AppendUtf8(value, out);
      } else if (c >= '0' && c <= '7') {
        uint32_t value = static_cast<uint32_t>(c - '0');
        for (int k = 0; k < 2 && i + 1 < body.size(); ++k) {
          if (body[i + 1] < '0' || body[i + 1] > '7') break;
          value = value * 8 + static_cast<uint32_t>(body[++i] - '0');
        }
        AppendUtf8(value, out);
      } else if (c == 'N') {
        return Error("escape is not supported: \\N");
      } else {
        out->push_back('\\');
        out->push_back(c);
      }
    }
    return absl::OkStatus();
  }

  absl::Status LexOperator(std::string* brackets) {
    constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                               "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                               ">",  "<",  "=",  ".",  ":",  "|",  ","};
    for (const std::string_view op : kOperators) {
      if (!StartsWith(at_, op)) continue;
      if (op == "(") brackets->push_back(')');
      if (op == "[") brackets->push_back(']');
      if (op == "{") brackets->push_back('}');
      if (op == ")" || op == "]" || op == "}") {
        if (brackets->empty() || brackets->back() != op[0]) return Error("unexpected: {}", op);
        brackets->pop_back();
      }
      Add(Token::Type::kOperator, std::string(op));
      Advance(at_ + op.size());
      return absl::OkStatus();
    }
    return Error("unexpected character, code: {}", DecodeAt(source_, at_).value);
  }

  const std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last tag ended with a line break, or there was none yet
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) {
  const std::string normalized = NormalizeLineBreaks(source);
  return Lexer(normalized).Run();
}

}  // namespace switchyard::model::jinja
