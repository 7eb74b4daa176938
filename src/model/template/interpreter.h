// Runs a parsed template.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "model/template/arguments.h"
#include "model/template/ast.h"
#include "model/template/limits.h"
#include "model/template/message_borders.h"
#include "model/template/text.h"
#include "model/template/value.h"

namespace switchyard::model::jinja {

// Names of one block; a name that it lacks is looked up in the block around it.
struct Scope {
  std::shared_ptr<Scope> parent;
  // Keys point into the template.
  absl::flat_hash_map<absl::string_view, Value> variables;
};

struct MacroValue {
  const Statement* definition;
  // Where it was defined. Weak, because that scope holds the macro itself.
  std::weak_ptr<Scope> scope;
};

// One rendering of one template.
//
// Call order: construct, Run() once, then message_ends().
// Threads:    one; any number of renderings of one program may run at once.
class Interpreter {
 public:
  // `now` is what strftime_now() formats, in UTC. REQUIRES: `program` outlives this.
  Interpreter(const Program& program, MapPtr variables, std::time_t now);

  // Renders. Errors: InvalidArgument with the line, or with the bare text of raise_exception();
  // ResourceExhausted at a limit.
  absl::StatusOr<Text> Run();

  // See RenderedChat::message_ends.
  std::vector<size_t> MessageEnds(const Text& rendered, size_t num_messages) const {
    return borders_.Resolve(rendered, num_messages);
  }

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  using ScopePtr = std::shared_ptr<Scope>;

  // Statements: interpreter.cc.
  absl::StatusOr<Flow> ExecuteBlock(const Block& block);
  absl::StatusOr<Flow> Execute(const Statement& statement);
  absl::StatusOr<Flow> ExecuteKind(const Statement& statement);
  absl::StatusOr<Flow> ExecuteIf(const Statement& statement);
  absl::StatusOr<Flow> ExecuteFor(const Statement& statement);
  absl::StatusOr<Flow> ExecuteWith(const Statement& statement);
  absl::Status ExecuteSetBlock(const Statement& statement);
  absl::Status ExecuteOutput(const Statement& statement);
  absl::StatusOr<ListPtr> LoopItems(const Statement& statement);
  // Whether any iteration ended without break and continue.
  absl::StatusOr<bool> Iterate(const Statement& statement, const ListPtr& items);
  absl::Status Write(const Text& text);
  absl::Status Assign(const Target& target, const Value& value);
  // The text that `block` writes, in a scope of its own.
  absl::StatusOr<Text> Capture(const Block& block, ScopePtr scope);

  // Expressions: evaluate.cc.
  absl::StatusOr<Value> Evaluate(const Expression& node);
  absl::StatusOr<Value> EvaluateKind(const Expression& node);
  absl::StatusOr<Value> EvaluateSequence(const Expression& node);
  absl::StatusOr<Value> EvaluateMap(const Expression& node);
  absl::StatusOr<Value> EvaluateLogic(const Expression& node);
  absl::StatusOr<Value> EvaluateCompare(const Expression& node);
  absl::StatusOr<Value> EvaluateConcat(const Expression& node);
  absl::StatusOr<Value> EvaluateConditional(const Expression& node);
  absl::StatusOr<Value> EvaluateBinary(const Expression& node);
  absl::StatusOr<Value> EvaluateUnary(const Expression& node);
  absl::StatusOr<Value> EvaluateAccess(const Expression& node);
  absl::StatusOr<Value> EvaluateFilter(const Expression& node);
  absl::StatusOr<Value> EvaluateTest(const Expression& node);
  absl::StatusOr<Value> EvaluateCall(const Expression& node);
  absl::StatusOr<Arguments> EvaluateArguments(const Expression& node);
  absl::StatusOr<Value> CallMacro(const MacroValue& macro, const Arguments& arguments);
  absl::StatusOr<Value> CallBuiltin(Builtin builtin, const Arguments& arguments);
  absl::StatusOr<Value> MakeNamespace(const Arguments& arguments);
  absl::StatusOr<Value> MakeDict(const Arguments& arguments);
  absl::StatusOr<Value> Range(const Arguments& arguments);
  absl::StatusOr<Value> FormatTime(const Arguments& arguments);
  absl::Status RaiseException(const Arguments& arguments);
  Value LookUp(const std::string& name) const;

  // Adds the line to an error that has none yet.
  absl::Status Locate(const absl::Status& status, int line);

  // Counts a frame of evaluation while it lives.
  class Frame;

  const Program& program_;
  const MapPtr variables_;
  const std::time_t now_;
  Budget budget_;
  Text output_;
  Text* sink_ = &output_;  // where text goes now: the output, or a block that is captured
  ScopePtr scope_ = std::make_shared<Scope>();
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  const Value* captured_ = nullptr;  // what kCaptured stands for
  int num_frames_ = 0;
  int num_calls_ = 0;
  bool is_located_ = false;  // the error under way has its line
  MessageBorders borders_;
};

class Interpreter::Frame {
 public:
  explicit Frame(Interpreter& interpreter) : interpreter_(interpreter) {
    ++interpreter_.num_frames_;
  }
  ~Frame() { --interpreter_.num_frames_; }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  absl::Status Check() const {
    if (interpreter_.num_frames_ <= kMaxEvaluationDepth) return absl::OkStatus();
    return ResourceExhausted("template nests too deep, limit in frames: {}", kMaxEvaluationDepth);
  }

 private:
  Interpreter& interpreter_;
};

}  // namespace switchyard::model::jinja
