// Expressions and calls of the interpreter.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/status.h"
#include "base/status_macros.h"
#include "model/template/filters.h"
#include "model/template/formatting.h"
#include "model/template/interpreter.h"
#include "model/template/methods.h"
#include "model/template/operators.h"
#include "model/template/tests.h"
#include "model/template/unicode.h"

namespace switchyard::model::jinja {

using Kind = Expression::Kind;

absl::StatusOr<Value> Interpreter::Evaluate(const Expression& node) {
  const Frame frame(*this);
  absl::Status status = frame.Check();
  if (status.ok()) status = budget_.ChargeNode();
  if (!status.ok()) return Locate(status, node.line);
  absl::StatusOr<Value> value = EvaluateKind(node);
  if (!value.ok()) return Locate(value.status(), node.line);
  return value;
}

absl::StatusOr<Value> Interpreter::EvaluateKind(const Expression& node) {
  switch (node.kind) {
    case Kind::kConstant:
      return node.constant;
    case Kind::kName:
      return LookUp(node.name);
    case Kind::kList:
    case Kind::kTuple:
      return EvaluateSequence(node);
    case Kind::kMap:
      return EvaluateMap(node);
    case Kind::kNegate:
    case Kind::kPlus:
    case Kind::kNot:
      return EvaluateUnary(node);
    case Kind::kAnd:
    case Kind::kOr:
      return EvaluateLogic(node);
    case Kind::kBinary:
      return EvaluateBinary(node);
    case Kind::kCompare:
      return EvaluateCompare(node);
    case Kind::kConcat:
      return EvaluateConcat(node);
    case Kind::kConditional:
      return EvaluateConditional(node);
    case Kind::kAttribute:
    case Kind::kSubscript:
    case Kind::kSlice:
      return EvaluateAccess(node);
    case Kind::kCall:
      return EvaluateCall(node);
    case Kind::kFilter:
      return EvaluateFilter(node);
    case Kind::kTest:
      return EvaluateTest(node);
    case Kind::kCaptured:
      return *captured_;
  }
  return Internal("expression of unknown kind");
}

Value Interpreter::LookUp(const std::string& name) const {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    const auto found = scope->variables.find(name);
    if (found != scope->variables.end()) return found->second;
  }
  if (const Value* value = variables_->Find(name)) return *value;
  if (name == "range") return Value::Of(Builtin::kRange);
  if (name == "namespace") return Value::Of(Builtin::kNamespace);
  if (name == "dict") return Value::Of(Builtin::kDict);
  if (name == "raise_exception") return Value::Of(Builtin::kRaiseException);
  if (name == "strftime_now") return Value::Of(Builtin::kStrftimeNow);
  return Value::MakeUndefined(&name);
}

absl::StatusOr<Value> Interpreter::EvaluateSequence(const Expression& node) {
  std::vector<Value> items;
  items.reserve(node.operands.size());
  for (const ExpressionPtr& operand : node.operands) {
    SWITCHYARD_RETURN_IF_ERROR(budget_.ChargeSteps(1));
    SWITCHYARD_ASSIGN_OR_RETURN(Value item, Evaluate(*operand));
    items.push_back(std::move(item));
  }
  return MakeList(std::move(items), node.kind == Kind::kTuple);
}

absl::StatusOr<Value> Interpreter::EvaluateMap(const Expression& node) {
  Map map;
  for (size_t i = 0; i + 1 < node.operands.size(); i += 2) {
    SWITCHYARD_RETURN_IF_ERROR(budget_.ChargeSteps(1));
    SWITCHYARD_ASSIGN_OR_RETURN(const Value key, Evaluate(*node.operands[i]));
    SWITCHYARD_ASSIGN_OR_RETURN(Value value, Evaluate(*node.operands[i + 1]));
    if (!key.is_string()) return InvalidArgument("key of a map is no string: {}", key.kind_name());
    map.Set(std::make_shared<const Text>(key.text()), std::move(value));
  }
  return MakeMap(std::move(map));
}

