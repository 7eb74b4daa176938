#include "model/template/tests.h"

#include <algorithm>

#include "base/status.h"
#include "base/status_macros.h"
#include "model/template/operators.h"

namespace switchyard::model::jinja {
namespace {

using Result = absl::StatusOr<bool>;
using Predicate = bool (*)(const Value&);

// A test without arguments.
template <Predicate predicate>
Result Simple(const Value& value, const Arguments& arguments, Budget&) {
  SWITCHYARD_RETURN_IF_ERROR(arguments.Bind("test", {}).status());
  return predicate(value);
}

// A test that compares with its one argument.
template <Operator op>
Result Compares(const Value& value, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("test", {"other"}));
  if (bound[0] == nullptr) return InvalidArgument("test needs an argument");
  return Compare(op, value, *bound[0], budget);
}

bool IsDefined(const Value& v) { return !v.is_undefined(); }
bool IsUndefined(const Value& v) { return v.is_undefined(); }
bool IsNone(const Value& v) { return v.is_none(); }
bool IsString(const Value& v) { return v.is_string(); }
bool IsMapping(const Value& v) { return v.is_map(); }
bool IsNumber(const Value& v) { return v.is_number(); }
bool IsInteger(const Value& v) { return v.is_integer(); }
bool IsFloat(const Value& v) { return v.is_float(); }
bool IsBoolean(const Value& v) { return v.is_bool(); }
bool IsTrueValue(const Value& v) { return v.is_bool() && v.boolean(); }
bool IsFalseValue(const Value& v) { return v.is_bool() && !v.boolean(); }
// Jinja2's undefined can be looped over and measured, so both of these hold for it.
bool IsSequence(const Value& v) {
  return v.is_string() || v.is_list() || v.is_map() || v.is_undefined();
}
bool IsIterable(const Value& v) { return IsSequence(v) || v.as_loop() != nullptr; }
bool IsCallable(const Value& v) { return v.is_callable(); }

bool IsCase(const Value& v, char first, char last) {
  if (!v.is_string()) return false;
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  bool any = false;
  for (const char c : v.text().view()) {
    if (!is_letter(c)) continue;
    if (c < first || c > last) return false;
    any = true;
  }
  return any;
}
bool IsLower(const Value& v) { return IsCase(v, 'a', 'z'); }
bool IsUpper(const Value& v) { return IsCase(v, 'A', 'Z'); }

Result Divides(const Value& value, int64_t divisor) {
  int64_t integer = 0;
  if (!value.AsInteger(&integer)) return InvalidArgument("no integer: {}", value.kind_name());
  if (divisor == 0) return InvalidArgument("division by zero");
  return divisor == -1 || integer % divisor == 0;
}

template <bool wanted>
Result IsEven(const Value& value, const Arguments& arguments, Budget&) {
  SWITCHYARD_RETURN_IF_ERROR(arguments.Bind("even", {}).status());
  SWITCHYARD_ASSIGN_OR_RETURN(const bool even, Divides(value, 2));
  return even == wanted;
}

Result DivisibleBy(const Value& value, const Arguments& arguments, Budget&) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("divisibleby", {"num"}));
  int64_t divisor = 0;
  if (bound[0] == nullptr || !bound[0]->AsInteger(&divisor)) {
    return InvalidArgument("divisibleby needs an integer");
  }
  return Divides(value, divisor);
}

// Identity, which values without identity have when they are equal and of one kind.
Result SameAs(const Value& value, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("sameas", {"other"}));
  if (bound[0] == nullptr) return InvalidArgument("sameas needs an argument");
  const Value& other = *bound[0];
  if (value.is_list() && other.is_list()) return value.list() == other.list();
  if (value.is_map() && other.is_map()) return value.map() == other.map();
  if (value.kind_name() != other.kind_name()) return false;
  return Equals(value, other, budget);
}

struct NamedTest {
  std::string_view name;
  Test test;
};

constexpr NamedTest kTests[] = {
    {"==", Compares<Operator::kEqual>},
    {"!=", Compares<Operator::kNotEqual>},
    {"<", Compares<Operator::kLess>},
    {"<=", Compares<Operator::kLessOrEqual>},
    {">", Compares<Operator::kGreater>},
    {">=", Compares<Operator::kGreaterOrEqual>},
    {"boolean", Simple<IsBoolean>},
    {"callable", Simple<IsCallable>},
    {"defined", Simple<IsDefined>},
    {"divisibleby", DivisibleBy},
    {"eq", Compares<Operator::kEqual>},
    {"equalto", Compares<Operator::kEqual>},
    {"even", IsEven<true>},
    {"false", Simple<IsFalseValue>},
    {"float", Simple<IsFloat>},
    {"ge", Compares<Operator::kGreaterOrEqual>},
    {"greaterthan", Compares<Operator::kGreater>},
    {"gt", Compares<Operator::kGreater>},
    {"in", Compares<Operator::kIn>},
    {"integer", Simple<IsInteger>},
    {"iterable", Simple<IsIterable>},
    {"le", Compares<Operator::kLessOrEqual>},
    {"lessthan", Compares<Operator::kLess>},
    {"lower", Simple<IsLower>},
    {"lt", Compares<Operator::kLess>},
    {"mapping", Simple<IsMapping>},
    {"ne", Compares<Operator::kNotEqual>},
    {"none", Simple<IsNone>},
    {"number", Simple<IsNumber>},
    {"odd", IsEven<false>},
    {"sameas", SameAs},
    {"sequence", Simple<IsSequence>},
    {"string", Simple<IsString>},
    {"true", Simple<IsTrueValue>},
    {"undefined", Simple<IsUndefined>},
    {"upper", Simple<IsUpper>},
};

}  // namespace

Test FindTest(std::string_view name) {
  for (const NamedTest& entry : kTests) {
    if (entry.name == name) return entry.test;
  }
  return nullptr;
}

}  // namespace switchyard::model::jinja
