#include "model/template/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/status_macros.h"
#include "model/template/methods.h"
#include "model/template/unicode.h"

namespace switchyard::model::jinja {
namespace {

std::string_view Symbol(Operator op) {
  constexpr std::string_view kSymbols[] = {
      "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return kSymbols[static_cast<size_t>(op)];
}

absl::Status WrongKinds(Operator op, const Value& left, const Value& right) {
  if (left.is_undefined()) return UndefinedError(left);
  if (right.is_undefined()) return UndefinedError(right);
  return InvalidArgument("operator does not apply: {} {} {}", left.kind_name(), Symbol(op),
                         right.kind_name());
}

absl::Status OutOfRange() { return InvalidArgument("integer does not fit 64 bits"); }

absl::StatusOr<Value> IntegerPower(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return InvalidArgument("division by zero");
    return Value::Of(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (true) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return OutOfRange();
    exponent >>= 1;
    if (exponent == 0) return Value::Of(result);
    if (__builtin_mul_overflow(base, base, &base)) return OutOfRange();
  }
}

absl::StatusOr<Value> IntegerArithmetic(Operator op, int64_t left, int64_t right) {
  int64_t result = 0;
  switch (op) {
    case Operator::kAdd:
      if (__builtin_add_overflow(left, right, &result)) return OutOfRange();
      return Value::Of(result);
    case Operator::kSubtract:
      if (__builtin_sub_overflow(left, right, &result)) return OutOfRange();
      return Value::Of(result);
    case Operator::kMultiply:
      if (__builtin_mul_overflow(left, right, &result)) return OutOfRange();
      return Value::Of(result);
    case Operator::kPower:
      return IntegerPower(left, right);
    default:
      break;
  }
  if (right == 0) return InvalidArgument("division by zero");
  if (op == Operator::kDivide) {
    return Value::Of(static_cast<double>(left) / static_cast<double>(right));
  }
  if (right == -1) {  // the one divisor whose quotient can leave the range
    if (op == Operator::kModulo) return Value::Of(int64_t{0});
    if (left == std::numeric_limits<int64_t>::min()) return OutOfRange();
    return Value::Of(-left);
  }
  // Python rounds towards minus infinity, C++ towards zero.
  const int64_t remainder = left % right;
  const bool rounds_down = remainder != 0 && ((remainder < 0) != (right < 0));
  if (op == Operator::kModulo) return Value::Of(rounds_down ? remainder + right : remainder);
  return Value::Of(left / right - (rounds_down ? 1 : 0));
}

absl::StatusOr<Value> FloatArithmetic(Operator op, double left, double right) {
  switch (op) {
    case Operator::kAdd:
      return Value::Of(left + right);
    case Operator::kSubtract:
      return Value::Of(left - right);
    case Operator::kMultiply:
      return Value::Of(left * right);
    case Operator::kPower:
      if (left == 0.0 && right < 0.0) return InvalidArgument("division by zero");
      return Value::Of(std::pow(left, right));
    default:
      break;
  }
  if (right == 0.0) return InvalidArgument("division by zero");
  if (op == Operator::kDivide) return Value::Of(left / right);
  double remainder = std::fmod(left, right);
  if (remainder != 0.0 && ((remainder < 0.0) != (right < 0.0))) remainder += right;
  if (op == Operator::kModulo) {
    return Value::Of(remainder == 0.0 ? std::copysign(0.0, right) : remainder);
  }
  return Value::Of(std::round((left - remainder) / right));
}

absl::StatusOr<Value> Repeat(const Value& sequence, int64_t count, Budget& budget) {
  count = std::max<int64_t>(count, 0);
  if (sequence.is_string()) {
    const Text& text = sequence.text();
    if (text.empty() || count == 0) return Value::Of(Text());
    if (static_cast<uint64_t>(count) > kMaxTextBytes) return budget.ChargeText(kMaxTextBytes + 1);
    const size_t num_copies = static_cast<size_t>(count);
    SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(text.size() * num_copies));
    if (text.runs().size() > 1) {  // one run stays one
      SWITCHYARD_RETURN_IF_ERROR(
          budget.ChargeText(text.runs().size() * sizeof(Text::Run) * num_copies));
    }
    Text repeated;
    for (int64_t i = 0; i < count; ++i) repeated.Append(text);
    return Value::Of(std::move(repeated));
  }
  const List& list = *sequence.list();
  if (list.items.empty() || count == 0) return MakeList({}, list.is_tuple);
  if (count > kMaxSteps) return budget.ChargeSteps(count);
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeSteps(static_cast<int64_t>(list.items.size()) * count));
  std::vector<Value> items;
  for (int64_t i = 0; i < count; ++i) {
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return MakeList(std::move(items), list.is_tuple);
}

absl::StatusOr<Value> Concatenate(const Text& left, const Text& right, Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(left.size() + right.size()));
  SWITCHYARD_RETURN_IF_ERROR(
      budget.ChargeText((left.runs().size() + right.runs().size()) * sizeof(Text::Run)));
  Text joined = left;
  joined.Append(right);
  return Value::Of(std::move(joined));
}

// Python's order; only numbers and strings have one here.
absl::StatusOr<int> Order(Operator op, const Value& left, const Value& right, Budget& budget) {
  if (left.is_number() && right.is_number()) {
    int64_t a = 0;
    int64_t b = 0;
    if (left.AsInteger(&a) && right.AsInteger(&b)) return a < b ? -1 : a > b ? 1 : 0;
    const double x = left.AsDouble();
    const double y = right.AsDouble();
    // Not comparable: every operator but != is false, and 2 makes it so below.
    if (std::isnan(x) || std::isnan(y)) return 2;
    return x < y ? -1 : x > y ? 1 : 0;
  }
  if (!left.is_string() || !right.is_string()) return WrongKinds(op, left, right);
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(std::min(left.text().size(), right.text().size())));
  // UTF-8 sorts by bytes as Python sorts by code points.
  const int order = left.text().bytes().compare(right.text().bytes());
  return order < 0 ? -1 : order > 0 ? 1 : 0;
}