absl::StatusOr<Value> Interpreter::EvaluateUnary(const Expression& node) {
  SWITCHYARD_ASSIGN_OR_RETURN(Value operand, Evaluate(*node.operands[0]));
  if (node.kind == Kind::kNot) return Value::Of(!operand.IsTrue());
  if (node.kind == Kind::kNegate) return Negate(operand);
  if (operand.is_undefined()) return UndefinedError(operand);
  if (!operand.is_number()) {
    return InvalidArgument("operator does not apply: +{}", operand.kind_name());
  }
  return operand;
}

absl::StatusOr<Value> Interpreter::EvaluateLogic(const Expression& node) {
  const bool stops_at = node.kind == Kind::kOr;
  Value value;
  for (const ExpressionPtr& operand : node.operands) {
    SWITCHYARD_ASSIGN_OR_RETURN(value, Evaluate(*operand));
    if (value.IsTrue() == stops_at) break;
  }
  return value;
}

absl::StatusOr<Value> Interpreter::EvaluateBinary(const Expression& node) {
  SWITCHYARD_ASSIGN_OR_RETURN(const Value left, Evaluate(*node.operands[0]));
  SWITCHYARD_ASSIGN_OR_RETURN(const Value right, Evaluate(*node.operands[1]));
  return Arithmetic(node.op, left, right, budget_);
}

absl::StatusOr<Value> Interpreter::EvaluateCompare(const Expression& node) {
  // a < b < c is a < b and b < c, with b evaluated once.
  SWITCHYARD_ASSIGN_OR_RETURN(Value left, Evaluate(*node.operands[0]));
  for (size_t i = 0; i < node.comparisons.size(); ++i) {
    SWITCHYARD_ASSIGN_OR_RETURN(Value right, Evaluate(*node.operands[i + 1]));
    SWITCHYARD_ASSIGN_OR_RETURN(const bool holds,
                                Compare(node.comparisons[i], left, right, budget_));
    if (!holds) return Value::Of(false);
    left = std::move(right);
  }
  return Value::Of(true);
}

absl::StatusOr<Value> Interpreter::EvaluateConcat(const Expression& node) {
  Text joined;
  for (const ExpressionPtr& operand : node.operands) {
    SWITCHYARD_ASSIGN_OR_RETURN(const Value value, Evaluate(*operand));
    SWITCHYARD_ASSIGN_OR_RETURN(const Text text, ToText(value, budget_));
    SWITCHYARD_RETURN_IF_ERROR(budget_.ChargeText(text.footprint()));
    if (joined.size() + text.size() > kMaxTextBytes) {
      return budget_.ChargeText(joined.size() + text.size());
    }
    joined.Append(text);
  }
  return Value::Of(std::move(joined));
}

absl::StatusOr<Value> Interpreter::EvaluateConditional(const Expression& node) {
  SWITCHYARD_ASSIGN_OR_RETURN(const Value condition, Evaluate(*node.operands[1]));
  if (condition.IsTrue()) return Evaluate(*node.operands[0]);
  return node.operands.size() > 2 ? Evaluate(*node.operands[2]) : Value();
}

absl::StatusOr<Value> Interpreter::EvaluateAccess(const Expression& node) {
  SWITCHYARD_ASSIGN_OR_RETURN(const Value object, Evaluate(*node.operands[0]));
  if (node.kind == Kind::kAttribute) return Attribute(object, node.name, budget_);
  Value parts[3];
  for (size_t i = 1; i < node.operands.size(); ++i) {
    if (node.operands[i] == nullptr) continue;
    SWITCHYARD_ASSIGN_OR_RETURN(parts[i - 1], Evaluate(*node.operands[i]));
  }
  if (node.kind == Kind::kSubscript) return Subscript(object, parts[0], budget_);
  return Slice(object, parts[0], parts[1], parts[2], budget_);
}

absl::StatusOr<Arguments> Interpreter::EvaluateArguments(const Expression& node) {
  Arguments arguments;
  arguments.positional.reserve(node.operands.size() - 1);
  for (size_t i = 1; i < node.operands.size(); ++i) {
    SWITCHYARD_ASSIGN_OR_RETURN(Value value, Evaluate(*node.operands[i]));
    arguments.positional.push_back(std::move(value));
  }
  for (const NamedArgument& argument : node.named) {
    SWITCHYARD_ASSIGN_OR_RETURN(Value value, Evaluate(*argument.value));
    arguments.named.emplace_back(argument.name, std::move(value));
  }
  return arguments;
}

