#include "model/json_scanner.h"

#include <nlohmann/json.hpp>

namespace switchyard::model {
namespace {

// Index after the string that begins at `begin`.
size_t StringEnd(std::string_view json, size_t begin) {
  size_t i = begin + 1;
  while (json[i] != '"') i += json[i] == '\\' ? 2 : 1;
  return i + 1;
}

// Index after the value that begins at `begin`, without white space that follows it.
size_t ValueEnd(std::string_view json, size_t begin) {
  int depth = 0;
  for (size_t i = begin; i < json.size();) {
    const char c = json[i];
    if (c == '"') {
      i = StringEnd(json, i);
      if (depth == 0) return i;
      continue;
    }
    if (depth == 0 && i > begin && (c == ',' || c == '}' || c == ']' || IsJsonSpace(c))) return i;
    if (c == '{' || c == '[') ++depth;
    ++i;
    if ((c == '}' || c == ']') && --depth == 0) return i;
  }
  return json.size();
}

size_t SkipSpace(std::string_view json, size_t i) {
  while (i < json.size() && IsJsonSpace(json[i])) ++i;
  return i;
}

}  // namespace

JsonScanner::State JsonScanner::Take(char c) {
  if (in_string_) {
    if (static_cast<unsigned char>(c) < 0x20) return State::kRefused;  // JSON escapes them
    if (is_escaped_) {
      is_escaped_ = false;
    } else if (c == '\\') {
      is_escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
    }
    return State::kInside;
  }
  if (depth_ == 0 && c != '{') return State::kRefused;
  switch (c) {
    case '"':
      in_string_ = true;
      break;
    case '{':
    case '[':
      if (++depth_ > max_depth_) return State::kRefused;
      break;
    case '}':
    case ']':
      if (--depth_ == 0) return c == '}' ? State::kEnd : State::kRefused;
      break;
    case ':':
      if (++num_members_ > max_members_) return State::kRefused;
      break;
    default:
      break;
  }
  return State::kInside;
}

std::string_view TrimJsonSpace(std::string_view text) {
  while (!text.empty() && IsJsonSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsJsonSpace(text.back())) text.remove_suffix(1);
  return text;
}

bool IsJson(std::string_view text) {
  return text.find('\0') == std::string_view::npos && nlohmann::json::accept(text);
}

bool IsBoundedJson(std::string_view text) {
  text = TrimJsonSpace(text);
  if (text.empty()) return false;
  if (text.front() == '{' || text.front() == '[') {
    // A list is scanned as the only value of an object, one level deeper.
    const bool is_list = text.front() == '[';
    JsonScanner scanner(kMaxArgumentDepth + (is_list ? 1 : 0));
    if (is_list) scanner.Take('{');
    for (size_t i = 0; i < text.size(); ++i) {
      const JsonScanner::State state = scanner.Take(text[i]);
      if (state == JsonScanner::State::kRefused) return false;
      if (state == JsonScanner::State::kEnd && i + 1 < text.size()) return false;
    }
  }
  return IsJson(text);
}

std::optional<std::string_view> FindJsonMember(std::string_view object, std::string_view key) {
  std::optional<std::string_view> found;
  size_t i = object.find('{') + 1;
  while ((i = SkipSpace(object, i)) < object.size() && object[i] != '}') {
    if (object[i] == ',') {
      ++i;
      continue;
    }
    const size_t key_end = StringEnd(object, i);
    const std::string_view name = object.substr(i + 1, key_end - i - 2);
    const size_t begin = SkipSpace(object, SkipSpace(object, key_end) + 1);  // after the colon
    const size_t end = ValueEnd(object, begin);
    if (name == key) found = object.substr(begin, end - begin);
    i = end;
  }
  return found;
}

}  // namespace switchyard::model
