// A parsed template: statements and expressions as trees.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"

#include "model/template/value.h"

namespace switchyard::model::jinja {

enum class Operator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessOrEqual,
  kGreater,
  kGreaterOrEqual,
  kIn,
  kNotIn,
};

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct NamedArgument {
  std::string name;
  ExpressionPtr value;
};

// One node. Which fields a kind uses stands beside it; `operands` are in the order of the source.
struct Expression {
  enum class Kind {
    kConstant,     // constant
    kName,         // name
    kList,         // operands: elements
    kTuple,        // operands: elements
    kMap,          // operands: key, value, key, value, ...
    kNegate,       // operands[0]
    kPlus,         // operands[0]; unary, a number stays itself
    kNot,          // operands[0]
    kAnd,          // operands: two or more
    kOr,           // operands: two or more
    kBinary,       // op, operands[0] and [1]; an arithmetic one
    kCompare,      // operands: n + 1, comparisons: n
    kConcat,       // operands: two or more
    kConditional,  // operands: value if true, condition, optionally value if false
    kAttribute,    // operands[0], name
    kSubscript,    // operands[0] and index
    kSlice,        // operands[0], start, stop, step; the last three may be null
    kCall,         // operands: callee, arguments; named
    kFilter,       // operands: input, arguments; name, named
    kTest,         // operands: input, arguments; name, named
    kCaptured,     // the text of the block that a filter of {% set %} is applied to
  };

  Kind kind;
  int line = 0;
  int depth = 1;  // nodes on the longest path down, this one included
  Operator op = Operator::kAdd;
  std::string name;
  Value constant;
  std::vector<ExpressionPtr> operands;
  std::vector<NamedArgument> named;
  std::vector<Operator> comparisons;
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

// What {% set %}, {% for %} and {% with %} assign to: a name, `name.attribute` of a namespace, or
// several names that a list is unpacked into.
struct Target {
  std::string name;
  std::string attribute;         // empty if none
  std::vector<Target> unpacked;  // empty if this is one name
};

struct Branch {
  ExpressionPtr condition;  // null: {% else %}
  Block body;
};

struct Parameter {
  std::string name;
  ExpressionPtr default_value;  // may be null
};

struct Statement {
  enum class Kind {
    kData,      // constant: the text
    kOutput,    // expression
    kIf,        // branches
    kFor,       // target, expression: what to loop over, filter (may be null), body, else_body
    kSet,       // target, expression
    kSetBlock,  // target, expression over kCaptured (may be null), body
    kMacro,     // target.name, parameters, body
    kWith,      // bindings, body
    kBreak,
    kContinue,
  };

  Kind kind;
  int line = 0;
  Value constant;
  ExpressionPtr expression;
  ExpressionPtr filter;
  Target target;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  std::vector<std::pair<Target, ExpressionPtr>> bindings;
  Block body;
  Block else_body;
};

struct Program {
  Block body;
  absl::flat_hash_set<std::string> names;  // every variable that some expression reads
};

}  // namespace switchyard::model::jinja
