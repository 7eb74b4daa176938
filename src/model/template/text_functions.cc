#include "model/template/text_functions.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "base/status_macros.h"
#include "model/template/formatting.h"
#include "model/template/unicode.h"

namespace switchyard::model::jinja {
namespace {

char ToUpper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
char ToLower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

int64_t Unlimited(int64_t limit) { return limit < 0 ? std::numeric_limits<int64_t>::max() : limit; }

// Pays for a result before each of its pieces is added.
absl::Status AppendPaid(const Text& piece, Text* out, Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(piece.footprint()));
  if (out->size() + piece.size() > kMaxTextBytes) {
    return budget.ChargeText(out->size() + piece.size());
  }
  out->Append(piece);
  return absl::OkStatus();
}

absl::Status AddPart(const Text& text, size_t begin, size_t end, std::vector<Value>* parts,
                     Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeSteps(1));
  parts->push_back(Value::Of(text.Slice(begin, end)));
  return absl::OkStatus();
}

absl::StatusOr<Value> SplitAtSpace(const Text& text, int64_t limit, Budget& budget) {
  std::vector<Value> parts;
  const std::string_view view = text.view();
  const auto is_space = [&](size_t at) {
    const CodePoint c = DecodeAt(view, at);
    return IsPythonSpace(c.value) && (c.value < 0x80 || c.length > 1);
  };
  size_t at = StripRange(view, true, false, nullptr).begin;
  while (at < view.size()) {
    if (static_cast<int64_t>(parts.size()) == limit) {  // the rest, blanks at its end included
      SWITCHYARD_RETURN_IF_ERROR(AddPart(text, at, text.size(), &parts, budget));
      break;
    }
    size_t end = at;
    while (end < view.size() && !is_space(end)) end += DecodeAt(view, end).length;
    SWITCHYARD_RETURN_IF_ERROR(AddPart(text, at, end, &parts, budget));
    at = end + StripRange(view.substr(end), true, false, nullptr).begin;
  }
  return MakeList(std::move(parts));
}

}  // namespace

absl::StatusOr<Text> Strip(const Text& text, bool left, bool right, const Text* characters,
                           Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(text.footprint()));
  if (characters == nullptr) {
    const ByteRange range = StripRange(text.view(), left, right, nullptr);
    return text.Slice(range.begin, range.end);
  }
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(characters->size()));
  const std::string_view set = characters->view();
  const ByteRange range = StripRange(text.view(), left, right, &set);
  return text.Slice(range.begin, range.end);
}

Text Upper(Text text) {
  text.TransformBytes(ToUpper);
  return text;
}

Text Lower(Text text) {
  text.TransformBytes(ToLower);
  return text;
}

Text Capitalize(Text text) {
  bool first = true;
  text.TransformBytes(
      [&](char c) { return std::exchange(first, false) ? ToUpper(c) : ToLower(c); });
  return text;
}

Text Title(Text text) {
  constexpr std::string_view kBetweenWords = "-({[< \t\n\v\f\r";
  bool starts_word = true;
  text.TransformBytes([&](char c) {
    const bool is_between = kBetweenWords.find(c) != std::string_view::npos;
    return std::exchange(starts_word, is_between) ? ToUpper(c) : ToLower(c);
  });
  return text;
}

absl::StatusOr<Text> Replace(const Text& text, const Text& old, const Text& with, int64_t limit,
                             Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(text.footprint()));
  Text out;
  size_t at = 0;
  limit = Unlimited(limit);
  for (int64_t i = 0; i < limit; ++i) {
    if (old.empty()) {
      SWITCHYARD_RETURN_IF_ERROR(AppendPaid(with, &out, budget));
      if (at == text.size()) return out;
      const size_t next = at + DecodeAt(text.view(), at).length;
      out.AppendSlice(text, at, next);
      at = next;
      continue;
    }
    const size_t found = Find(text.view(), old.view(), at);
    if (found == std::string_view::npos) break;
    out.AppendSlice(text, at, found);
    SWITCHYARD_RETURN_IF_ERROR(AppendPaid(with, &out, budget));
    at = found + old.size();
  }
  out.AppendSlice(text, at, text.size());
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(out.size()));
  return out;
}

absl::StatusOr<Value> Split(const Text& text, const Text* separator, int64_t limit, bool from_right,
                            Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(text.footprint()));
  limit = Unlimited(limit);
  if (separator == nullptr) {
    if (from_right && limit != Unlimited(-1)) {
      return InvalidArgument("rsplit() with a limit needs a separator");
    }
    return SplitAtSpace(text, limit, budget);
  }
  if (separator->empty()) return InvalidArgument("separator of split() is empty");
  const std::string_view view = text.view();
  std::vector<Value> parts;
  if (!from_right) {
    size_t at = 0;
    for (int64_t i = 0; i < limit; ++i) {
      const size_t found = Find(view, separator->view(), at);
      if (found == std::string_view::npos) break;
      SWITCHYARD_RETURN_IF_ERROR(AddPart(text, at, found, &parts, budget));
      at = found + separator->size();
    }
    SWITCHYARD_RETURN_IF_ERROR(AddPart(text, at, text.size(), &parts, budget));
    return MakeList(std::move(parts));
  }
  // From the left in the mirrored text: Find() is linear, std::string_view::rfind() is not.
  const std::string mirrored(view.rbegin(), view.rend());
  const std::string mirrored_separator(separator->bytes().rbegin(), separator->bytes().rend());
  size_t end = text.size();
  for (int64_t i = 0; i < limit; ++i) {
    const size_t found = Find(mirrored, mirrored_separator, text.size() - end);
    if (found == std::string_view::npos) break;
    SWITCHYARD_RETURN_IF_ERROR(AddPart(text, text.size() - found, end, &parts, budget));
    end = text.size() - found - separator->size();
  }
  SWITCHYARD_RETURN_IF_ERROR(AddPart(text, 0, end, &parts, budget));
  std::reverse(parts.begin(), parts.end());
  return MakeList(std::move(parts));
}

absl::StatusOr<Value> SplitLines(const Text& text, Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(text.footprint()));
  std::vector<Value> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t line_break = LineBreakAt(text.view(), at);
    if (line_break == 0) {
      at += DecodeAt(text.view(), at).length;
      continue;
    }
    SWITCHYARD_RETURN_IF_ERROR(AddPart(text, begin, at, &lines, budget));
    at += line_break;
    begin = at;
  }
  if (begin < text.size()) {
    SWITCHYARD_RETURN_IF_ERROR(AddPart(text, begin, text.size(), &lines, budget));
  }
  return MakeList(std::move(lines));
}

absl::StatusOr<Text> Join(const std::vector<Value>& items, const Text& separator, Budget& budget) {
  Text out;
  bool first = true;
  for (const Value& item : items) {
    if (!first) SWITCHYARD_RETURN_IF_ERROR(AppendPaid(separator, &out, budget));
    first = false;
    if (item.is_string()) {
      SWITCHYARD_RETURN_IF_ERROR(AppendPaid(item.text(), &out, budget));
      continue;
    }
    SWITCHYARD_ASSIGN_OR_RETURN(const Text text, ToText(item, budget));
    SWITCHYARD_RETURN_IF_ERROR(AppendPaid(text, &out, budget));
  }
  return out;
}

}  // namespace switchyard::model::jinja
