#include "model/template/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/status_macros.h"
#include "model/template/formatting.h"
#include "model/template/methods.h"
#include "model/template/operators.h"
#include "model/template/sequence_filters.h"
#include "model/template/text_functions.h"
#include "model/template/unicode.h"

namespace switchyard::model::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// A text argument, or null if it is absent or none.
absl::StatusOr<const Text*> TextOrNull(const Value* argument) {
  if (argument == nullptr || argument->is_none()) return static_cast<const Text*>(nullptr);
  if (argument->is_string()) return &argument->text();
  return InvalidArgument("argument is no string: {}", argument->kind_name());
}

absl::StatusOr<int64_t> IntegerOr(const Value* argument, int64_t missing) {
  int64_t value = missing;
  if (argument == nullptr || argument->is_none() || argument->AsInteger(&value)) return value;
  return InvalidArgument("argument is no integer: {}", argument->kind_name());
}

Result Trim(const Value& input, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("trim", {"chars"}));
  SWITCHYARD_ASSIGN_OR_RETURN(const Text* characters, TextOrNull(bound[0]));
  SWITCHYARD_ASSIGN_OR_RETURN(const Text text, ToText(input, budget));
  SWITCHYARD_ASSIGN_OR_RETURN(Text stripped, Strip(text, true, true, characters, budget));
  return Value::Of(std::move(stripped));
}

template <Text (*transform)(Text)>
Result Transform(const Value& input, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(arguments.Bind("text filter", {}).status());
  SWITCHYARD_ASSIGN_OR_RETURN(Text text, ToText(input, budget));
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(text.footprint()));
  return Value::Of(transform(std::move(text)));
}

Result String(const Value& input, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(arguments.Bind("string", {}).status());
  if (input.is_string()) return input;
  SWITCHYARD_ASSIGN_OR_RETURN(Text text, ToText(input, budget));
  return Value::Of(std::move(text));
}

Result ReplaceFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("replace", {"old", "new", "count"}));
  if (bound[0] == nullptr || bound[1] == nullptr) {
    return InvalidArgument("replace needs two arguments");
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const Text text, ToText(input, budget));
  SWITCHYARD_ASSIGN_OR_RETURN(const Text old, ToText(*bound[0], budget));
  SWITCHYARD_ASSIGN_OR_RETURN(const Text with, ToText(*bound[1], budget));
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t limit, IntegerOr(bound[2], -1));
  SWITCHYARD_ASSIGN_OR_RETURN(Text replaced, Replace(text, old, with, limit, budget));
  return Value::Of(std::move(replaced));
}

Result Indent(const Value& input, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound,
                              arguments.Bind("indent", {"width", "first", "blank"}));
  Text indention("    ", kFromTemplate);
  if (bound[0] != nullptr && bound[0]->is_string()) {
    indention = bound[0]->text();
  } else {
    SWITCHYARD_ASSIGN_OR_RETURN(const int64_t width, IntegerOr(bound[0], 4));
    if (width > kMaxRange) return InvalidArgument("indent is too wide: {}", width);
    indention =
        Text(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '), kFromTemplate);
  }
  const bool first = bound[1] != nullptr && bound[1]->IsTrue();
  const bool blank = bound[2] != nullptr && bound[2]->IsTrue();
  SWITCHYARD_ASSIGN_OR_RETURN(Text text, ToText(input, budget));
  text.Append("\n", kFromTemplate);  // so that a line break at the end starts a line of its own
  SWITCHYARD_ASSIGN_OR_RETURN(const Value lines, SplitLines(text, budget));
  std::vector<Value> indented;
  for (const Value& line : lines.list()->items) {
    const bool is_first = indented.empty();
    Text out;
    if (is_first ? first : (blank || !line.text().empty())) out = indention;
    SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(out.size() + line.text().footprint()));
    out.Append(line.text());
    indented.push_back(Value::Of(std::move(out)));
  }
  SWITCHYARD_ASSIGN_OR_RETURN(Text joined, Join(indented, Text("\n", kFromTemplate), budget));
  return Value::Of(std::move(joined));
}