absl::StatusOr<Value> Interpreter::EvaluateFilter(const Expression& node) {
  SWITCHYARD_RETURN_IF_ERROR(budget_.ChargeSteps(1));
  SWITCHYARD_ASSIGN_OR_RETURN(const Value input, Evaluate(*node.operands[0]));
  SWITCHYARD_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node));
  return FindFilter(node.name)(input, arguments, budget_);  // the parser knows that it exists
}

absl::StatusOr<Value> Interpreter::EvaluateTest(const Expression& node) {
  SWITCHYARD_ASSIGN_OR_RETURN(const Value input, Evaluate(*node.operands[0]));
  SWITCHYARD_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node));
  SWITCHYARD_ASSIGN_OR_RETURN(const bool holds, FindTest(node.name)(input, arguments, budget_));
  return Value::Of(holds);
}

absl::StatusOr<Value> Interpreter::EvaluateCall(const Expression& node) {
  SWITCHYARD_RETURN_IF_ERROR(budget_.ChargeSteps(1));
  SWITCHYARD_ASSIGN_OR_RETURN(const Value callee, Evaluate(*node.operands[0]));
  if (callee.is_undefined()) return UndefinedError(callee);
  if (!callee.is_callable()) return InvalidArgument("cannot be called: {}", callee.kind_name());
  SWITCHYARD_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node));
  if (const BoundMethod* method = callee.as_method()) {
    return CallMethod(*method, arguments, budget_);
  }
  if (const MacroValue* macro = callee.as_macro()) return CallMacro(*macro, arguments);
  return CallBuiltin(*callee.as_builtin(), arguments);
}

absl::StatusOr<Value> Interpreter::CallMacro(const MacroValue& macro, const Arguments& arguments) {
  const Statement& definition = *macro.definition;
  const std::string& name = definition.target.name;
  const std::vector<Parameter>& parameters = definition.parameters;
  ScopePtr defined_in = macro.scope.lock();
  if (defined_in == nullptr) return InvalidArgument("macro left the block it belongs to: {}", name);
  if (num_calls_ >= kMaxNesting) {
    return ResourceExhausted("macros call each other too deep, limit: {}", kMaxNesting);
  }
  if (arguments.positional.size() > parameters.size()) {
    return InvalidArgument("too many arguments: {}, wanted at most: {}, got: {}", name,
                           parameters.size(), arguments.positional.size());
  }
  const auto scope = std::make_shared<Scope>(Scope{std::move(defined_in), {}});
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    scope->variables[parameters[i].name] = arguments.positional[i];
  }
  for (const auto& [argument, value] : arguments.named) {
    const auto parameter =
        std::find_if(parameters.begin(), parameters.end(),
                     [&, wanted = argument](const Parameter& p) { return p.name == wanted; });
    if (parameter == parameters.end()) {
      return InvalidArgument("no such argument: {} of {}", argument, name);
    }
    if (!scope->variables.emplace(parameter->name, value).second) {
      return InvalidArgument("argument is given twice: {} of {}", argument, name);
    }
  }
  ++num_calls_;
  const ScopePtr caller_scope = std::exchange(scope_, scope);
  for (const Parameter& parameter : parameters) {
    if (scope->variables.contains(parameter.name)) continue;
    Value missing = Value::MakeUndefined(&parameter.name);
    if (parameter.default_value != nullptr) {
      SWITCHYARD_ASSIGN_OR_RETURN(missing, Evaluate(*parameter.default_value));
    }
    scope->variables[parameter.name] = std::move(missing);
  }
  SWITCHYARD_ASSIGN_OR_RETURN(Text text, Capture(definition.body, scope));
  scope_ = caller_scope;
  --num_calls_;
  return Value::Of(std::move(text));
}

absl::StatusOr<Value> Interpreter::CallBuiltin(Builtin builtin, const Arguments& arguments) {
  switch (builtin) {
    case Builtin::kRange:
      return Range(arguments);
    case Builtin::kNamespace:
      return MakeNamespace(arguments);
    case Builtin::kDict:
      return MakeDict(arguments);
    case Builtin::kRaiseException:
      return RaiseException(arguments);
    case Builtin::kStrftimeNow:
      return FormatTime(arguments);
  }
  return Internal("function of unknown kind");
}