absl::StatusOr<bool> IsIn(const Value& item, const Value& container, Budget& budget) {
  if (container.is_undefined()) return false;
  if (container.is_string()) {
    if (!item.is_string()) return WrongKinds(Operator::kIn, item, container);
    SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(container.text().size()));
    return Find(container.text().view(), item.text().view(), 0) != std::string_view::npos;
  }
  if (container.is_map()) {
    return item.is_string() && container.map()->Find(item.text().view()) != nullptr;
  }
  if (container.is_list()) {
    for (const Value& element : container.list()->items) {
      SWITCHYARD_ASSIGN_OR_RETURN(const bool equal, Equals(item, element, budget));
      if (equal) return true;
    }
    return false;
  }
  return WrongKinds(Operator::kIn, item, container);
}

Value LoopAttribute(const LoopState& loop, const std::string& name) {
  const auto length = static_cast<int64_t>(loop.items->items.size());
  const auto item = [&](int64_t index) {
    if (index < 0 || index >= length) return Value::MakeUndefined(&name);
    return loop.items->items[static_cast<size_t>(index)];
  };
  if (name == "index0") return Value::Of(loop.index);
  if (name == "index") return Value::Of(loop.index + 1);
  if (name == "revindex0") return Value::Of(length - loop.index - 1);
  if (name == "revindex") return Value::Of(length - loop.index);
  if (name == "first") return Value::Of(loop.index == 0);
  if (name == "last") return Value::Of(loop.index + 1 == length);
  if (name == "length") return Value::Of(length);
  // Jinja2 counts recursive loops there, which are not supported.
  if (name == "depth") return Value::Of(int64_t{1});
  if (name == "depth0") return Value::Of(int64_t{0});
  if (name == "previtem") return item(loop.index - 1);
  if (name == "nextitem") return item(loop.index + 1);
  return Value::MakeUndefined(&name);
}

// The elements of a slice as Python counts them.
struct SliceRange {
  int64_t start;
  int64_t step;
  int64_t count;
};

absl::Status ReadSlicePart(const Value& part, std::optional<int64_t>* out) {
  if (part.is_undefined() && part.undefined_name() != nullptr) return UndefinedError(part);
  if (part.is_undefined() || part.is_none()) return absl::OkStatus();
  int64_t value = 0;
  if (!part.AsInteger(&value)) {
    return InvalidArgument("slice index is no integer: {}", part.kind_name());
  }
  *out = value;
  return absl::OkStatus();
}

