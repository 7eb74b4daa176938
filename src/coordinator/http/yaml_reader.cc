#include "coordinator/http/yaml_reader.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::coordinator::http {
namespace {

struct Line {
  size_t number = 0;
  size_t indent = 0;
  std::string_view text;  // without the indent; may be empty
};

std::string_view TrimRight(std::string_view text) {
  const size_t end = text.find_last_not_of(' ');
  return text.substr(0, end == std::string_view::npos ? 0 : end + 1);
}

std::string_view TrimLeft(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  return begin == std::string_view::npos ? "" : text.substr(begin);
}

std::vector<Line> SplitLines(std::string_view text) {
  std::vector<Line> lines;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const std::string_view content = TrimLeft(line);
    lines.push_back({number, line.size() - content.size(), TrimRight(content)});
  }
  return lines;
}

// Text before " #" outside of quotes.
std::string_view WithoutComment(std::string_view text) {
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quote != 0) {
      if (text[i] == quote) quote = 0;
    } else if ((text[i] == '"' || text[i] == '\'') &&
               (i == 0 || text[i - 1] == ' ' || text[i - 1] == '[' || text[i - 1] == '{')) {
      quote = text[i];
    } else if (text[i] == '#' && (i == 0 || text[i - 1] == ' ')) {
      return TrimRight(text.substr(0, i));
    }
  }
  return text;
}

Json PlainScalar(std::string_view text) {
  if (text == "null" || text == "~" || text.empty()) return nullptr;
  if (text == "true") return true;
  if (text == "false") return false;
  const bool is_number = text.find_first_not_of("0123456789.-+eE") == std::string_view::npos &&
                         text.find_first_of("0123456789") != std::string_view::npos;
  if (is_number) {
    Json number = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (number.is_number()) return number;
  }
  return std::string(text);
}

class Reader {
 public:
  explicit Reader(std::string_view text) : lines_(SplitLines(text)) {}

  absl::StatusOr<Json> Read() {
    SkipEmpty();
    if (AtEnd()) return Json(nullptr);
    SWITCHYARD_ASSIGN_OR_RETURN(Json value, ReadBlock(lines_[at_].indent));
    SkipEmpty();
    if (!AtEnd()) return Error("the indent fits nothing before it");
    return value;
  }

 private:
  bool AtEnd() const { return at_ >= lines_.size(); }

  absl::Status Error(std::string_view what) const {
    return InvalidArgument("line {}: {}", AtEnd() ? lines_.size() : lines_[at_].number, what);
  }

  void SkipEmpty() {
    while (!AtEnd() && (lines_[at_].text.empty() || lines_[at_].text[0] == '#')) ++at_;
  }

  static bool IsItem(std::string_view text) { return text == "-" || text.starts_with("- "); }

  // A mapping or sequence of which the present line, at `indent`, is the first entry.
  absl::StatusOr<Json> ReadBlock(size_t indent) {
    const bool is_sequence = IsItem(lines_[at_].text);
    Json value = is_sequence ? Json::array() : Json::object();
    for (SkipEmpty(); !AtEnd() && lines_[at_].indent == indent; SkipEmpty()) {
      if (IsItem(lines_[at_].text) != is_sequence) {
        if (!is_sequence) break;  // a sequence may stand at the indent of its key's mapping
        return value;
      }
      SWITCHYARD_RETURN_IF_ERROR(is_sequence ? ReadItem(value) : ReadMember(value));
    }
    if (!AtEnd() && lines_[at_].indent > indent) return Error("the indent is too deep");
    return value;
  }

  absl::Status ReadItem(Json& sequence) {
    Line& line = lines_[at_];
    const std::string_view rest = TrimLeft(line.text.substr(1));
    if (rest.empty()) return Error("an item must begin on the line of its dash");
    if (KeyEnd(rest).has_value()) {
      // A mapping inside of the item: its first member begins behind the dash.
      line.indent += line.text.size() - rest.size();
      line.text = rest;
      SWITCHYARD_ASSIGN_OR_RETURN(Json value, ReadBlock(line.indent));
      sequence.push_back(std::move(value));
      return absl::OkStatus();
    }
    SWITCHYARD_ASSIGN_OR_RETURN(Json value, ReadInline(WithoutComment(rest)));
    sequence.push_back(std::move(value));
    ++at_;
    return absl::OkStatus();
  }

  // Where the key of "key: value" or "key:" ends; nothing for other text.
  static std::optional<size_t> KeyEnd(std::string_view text) {
    size_t begin = 0;
    if (text[0] == '[' || text[0] == '{') return std::nullopt;
    if (text[0] == '"' || text[0] == '\'') {
      begin = text.find(text[0], 1);
      if (begin == std::string_view::npos) return std::nullopt;
    }
    for (size_t i = begin; i < text.size(); ++i) {
      if (text[i] == ':' && (i + 1 == text.size() || text[i + 1] == ' ')) return i;
    }
    return std::nullopt;
  }

