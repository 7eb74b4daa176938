#include "model/template/formatting.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/status_macros.h"
#include "model/template/unicode.h"

namespace switchyard::model::jinja {
namespace {

// Whether repr() escapes it: control and format characters, separators but the space, private use.
// Python escapes code points that are not assigned yet too; there this differs.
bool IsUnprintable(uint32_t c) {
  struct Range {
    uint32_t first;
    uint32_t last;
  };
  // The Unicode Standard 14.0, general categories Cf and Co.
  constexpr Range kFormat[] = {
      {0xAD, 0xAD},        {0x600, 0x605},     {0x61C, 0x61C},     {0x6DD, 0x6DD},
      {0x70F, 0x70F},      {0x890, 0x891},     {0x8E2, 0x8E2},     {0x180E, 0x180E},
      {0x200B, 0x200F},    {0x202A, 0x202E},   {0x2060, 0x206F},   {0xE000, 0xF8FF},
      {0xFEFF, 0xFEFF},    {0xFFF9, 0xFFFB},   {0x110BD, 0x110BD}, {0x110CD, 0x110CD},
      {0x13430, 0x13438},  {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0001, 0xE007F},
      {0xF0000, 0x10FFFF},
  };
  if (c == ' ') return false;
  if (c < 0x20 || (c >= 0x7F && c < 0xA0) || IsPythonSpace(c)) return true;
  return std::any_of(std::begin(kFormat), std::end(kFormat),
                     [c](const Range& range) { return c >= range.first && c <= range.last; });
}

// A string literal of Python.
void AppendRepr(std::string_view text, std::string* out) {
  const bool doubled = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = doubled ? '"' : '\'';
  out->push_back(quote);
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = DecodeAt(text, at);
    if (c.value == '\n') {
      out->append("\\n");
    } else if (c.value == '\r') {
      out->append("\\r");
    } else if (c.value == '\t') {
      out->append("\\t");
    } else if (c.value == '\\' || c.value == static_cast<unsigned char>(quote)) {
      out->push_back('\\');
      out->push_back(static_cast<char>(c.value));
    } else if (IsUnprintable(c.value)) {
      out->append(c.value < 0x100     ? fmt::format("\\x{:02x}", c.value)
                  : c.value < 0x10000 ? fmt::format("\\u{:04x}", c.value)
                                      : fmt::format("\\U{:08x}", c.value));
    } else {
      out->append(text.substr(at, c.length));
    }
    at += c.length;
  }
  out->push_back(quote);
}

void AppendUnicodeEscape(uint32_t code_point, std::string* out) {
  if (code_point < 0x10000) {
    out->append(fmt::format("\\u{:04x}", code_point));
    return;
  }
  const uint32_t offset = code_point - 0x10000;
  out->append(
      fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (offset >> 10), 0xDC00 + (offset & 0x3FF)));
}

void AppendJsonString(std::string_view text, bool ensure_ascii, std::string* out) {
  out->push_back('"');
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = DecodeAt(text, at);
    switch (c.value) {
      case '"':
        out->append("\\\"");
        break;
      case '\\':
        out->append("\\\\");
        break;
      case '\n':
        out->append("\\n");
        break;
      case '\r':
        out->append("\\r");
        break;
      case '\t':
        out->append("\\t");
        break;
      case '\f':
        out->append("\\f");
        break;
      case '\b':
        out->append("\\b");
        break;
      default:
        if (c.value < 0x20 || (ensure_ascii && c.value > 0x7E)) {
          AppendUnicodeEscape(c.value, out);
        } else {
          out->append(text.substr(at, c.length));
        }
    }
    at += c.length;
  }
  out->push_back('"');
}

std::string IntegerText(const Value& value) {
  if (value.is_unsigned()) return fmt::format("{}", value.unsigned_integer());
  int64_t integer = 0;
  value.AsInteger(&integer);
  return fmt::format("{}", integer);
}