absl::StatusOr<SliceRange> ResolveSlice(const Value& start, const Value& stop, const Value& step,
                                        int64_t length) {
  std::optional<int64_t> parts[3];
  SWITCHYARD_RETURN_IF_ERROR(ReadSlicePart(start, &parts[0]));
  SWITCHYARD_RETURN_IF_ERROR(ReadSlicePart(stop, &parts[1]));
  SWITCHYARD_RETURN_IF_ERROR(ReadSlicePart(step, &parts[2]));
  // Steps beyond any length all select one element; clamping keeps the sums below in range.
  const int64_t limit = static_cast<int64_t>(kMaxTextBytes) * 2;
  const int64_t by = std::clamp(parts[2].value_or(1), -limit, limit);
  if (by == 0) return InvalidArgument("slice step is zero");
  const int64_t lowest = by > 0 ? 0 : -1;
  const int64_t highest = by > 0 ? length : length - 1;
  const auto place = [&](std::optional<int64_t> index, int64_t missing) {
    if (!index) return missing;
    const int64_t from_start = *index < 0 ? *index + length : *index;
    return std::clamp(from_start, lowest, highest);
  };
  const int64_t first = place(parts[0], by > 0 ? lowest : highest);
  const int64_t last = place(parts[1], by > 0 ? highest : lowest);
  const int64_t span = by > 0 ? last - first : first - last;
  return SliceRange{first, by, span <= 0 ? 0 : (span - 1) / std::abs(by) + 1};
}

// Byte offset of every code point, and of the end.
std::vector<size_t> CodePointOffsets(std::string_view text) {
  std::vector<size_t> offsets;
  for (size_t at = 0; at < text.size(); at += DecodeAt(text, at).length) offsets.push_back(at);
  offsets.push_back(text.size());
  return offsets;
}

absl::StatusOr<Value> SliceText(const Text& text, const Value& start, const Value& stop,
                                const Value& step, Budget& budget) {
  // Offsets take eight bytes a character.
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(text.size()));
  SWITCHYARD_RETURN_IF_ERROR(
      budget.ChargeSteps(static_cast<int64_t>(text.size() / Budget::kBytesPerUnit)));
  const std::vector<size_t> offsets = CodePointOffsets(text.view());
  SWITCHYARD_ASSIGN_OR_RETURN(
      const SliceRange range,
      ResolveSlice(start, stop, step, static_cast<int64_t>(offsets.size()) - 1));
  const auto offset = [&](int64_t index) { return offsets[static_cast<size_t>(index)]; };
  if (range.count == 0) return Value::Of(Text());
  if (range.step == 1) {
    return Value::Of(text.Slice(offset(range.start), offset(range.start + range.count)));
  }
  Text slice;
  for (int64_t i = 0; i < range.count; ++i) {
    const int64_t index = range.start + i * range.step;
    slice.AppendSlice(text, offset(index), offset(index + 1));
  }
  return Value::Of(std::move(slice));
}

}  // namespace

absl::StatusOr<Value> Arithmetic(Operator op, const Value& left, const Value& right,
                                 Budget& budget) {
  int64_t a = 0;
  int64_t b = 0;
  if (left.AsInteger(&a) && right.AsInteger(&b)) return IntegerArithmetic(op, a, b);
  if (left.is_unsigned() || right.is_unsigned()) return OutOfRange();
  if (left.is_number() && right.is_number()) {
    return FloatArithmetic(op, left.AsDouble(), right.AsDouble());
  }
  if (op == Operator::kAdd) {
    if (left.is_string() && right.is_string())
      return Concatenate(left.text(), right.text(), budget);
    if (left.is_list() && right.is_list() && left.list()->is_tuple == right.list()->is_tuple) {
      std::vector<Value> items = left.list()->items;
      const std::vector<Value>& more = right.list()->items;
      SWITCHYARD_RETURN_IF_ERROR(
          budget.ChargeSteps(static_cast<int64_t>(items.size() + more.size())));
      items.insert(items.end(), more.begin(), more.end());
      return MakeList(std::move(items), left.list()->is_tuple);
    }
  }
  if (op == Operator::kMultiply) {
    if ((left.is_string() || left.is_list()) && right.AsInteger(&b)) return Repeat(left, b, budget);
    if ((right.is_string() || right.is_list()) && left.AsInteger(&a)) {
      return Repeat(right, a, budget);
    }
  }
  return WrongKinds(op, left, right);
}

absl::StatusOr<Value> Negate(const Value& value) {
  int64_t integer = 0;
  if (value.AsInteger(&integer)) return IntegerArithmetic(Operator::kSubtract, 0, integer);
  if (value.is_float()) return Value::Of(-value.real());
  if (value.is_undefined()) return UndefinedError(value);
  return InvalidArgument("operator does not apply: -{}", value.kind_name());
}

absl::StatusOr<bool> Compare(Operator op, const Value& left, const Value& right, Budget& budget) {
  if (op == Operator::kIn || op == Operator::kNotIn) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool found, IsIn(left, right, budget));
    return found == (op == Operator::kIn);
  }
  if (op == Operator::kEqual || op == Operator::kNotEqual) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool equal, Equals(left, right, budget));
    return equal == (op == Operator::kEqual);
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const int order, Order(op, left, right, budget));
  if (op == Operator::kLess) return order == -1;
  if (op == Operator::kLessOrEqual) return order == -1 || order == 0;
  if (op == Operator::kGreater) return order == 1;
  return order == 1 || order == 0;
}

