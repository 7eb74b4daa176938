// Statements; expressions are in evaluate.cc.
#include "model/template/interpreter.h"

#include <utility>

#include "base/status.h"
#include "base/status_macros.h"
#include "model/template/formatting.h"
#include "model/template/operators.h"

namespace switchyard::model::jinja {

Interpreter::Interpreter(const Program& program, MapPtr variables, std::time_t now)
    : program_(program), variables_(std::move(variables)), now_(now) {}

absl::StatusOr<Text> Interpreter::Run() {
  SWITCHYARD_RETURN_IF_ERROR(ExecuteBlock(program_.body).status());
  return std::move(output_);
}

absl::Status Interpreter::Locate(const absl::Status& status, int line) {
  if (std::exchange(is_located_, true)) return status;
  return WithContext(status, fmt::format("line {}", line));
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteBlock(const Block& block) {
  for (const auto& statement : block) {
    SWITCHYARD_ASSIGN_OR_RETURN(const Flow flow, Execute(*statement));
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

absl::StatusOr<Interpreter::Flow> Interpreter::Execute(const Statement& statement) {
  const Frame frame(*this);
  absl::Status status = frame.Check();
  if (status.ok()) status = budget_.ChargeSteps(1);
  if (!status.ok()) return Locate(status, statement.line);
  const absl::StatusOr<Flow> flow = ExecuteKind(statement);
  if (!flow.ok()) return Locate(flow.status(), statement.line);
  return flow;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteKind(const Statement& statement) {
  switch (statement.kind) {
    case Statement::Kind::kData:
      SWITCHYARD_RETURN_IF_ERROR(Write(statement.constant.text()));
      return Flow::kNormal;
    case Statement::Kind::kOutput:
      SWITCHYARD_RETURN_IF_ERROR(ExecuteOutput(statement));
      return Flow::kNormal;
    case Statement::Kind::kIf:
      return ExecuteIf(statement);
    case Statement::Kind::kFor:
      return ExecuteFor(statement);
    case Statement::Kind::kSet: {
      SWITCHYARD_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
      SWITCHYARD_RETURN_IF_ERROR(Assign(statement.target, value));
      return Flow::kNormal;
    }
    case Statement::Kind::kSetBlock:
      SWITCHYARD_RETURN_IF_ERROR(ExecuteSetBlock(statement));
      return Flow::kNormal;
    case Statement::Kind::kMacro:
      scope_->variables[statement.target.name] =
          Value::Of(std::make_shared<const MacroValue>(MacroValue{&statement, scope_}));
      return Flow::kNormal;
    case Statement::Kind::kWith:
      return ExecuteWith(statement);
    case Statement::Kind::kBreak:
      return Flow::kBreak;
    case Statement::Kind::kContinue:
      return Flow::kContinue;
  }
  return Internal("statement of unknown kind");
}

absl::Status Interpreter::Write(const Text& text) {
  SWITCHYARD_RETURN_IF_ERROR(budget_.ChargeText(text.footprint()));
  if (sink_->size() + text.size() > kMaxTextBytes) {
    return ResourceExhausted("output is too long, limit in bytes: {}", kMaxTextBytes);
  }
  sink_->Append(text);
  return absl::OkStatus();
}

absl::Status Interpreter::ExecuteOutput(const Statement& statement) {
  SWITCHYARD_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
  if (value.is_string()) return Write(value.text());
  SWITCHYARD_ASSIGN_OR_RETURN(const Text text, ToText(value, budget_));
  return Write(text);
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteIf(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (branch.condition != nullptr) {
      SWITCHYARD_ASSIGN_OR_RETURN(const Value condition, Evaluate(*branch.condition));
      if (!condition.IsTrue()) continue;
    }
    return ExecuteBlock(branch.body);
  }
  return Flow::kNormal;
}

absl::StatusOr<ListPtr> Interpreter::LoopItems(const Statement& statement) {
  SWITCHYARD_ASSIGN_OR_RETURN(const Value iterable, Evaluate(*statement.expression));
  SWITCHYARD_ASSIGN_OR_RETURN(ListPtr items, Elements(iterable, budget_));
  if (statement.filter == nullptr) return items;
  const ScopePtr outer = scope_;
  auto kept = std::make_shared<List>();
  kept->depth = items->depth;
  for (const Value& item : items->items) {
    SWITCHYARD_RETURN_IF_ERROR(budget_.ChargeSteps(1));
    scope_ = std::make_shared<Scope>(Scope{outer, {}});
    SWITCHYARD_RETURN_IF_ERROR(Assign(statement.target, item));
    SWITCHYARD_ASSIGN_OR_RETURN(const Value condition, Evaluate(*statement.filter));
    if (condition.IsTrue()) kept->items.push_back(item);
  }
  scope_ = outer;
  return ListPtr(std::move(kept));
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteFor(const Statement& statement) {
  SWITCHYARD_ASSIGN_OR_RETURN(const ListPtr items, LoopItems(statement));
  const ScopePtr outer = scope_;
  bool any_complete = false;
  if (!items->items.empty()) {
    const bool is_watched = sink_ == &output_;
    if (is_watched) borders_.BeginLoop();
    SWITCHYARD_ASSIGN_OR_RETURN(any_complete, Iterate(statement, items));
    if (is_watched) borders_.EndLoop();
  }
  Flow flow = Flow::kNormal;
  // Jinja2 runs the else also where break or continue ended every iteration.
  if (!any_complete && !statement.else_body.empty()) {
    scope_ = std::make_shared<Scope>(Scope{outer, {}});
    SWITCHYARD_ASSIGN_OR_RETURN(flow, ExecuteBlock(statement.else_body));
  }
  scope_ = outer;
  return flow;  // break and continue end here, but those of an else belong to the loop around
}

absl::StatusOr<bool> Interpreter::Iterate(const Statement& statement, const ListPtr& items) {
  const ScopePtr outer = scope_;
  const auto loop = std::make_shared<LoopState>(LoopState{items, 0});
  bool any_complete = false;
  for (const Value& item : items->items) {
    SWITCHYARD_RETURN_IF_ERROR(budget_.ChargeSteps(1));
    scope_ = std::make_shared<Scope>(Scope{outer, {}});
    scope_->variables["loop"] = Value::Of(loop);
    SWITCHYARD_RETURN_IF_ERROR(Assign(statement.target, item));
    const size_t begin = output_.size();
    SWITCHYARD_ASSIGN_OR_RETURN(const Flow flow, ExecuteBlock(statement.body));
    if (sink_ == &output_) borders_.Iteration(item, begin, output_.size());
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNormal) any_complete = true;
    ++loop->index;
  }
  return any_complete;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteWith(const Statement& statement) {
  // The values belong to the scope around the block, the names to the block.
  std::vector<Value> values;
  for (const auto& [target, expression] : statement.bindings) {
    SWITCHYARD_ASSIGN_OR_RETURN(Value value, Evaluate(*expression));
    values.push_back(std::move(value));
  }
  const ScopePtr outer = scope_;
  scope_ = std::make_shared<Scope>(Scope{outer, {}});
  for (size_t i = 0; i < values.size(); ++i) {
    SWITCHYARD_RETURN_IF_ERROR(Assign(statement.bindings[i].first, values[i]));
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const Flow flow, ExecuteBlock(statement.body));
  scope_ = outer;
  return flow;
}

absl::StatusOr<Text> Interpreter::Capture(const Block& block, ScopePtr scope) {
  Text captured;
  Text* const outer_sink = std::exchange(sink_, &captured);
  ScopePtr outer_scope = std::exchange(scope_, std::move(scope));
  const absl::Status status = ExecuteBlock(block).status();
  sink_ = outer_sink;
  scope_ = std::move(outer_scope);
  SWITCHYARD_RETURN_IF_ERROR(status);
  return captured;
}

absl::Status Interpreter::ExecuteSetBlock(const Statement& statement) {
  SWITCHYARD_ASSIGN_OR_RETURN(Text text,
                              Capture(statement.body, std::make_shared<Scope>(Scope{scope_, {}})));
  const Value captured = Value::Of(std::move(text));
  if (statement.expression == nullptr) return Assign(statement.target, captured);
  const Value* const outer = std::exchange(captured_, &captured);
  absl::StatusOr<Value> filtered = Evaluate(*statement.expression);
  captured_ = outer;
  SWITCHYARD_RETURN_IF_ERROR(filtered.status());
  return Assign(statement.target, *filtered);
}

absl::Status Interpreter::Assign(const Target& target, const Value& value) {
  if (!target.unpacked.empty()) {
    SWITCHYARD_ASSIGN_OR_RETURN(const ListPtr items, Elements(value, budget_));
    if (items->items.size() != target.unpacked.size()) {
      return InvalidArgument("cannot unpack, wanted values: {}, got: {}", target.unpacked.size(),
                             items->items.size());
    }
    for (size_t i = 0; i < items->items.size(); ++i) {
      SWITCHYARD_RETURN_IF_ERROR(Assign(target.unpacked[i], items->items[i]));
    }
    return absl::OkStatus();
  }
  if (target.attribute.empty()) {
    scope_->variables[target.name] = value;
    return absl::OkStatus();
  }
  Namespace* const fields = LookUp(target.name).as_namespace();
  if (fields == nullptr) return InvalidArgument("not a namespace: {}", target.name);
  fields->fields[target.attribute] = value;
  return absl::OkStatus();
}

}  // namespace switchyard::model::jinja