// Collects text that belongs to one origin in the end, and pays for it.
class Writer {
 public:
  explicit Writer(Budget& budget) : budget_(budget) {}

  Budget& budget() { return budget_; }
  std::string* bytes() { return &bytes_; }
  void Touch(const Text& text) { origin_ = std::max(origin_, text.strongest_origin()); }

  // Pays for what was written since the last call; to be called for every value.
  absl::Status Pay() {
    if (bytes_.size() > kMaxTextBytes) return budget_.ChargeText(bytes_.size());
    SWITCHYARD_RETURN_IF_ERROR(budget_.ChargeText(bytes_.size() - paid_));
    paid_ = bytes_.size();
    return absl::OkStatus();
  }
  Text Take() { return Text(std::move(bytes_), origin_); }

 private:
  Budget& budget_;
  std::string bytes_;
  size_t paid_ = 0;
  Origin origin_ = kFromTemplate;
};

absl::Status WriteRepr(const Value& value, Writer& writer) {
  std::string* out = writer.bytes();
  SWITCHYARD_RETURN_IF_ERROR(writer.Pay());
  if (value.is_string()) {
    writer.Touch(value.text());
    AppendRepr(value.text().view(), out);
  } else if (value.is_list()) {
    const List& list = *value.list();
    out->push_back(list.is_tuple ? '(' : '[');
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out->append(", ");
      SWITCHYARD_RETURN_IF_ERROR(WriteRepr(list.items[i], writer));
    }
    if (list.is_tuple && list.items.size() == 1) out->push_back(',');
    out->push_back(list.is_tuple ? ')' : ']');
  } else if (value.is_map()) {
    out->push_back('{');
    bool first = true;
    for (const Map::Entry& entry : value.map()->entries()) {
      if (!first) out->append(", ");
      first = false;
      writer.Touch(*entry.key);
      AppendRepr(entry.key->view(), out);
      out->append(": ");
      SWITCHYARD_RETURN_IF_ERROR(WriteRepr(entry.value, writer));
    }
    out->push_back('}');
  } else if (value.is_none()) {
    out->append("None");
  } else if (value.is_bool()) {
    out->append(value.boolean() ? "True" : "False");
  } else if (value.is_float()) {
    out->append(FloatRepr(value.real()));
  } else if (value.is_integer()) {
    out->append(IntegerText(value));
  } else if (value.is_undefined()) {
    out->append("Undefined");
  } else {
    return InvalidArgument("value has no text: {}", value.kind_name());
  }
  return writer.Pay();
}

class JsonWriter {
 public:
  JsonWriter(const JsonFormat& format, Budget& budget) : format_(format), writer_(budget) {}

  absl::Status Write(const Value& value, int level) {
    std::string* out = writer_.bytes();
    if (value.is_string()) {
      WriteString(value.text());
    } else if (value.is_list()) {
      SWITCHYARD_RETURN_IF_ERROR(WriteList(*value.list(), level));
    } else if (value.is_map()) {
      SWITCHYARD_RETURN_IF_ERROR(WriteMap(*value.map(), level));
    } else if (value.is_none()) {
      out->append("null");
    } else if (value.is_bool()) {
      out->append(value.boolean() ? "true" : "false");
    } else if (value.is_float()) {
      WriteFloat(value.real());
    } else if (value.is_integer()) {
      out->append(IntegerText(value));
    } else if (value.is_undefined()) {
      return UndefinedError(value);
    } else {
      return InvalidArgument("value has no JSON form: {}", value.kind_name());
    }
    return writer_.Pay();
  }

  Text Take() { return writer_.Take(); }

 private:
  void WriteString(const Text& text) {
    writer_.Touch(text);
    AppendJsonString(text.view(), format_.ensure_ascii, writer_.bytes());
  }