absl::StatusOr<Value> Attribute(const Value& object, const std::string& name, Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeNode());
  if (object.is_undefined()) return UndefinedError(object);
  // As in Jinja2 a method hides a key of its name, and map["items"] is how to get at the key.
  if (HasMethod(object, name)) {
    return Value::Of(std::make_shared<const BoundMethod>(BoundMethod{object, name}));
  }
  if (object.is_map()) {
    if (const Value* value = object.map()->Find(name)) return *value;
  } else if (const Namespace* fields = object.as_namespace()) {
    const auto found = fields->fields.find(name);
    if (found != fields->fields.end()) return found->second;
  } else if (const LoopState* loop = object.as_loop()) {
    return LoopAttribute(*loop, name);
  }
  return Value::MakeUndefined(&name);
}

absl::StatusOr<Value> Subscript(const Value& object, const Value& index, Budget& budget) {
  if (object.is_undefined()) return UndefinedError(object);
  if (index.is_undefined() && index.undefined_name() != nullptr && !object.is_map()) {
    return UndefinedError(index);
  }
  if (index.is_string()) {
    const std::string& name = index.text().bytes();
    if (object.is_map()) {
      if (const Value* value = object.map()->Find(name)) return *value;
    } else if (const Namespace* fields = object.as_namespace()) {
      const auto found = fields->fields.find(name);
      if (found != fields->fields.end()) return found->second;
    }
    if (HasMethod(object, name)) {
      return Value::Of(std::make_shared<const BoundMethod>(BoundMethod{object, name}));
    }
    return Value();
  }
  int64_t position = 0;
  if (!index.AsInteger(&position)) return Value();
  if (object.is_list()) {
    const std::vector<Value>& items = object.list()->items;
    const auto length = static_cast<int64_t>(items.size());
    if (position < 0) position += length;
    if (position < 0 || position >= length) return Value();
    return items[static_cast<size_t>(position)];
  }
  if (!object.is_string()) return Value();
  const Text& text = object.text();
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(text.size()));
  if (position < 0) position += static_cast<int64_t>(CountCodePoints(text.view()));
  if (position < 0) return Value();
  size_t at = 0;
  for (; position > 0 && at < text.size(); --position) at += DecodeAt(text.view(), at).length;
  if (at >= text.size()) return Value();
  return Value::Of(text.Slice(at, at + DecodeAt(text.view(), at).length));
}

absl::StatusOr<Value> Slice(const Value& object, const Value& start, const Value& stop,
                            const Value& step, Budget& budget) {
  if (object.is_undefined()) return UndefinedError(object);
  if (object.is_string()) return SliceText(object.text(), start, stop, step, budget);
  if (!object.is_list()) return Value();
  const List& list = *object.list();
  SWITCHYARD_ASSIGN_OR_RETURN(
      const SliceRange range,
      ResolveSlice(start, stop, step, static_cast<int64_t>(list.items.size())));
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeSteps(range.count));
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(range.count));
  for (int64_t i = 0; i < range.count; ++i) {
    items.push_back(list.items[static_cast<size_t>(range.start + i * range.step)]);
  }
  return MakeList(std::move(items), list.is_tuple);
}

absl::StatusOr<ListPtr> Elements(const Value& value, Budget& budget) {
  if (value.is_list()) return value.list();
  if (value.is_undefined()) return std::make_shared<const List>();
  std::vector<Value> items;
  if (value.is_map()) {
    const std::vector<Map::Entry>& entries = value.map()->entries();
    SWITCHYARD_RETURN_IF_ERROR(budget.ChargeSteps(static_cast<int64_t>(entries.size())));
    for (const Map::Entry& entry : entries) items.push_back(Value::Of(entry.key));
  } else if (value.is_string()) {
    const Text& text = value.text();
    const size_t count = CountCodePoints(text.view());
    SWITCHYARD_RETURN_IF_ERROR(budget.ChargeSteps(static_cast<int64_t>(count)));
    for (size_t at = 0; at < text.size();) {
      const size_t end = at + DecodeAt(text.view(), at).length;
      items.push_back(Value::Of(text.Slice(at, end)));
      at = end;
    }
  } else {
    return InvalidArgument("cannot loop over: {}", value.kind_name());
  }
  auto list = std::make_shared<List>();
  list->items = std::move(items);
  return ListPtr(std::move(list));
}

}  // namespace switchyard::model::jinja