absl::StatusOr<Value> Interpreter::Range(const Arguments& arguments) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("range", {"start", "stop", "step"}));
  int64_t parts[3] = {0, 0, 1};
  for (size_t i = 0; i < 3; ++i) {
    if (bound[i] != nullptr && !bound[i]->AsInteger(&parts[i])) {
      return InvalidArgument("argument of range is no integer: {}", bound[i]->kind_name());
    }
  }
  if (bound[0] == nullptr) return InvalidArgument("range needs an argument");
  if (bound[1] == nullptr) std::swap(parts[0], parts[1]);
  const auto [start, stop, step] = parts;
  if (step == 0) return InvalidArgument("step of range is zero");
  // In floating point nothing overflows, and the limit is far below where it gets inexact.
  const double count =
      (static_cast<double>(stop) - static_cast<double>(start)) / static_cast<double>(step);
  if (count > static_cast<double>(kMaxRange)) {
    return ResourceExhausted("range is too long, limit: {}", kMaxRange);
  }
  std::vector<Value> items;
  int64_t at = start;
  while (step > 0 ? at < stop : at > stop) {
    SWITCHYARD_RETURN_IF_ERROR(budget_.ChargeSteps(1));
    items.push_back(Value::Of(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return MakeList(std::move(items));
}

absl::StatusOr<Value> Interpreter::MakeDict(const Arguments& arguments) {
  Map map;
  for (const Value& source : arguments.positional) {
    if (!source.is_map()) return InvalidArgument("argument is no map: {}", source.kind_name());
    const std::vector<Map::Entry>& entries = source.map()->entries();
    SWITCHYARD_RETURN_IF_ERROR(budget_.ChargeSteps(static_cast<int64_t>(entries.size())));
    for (const Map::Entry& entry : entries) map.Set(entry.key, entry.value);
  }
  for (const auto& [name, value] : arguments.named) {
    SWITCHYARD_RETURN_IF_ERROR(budget_.ChargeSteps(1));
    map.Set(std::make_shared<const Text>(std::string(name), kFromTemplate), value);
  }
  return MakeMap(std::move(map));
}

absl::StatusOr<Value> Interpreter::MakeNamespace(const Arguments& arguments) {
  SWITCHYARD_ASSIGN_OR_RETURN(const Value fields, MakeDict(arguments));
  auto made = std::make_unique<Namespace>();
  for (const Map::Entry& entry : fields.map()->entries()) {
    made->fields[entry.key->bytes()] = entry.value;
  }
  namespaces_.push_back(std::move(made));
  return Value::Of(namespaces_.back().get());
}

absl::Status Interpreter::RaiseException(const Arguments& arguments) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("raise_exception", {"message"}));
  Text message;
  if (bound[0] != nullptr) {
    SWITCHYARD_ASSIGN_OR_RETURN(message, ToText(*bound[0], budget_));
  }
  constexpr size_t kLongest = 4096;  // an error message, not a document
  size_t end = std::min(message.size(), kLongest);
  while (end > 0 && end < message.size() && (message.view()[end] & 0xC0) == 0x80) --end;
  is_located_ = true;  // it is addressed to whoever sent the messages, not to the template's author
  return InvalidArgument("{}", message.view().substr(0, end));
}

absl::StatusOr<Value> Interpreter::FormatTime(const Arguments& arguments) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("strftime_now", {"format"}));
  if (bound[0] == nullptr || !bound[0]->is_string() || bound[0]->text().size() > 256) {
    return InvalidArgument("strftime_now needs a short format string");
  }
  std::tm utc = {};
  gmtime_r(&now_, &utc);
  // The mark tells an empty result from one that does not fit.
  const std::string format = bound[0]->text().bytes() + "!";
  char buffer[4096];
  const size_t length = std::strftime(buffer, sizeof(buffer), format.c_str(), &utc);
  if (length == 0) return InvalidArgument("date is too long");
  return Value::Of(Text(std::string(buffer, length - 1), bound[0]->text().strongest_origin()));
}

}  // namespace switchyard::model::jinja
