// Tokens -> expressions.
#pragma once

#include <string>
#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"

#include "model/template/ast.h"
#include "model/template/token_stream.h"

namespace switchyard::model::jinja {

// Recursive descent with the precedences of Jinja2: conditional, or, and, not, comparison, + -, ~,
// * / // %, **, sign, then attributes, subscripts and calls, then filters and tests.
//
// Errors: InvalidArgument with the line, also where brackets nest deeper than kMaxNesting, a chain
// of operators is longer than kMaxExpressionDepth, or a filter or test is unknown.
class ExpressionParser {
 public:
  // Adds every name that is read to `names`.
  ExpressionParser(TokenStream& tokens, absl::flat_hash_set<std::string>& names)
      : tokens_(tokens), names_(names) {}

  absl::StatusOr<ExpressionPtr> ParseExpression();  // one, conditional included
  // "a" or "a, b". Without conditionals for {% for x in LIST if CONDITION %}.
  absl::StatusOr<ExpressionPtr> ParseTuple(bool with_conditional);
  // The filters "| a | b(c)" on `input`; there may be none.
  absl::StatusOr<ExpressionPtr> ParseFilters(ExpressionPtr input);

  // Counts nesting while it lives; blocks and brackets share one limit.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser) : parser_(parser) { ++parser_.nesting_; }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    absl::Status Check() const;

   private:
    ExpressionParser& parser_;
  };

 private:
  friend class Nesting;
  using Kind = Expression::Kind;
  using Level = absl::StatusOr<ExpressionPtr> (ExpressionParser::*)();

  ExpressionPtr Make(Kind kind) const;
  absl::StatusOr<ExpressionPtr> Finish(ExpressionPtr node) const;
  absl::StatusOr<ExpressionPtr> ParseChain(std::string_view name, Kind kind, Level operand);
  absl::StatusOr<ExpressionPtr> ParseOr();
  absl::StatusOr<ExpressionPtr> ParseAnd();
  absl::StatusOr<ExpressionPtr> ParseNot();
  absl::StatusOr<ExpressionPtr> ParseComparison();
  absl::StatusOr<ExpressionPtr> ParseSum();
  absl::StatusOr<ExpressionPtr> ParseConcat();
  absl::StatusOr<ExpressionPtr> ParseProduct();
  absl::StatusOr<ExpressionPtr> ParsePower();
  absl::StatusOr<ExpressionPtr> ParseUnary(bool with_filters);
  absl::StatusOr<ExpressionPtr> ParseFilteredUnary() { return ParseUnary(true); }
  absl::StatusOr<ExpressionPtr> ParsePrimary();
  absl::StatusOr<ExpressionPtr> ParseName();
  absl::StatusOr<ExpressionPtr> ParseNumber();
  absl::StatusOr<ExpressionPtr> ParseBracketed();
  absl::StatusOr<ExpressionPtr> ParseMap();
  absl::StatusOr<ExpressionPtr> ParsePostfix(ExpressionPtr node);
  absl::StatusOr<ExpressionPtr> ParseSubscript(ExpressionPtr object);
  absl::StatusOr<ExpressionPtr> ParseFiltersAndTests(ExpressionPtr node);
  absl::StatusOr<ExpressionPtr> ParseFilter(ExpressionPtr input);
  absl::StatusOr<ExpressionPtr> ParseTest(ExpressionPtr input);
  absl::Status ParseArguments(Expression* call);

  TokenStream& tokens_;
  absl::flat_hash_set<std::string>& names_;
  int nesting_ = 0;
};

}  // namespace switchyard::model::jinja