absl::Status ReadIndent(const Value* argument, JsonFormat* format) {
  if (argument == nullptr || argument->is_none()) return absl::OkStatus();
  format->item_separator.assign(1, ',');
  if (argument->is_string()) {
    format->indent = argument->text().bytes();
  } else {
    SWITCHYARD_ASSIGN_OR_RETURN(const int64_t width, IntegerOr(argument, 0));
    constexpr int64_t kWidest = 64;  // times kMaxValueDepth levels: 12 KiB a line at most
    if (width > kWidest) return InvalidArgument("indent is too wide: {}", width);
    format->indent = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  if (format->indent->size() > 64) return InvalidArgument("indent is too wide");
  return absl::OkStatus();
}

absl::Status ReadSeparators(const Value* argument, JsonFormat* format) {
  if (argument == nullptr || argument->is_none()) return absl::OkStatus();
  if (!argument->is_list() || argument->list()->items.size() != 2 ||
      !argument->list()->items[0].is_string() || !argument->list()->items[1].is_string()) {
    return InvalidArgument("separators are not two strings");
  }
  format->item_separator = argument->list()->items[0].text().bytes();
  format->key_separator = argument->list()->items[1].text().bytes();
  return absl::OkStatus();
}

Result ToJsonFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  // The order of parameters is that of the function that Hugging Face's transformers register.
  SWITCHYARD_ASSIGN_OR_RETURN(
      const auto bound,
      arguments.Bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonFormat format;
  format.ensure_ascii = bound[0] != nullptr && bound[0]->IsTrue();
  SWITCHYARD_RETURN_IF_ERROR(ReadIndent(bound[1], &format));
  SWITCHYARD_RETURN_IF_ERROR(ReadSeparators(bound[2], &format));
  format.sort_keys = bound[3] != nullptr && bound[3]->IsTrue();
  SWITCHYARD_ASSIGN_OR_RETURN(Text json, ToJson(input, format, budget));
  return Value::Of(std::move(json));
}

Result Default(const Value& input, const Arguments& arguments, Budget&) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound,
                              arguments.Bind("default", {"default_value", "boolean"}));
  const bool replaces_false = bound[1] != nullptr && bound[1]->IsTrue();
  if (!input.is_undefined() && (!replaces_false || input.IsTrue())) return input;
  return bound[0] == nullptr ? Value::Of(Text()) : *bound[0];
}

Result Abs(const Value& input, const Arguments& arguments, Budget&) {
  SWITCHYARD_RETURN_IF_ERROR(arguments.Bind("abs", {}).status());
  if (input.is_unsigned()) return input;
  if (!input.is_number()) return InvalidArgument("abs of no number: {}", input.kind_name());
  if (input.is_float()) return Value::Of(std::abs(input.real()));
  int64_t integer = 0;
  input.AsInteger(&integer);
  return integer < 0 ? Negate(input) : Value::Of(integer);
}

// The number that a string holds as Python reads it; nothing if it holds none.
std::optional<double> ReadFloat(std::string_view text) {
  const ByteRange range = StripRange(text, true, true, nullptr);
  text = text.substr(range.begin, range.end - range.begin);
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

Result Int(const Value& input, const Arguments& arguments, Budget&) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("int", {"default", "base"}));
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t base, IntegerOr(bound[1], 10));
  if (base != 10) return InvalidArgument("int knows base 10 only, got: {}", base);
  const Value fallback = bound[0] == nullptr ? Value::Of(int64_t{0}) : *bound[0];
  if (input.is_integer()) return input;
  int64_t integer = 0;
  if (input.AsInteger(&integer)) return Value::Of(integer);
  double value = 0;
  if (input.is_string()) {
    const ByteRange range = StripRange(input.text().view(), true, true, nullptr);
    std::string_view digits = input.text().view().substr(range.begin, range.end - range.begin);
    if (!digits.empty() && digits[0] == '+') digits.remove_prefix(1);
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), integer);
    if (result.ec == std::errc() && result.ptr == digits.data() + digits.size()) {
      return Value::Of(integer);
    }
    const std::optional<double> read = ReadFloat(digits);
    if (!read) return fallback;
    value = *read;
  } else if (input.is_float()) {
    value = input.real();
  } else {
    return fallback;
  }
  if (!(std::abs(value) < 0x1p63)) return fallback;
  return Value::Of(static_cast<int64_t>(value));
}

Result Float(const Value& input, const Arguments& arguments, Budget&) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("float", {"default"}));
  if (input.is_number()) return Value::Of(input.AsDouble());
  if (input.is_string()) {
    if (const std::optional<double> value = ReadFloat(input.text().view()))
      return Value::Of(*value);
  }
  return bound[0] == nullptr ? Value::Of(0.0) : *bound[0];
}

struct NamedFilter {
  std::string_view name;
  Filter filter;
};

constexpr NamedFilter kFilters[] = {
    {"abs", Abs},
    {"capitalize", Transform<Capitalize>},
    {"count", LengthFilter},
    {"d", Default},
    {"default", Default},
    {"dictsort", DictSortFilter},
    {"first", FirstFilter},
    {"float", Float},
    {"indent", Indent},
    {"int", Int},
    {"items", ItemsFilter},
    {"join", JoinFilter},
    {"last", LastFilter},
    {"length", LengthFilter},
    {"list", ListFilter},
    {"lower", Transform<Lower>},
    {"map", MapFilter},
    {"reject", RejectFilter},
    {"rejectattr", RejectAttributeFilter},
    {"replace", ReplaceFilter},
    {"reverse", ReverseFilter},
    {"safe", String},
    {"select", SelectFilter},
    {"selectattr", SelectAttributeFilter},
    {"sort", SortFilter},
    {"string", String},
    {"title", Transform<Title>},
    {"tojson", ToJsonFilter},
    {"trim", Trim},
    {"unique", UniqueFilter},
    {"upper", Transform<Upper>},
};

}  // namespace

Filter FindFilter(std::string_view name) {
  for (const NamedFilter& entry : kFilters) {
    if (entry.name == name) return entry.filter;
  }
  return nullptr;
}

}  // namespace switchyard::model::jinja