  absl::Status ReadMember(Json& mapping) {
    const Line line = lines_[at_];
    const std::optional<size_t> key_end = KeyEnd(line.text);
    if (!key_end) return Error("neither \"key: value\" nor \"- item\"");
    std::string key(line.text.substr(0, *key_end));
    if (key[0] == '"' || key[0] == '\'') key = key.substr(1, key.size() - 2);
    if (mapping.contains(key)) return Error("the key is there twice");
    const std::string_view rest = WithoutComment(TrimLeft(line.text.substr(*key_end + 1)));
    if (rest == "|" || rest == ">-") {
      ++at_;
      mapping[key] = ReadText(line.indent, rest == "|");
      return absl::OkStatus();
    }
    if (!rest.empty()) {
      SWITCHYARD_ASSIGN_OR_RETURN(mapping[key], ReadInline(rest));
      ++at_;
      return absl::OkStatus();
    }
    ++at_;
    SkipEmpty();
    const bool has_value =
        !AtEnd() && (lines_[at_].indent > line.indent ||
                     (lines_[at_].indent == line.indent && IsItem(lines_[at_].text)));
    if (!has_value) {
      mapping[key] = nullptr;
      return absl::OkStatus();
    }
    SWITCHYARD_ASSIGN_OR_RETURN(mapping[key], ReadBlock(lines_[at_].indent));
    return absl::OkStatus();
  }

  // Lines deeper than `indent`, kept ("|") or joined by spaces (">-").
  std::string ReadText(size_t indent, bool is_literal) {
    std::string text;
    std::optional<size_t> text_indent;
    for (; !AtEnd() && (lines_[at_].text.empty() || lines_[at_].indent > indent); ++at_) {
      const Line& line = lines_[at_];
      if (line.text.empty() && !is_literal) continue;
      if (!text_indent) text_indent = line.indent;
      if (!text.empty() && !is_literal) text += ' ';
      if (is_literal && !line.text.empty()) text.append(line.indent - *text_indent, ' ');
      text += line.text;
      if (is_literal) text += '\n';
    }
    while (is_literal && text.ends_with("\n\n")) text.pop_back();
    return text;
  }

  // A scalar, or a flow sequence or mapping.
  absl::StatusOr<Json> ReadInline(std::string_view text) {
    std::string_view rest = text;
    SWITCHYARD_ASSIGN_OR_RETURN(Json value, ReadFlow(rest, ""));
    if (!TrimLeft(rest).empty()) return Error("text behind the value");
    return value;
  }

  // Takes one value off `text`; a plain scalar ends at one of `ends`.
  absl::StatusOr<Json> ReadFlow(std::string_view& text, std::string_view ends) {
    text = TrimLeft(text);
    if (text.empty()) return Error("a value is missing");
    if (text[0] == '[') return ReadFlowSequence(text);
    if (text[0] == '{') return ReadFlowMapping(text);
    if (text[0] == '"' || text[0] == '\'') return ReadQuoted(text);
    if (text[0] == '&' || text[0] == '*' || text[0] == '!' || text[0] == '|' || text[0] == '>') {
      return Error("this form of YAML is not read");
    }
    const size_t end = ends.empty() ? text.size() : std::min(text.find_first_of(ends), text.size());
    const std::string_view scalar = TrimRight(text.substr(0, end));
    if (ends.empty() && scalar.find(": ") != std::string_view::npos) {
      return Error("a colon in plain text: quote it");
    }
    text.remove_prefix(end);
    return PlainScalar(scalar);
  }

  absl::StatusOr<Json> ReadQuoted(std::string_view& text) {
    const char quote = text[0];
    size_t end = 1;
    while (end < text.size() && text[end] != quote)
      end += quote == '"' && text[end] == '\\' ? 2 : 1;
    if (end >= text.size()) return Error("a quote is not closed");
    const std::string_view whole = text.substr(0, end + 1);
    text.remove_prefix(end + 1);
    if (quote == '\'') return Json(std::string(whole.substr(1, whole.size() - 2)));
    Json value = Json::parse(whole, nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded()) return Error("bad escape in a quoted text");
    return value;
  }

  absl::StatusOr<Json> ReadFlowSequence(std::string_view& text) {
    Json sequence = Json::array();
    text.remove_prefix(1);
    while (true) {
      text = TrimLeft(text);
      if (text.starts_with(']')) break;
      SWITCHYARD_ASSIGN_OR_RETURN(Json value, ReadFlow(text, ",]"));
      sequence.push_back(std::move(value));
      SWITCHYARD_RETURN_IF_ERROR(SkipComma(text, ']'));
    }
    text.remove_prefix(1);
    return sequence;
  }

  absl::StatusOr<Json> ReadFlowMapping(std::string_view& text) {
    Json mapping = Json::object();
    text.remove_prefix(1);
    while (true) {
      text = TrimLeft(text);
      if (text.starts_with('}')) break;
      SWITCHYARD_ASSIGN_OR_RETURN(const Json key, ReadFlow(text, ":,}"));
      if (!text.starts_with(": ")) return Error("a key without a value");
      text.remove_prefix(1);
      SWITCHYARD_ASSIGN_OR_RETURN(mapping[key.is_string() ? key.get<std::string>() : key.dump()],
                                  ReadFlow(text, ",}"));
      SWITCHYARD_RETURN_IF_ERROR(SkipComma(text, '}'));
    }
    text.remove_prefix(1);
    return mapping;
  }

  absl::Status SkipComma(std::string_view& text, char close) {
    text = TrimLeft(text);
    if (text.starts_with(',')) {
      text.remove_prefix(1);
    } else if (!text.starts_with(close)) {
      return Error("a bracket is not closed on its line");
    }
    return absl::OkStatus();
  }

  std::vector<Line> lines_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<Json> ReadYaml(std::string_view text) { return Reader(text).Read(); }

}  // namespace switchyard::coordinator::http