  void WriteFloat(double value) {
    if (std::isnan(value)) {
      writer_.bytes()->append("NaN");
    } else if (std::isinf(value)) {
      writer_.bytes()->append(value > 0 ? "Infinity" : "-Infinity");
    } else {
      writer_.bytes()->append(FloatRepr(value));
    }
  }

  void WriteLineBreak(int level) {
    if (!format_.indent) return;
    writer_.bytes()->push_back('\n');
    for (int i = 0; i < level; ++i) writer_.bytes()->append(*format_.indent);
  }

  absl::Status WriteList(const List& list, int level) {
    std::string* out = writer_.bytes();
    if (list.items.empty()) {
      out->append("[]");
      return absl::OkStatus();
    }
    out->push_back('[');
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out->append(format_.item_separator);
      WriteLineBreak(level + 1);
      SWITCHYARD_RETURN_IF_ERROR(Write(list.items[i], level + 1));
    }
    WriteLineBreak(level);
    out->push_back(']');
    return absl::OkStatus();
  }

  absl::Status WriteMap(const Map& map, int level) {
    std::string* out = writer_.bytes();
    if (map.entries().empty()) {
      out->append("{}");
      return absl::OkStatus();
    }
    std::vector<const Map::Entry*> entries;
    entries.reserve(map.entries().size());
    for (const Map::Entry& entry : map.entries()) entries.push_back(&entry);
    if (format_.sort_keys) {
      // UTF-8 sorts by bytes as Python sorts by code points.
      std::sort(entries.begin(), entries.end(), [](const Map::Entry* a, const Map::Entry* b) {
        return a->key->bytes() < b->key->bytes();
      });
    }
    out->push_back('{');
    bool first = true;
    for (const Map::Entry* entry : entries) {
      if (!first) out->append(format_.item_separator);
      first = false;
      WriteLineBreak(level + 1);
      WriteString(*entry->key);
      out->append(format_.key_separator);
      SWITCHYARD_RETURN_IF_ERROR(Write(entry->value, level + 1));
    }
    WriteLineBreak(level);
    out->push_back('}');
    return absl::OkStatus();
  }

  const JsonFormat& format_;
  Writer writer_;
};

}  // namespace

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  // to_chars gives the shortest digits, as d.ddde+XX; only the layout is Python's own.
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), std::abs(value),
                                    std::chars_format::scientific);
  const std::string_view scientific(buffer, static_cast<size_t>(result.ptr - buffer));
  const size_t e = scientific.find('e');
  std::string digits(1, scientific[0]);
  if (e > 2) digits.append(scientific.substr(2, e - 2));
  int exponent = 0;
  const char* exponent_begin = buffer + e + (scientific[e + 1] == '+' ? 2 : 1);
  std::from_chars(exponent_begin, result.ptr, exponent);

  std::string text = std::signbit(value) ? "-" : "";
  const int num_digits = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {  // where repr() changes to scientific notation
    text.push_back(digits[0]);
    if (num_digits > 1) text.append(1, '.').append(digits, 1);
    return text.append(fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent)));
  }
  if (exponent < 0) {
    return text.append("0.").append(static_cast<size_t>(-exponent - 1), '0').append(digits);
  }
  const auto whole = static_cast<size_t>(exponent + 1);
  if (digits.size() <= whole) {
    return text.append(digits).append(whole - digits.size(), '0').append(".0");
  }
  return text.append(digits, 0, whole).append(1, '.').append(digits, whole);
}

absl::StatusOr<Text> ToText(const Value& value, Budget& budget) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) return Text();
  Writer writer(budget);
  SWITCHYARD_RETURN_IF_ERROR(WriteRepr(value, writer));
  return writer.Take();
}

absl::StatusOr<Text> ToJson(const Value& value, const JsonFormat& format, Budget& budget) {
  JsonWriter writer(format, budget);
  SWITCHYARD_RETURN_IF_ERROR(writer.Write(value, 0));
  return writer.Take();
}

}  // namespace switchyard::model::jinja
