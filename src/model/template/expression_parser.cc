#include "model/template/expression_parser.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "base/status_macros.h"
#include "model/template/filters.h"
#include "model/template/limits.h"
#include "model/template/tests.h"

namespace switchyard::model::jinja {
namespace {

struct OperatorName {
  std::string_view text;
  Operator op;
};

constexpr OperatorName kComparisons[] = {
    {"==", Operator::kEqual},       {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
    {"<=", Operator::kLessOrEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterOrEqual},
};
constexpr OperatorName kSums[] = {{"+", Operator::kAdd}, {"-", Operator::kSubtract}};
constexpr OperatorName kProducts[] = {{"*", Operator::kMultiply},
                                      {"/", Operator::kDivide},
                                      {"//", Operator::kFloorDivide},
                                      {"%", Operator::kModulo}};
constexpr OperatorName kPowers[] = {{"**", Operator::kPower}};

template <size_t n>
bool TakeOperator(TokenStream& tokens, const OperatorName (&names)[n], Operator* op) {
  for (const OperatorName& name : names) {
    if (!tokens.SkipOperator(name.text)) continue;
    *op = name.op;
    return true;
  }
  return false;
}

}  // namespace

absl::Status ExpressionParser::Nesting::Check() const {
  if (parser_.nesting_ <= kMaxNesting) return absl::OkStatus();
  return parser_.tokens_.Error("template nests too deep, limit: {}", kMaxNesting);
}

ExpressionPtr ExpressionParser::Make(Kind kind) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = tokens_.line();
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Finish(ExpressionPtr node) const {
  for (const ExpressionPtr& operand : node->operands) {
    if (operand != nullptr) node->depth = std::max(node->depth, 1 + operand->depth);
  }
  for (const NamedArgument& argument : node->named) {
    node->depth = std::max(node->depth, 1 + argument.value->depth);
  }
  if (node->depth > kMaxExpressionDepth) {
    return tokens_.Error("expression is too long, limit in operators: {}", kMaxExpressionDepth);
  }
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseExpression() {
  Nesting nesting(*this);
  SWITCHYARD_RETURN_IF_ERROR(nesting.Check());
  SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr node, ParseOr());
  while (tokens_.SkipName("if")) {
    ExpressionPtr conditional = Make(Kind::kConditional);
    conditional->operands.push_back(std::move(node));
    SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr condition, ParseOr());
    conditional->operands.push_back(std::move(condition));
    if (tokens_.SkipName("else")) {
      SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr otherwise, ParseExpression());
      conditional->operands.push_back(std::move(otherwise));
    }
    SWITCHYARD_ASSIGN_OR_RETURN(node, Finish(std::move(conditional)));
  }
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseTuple(bool with_conditional) {
  const auto parse_element = [&]() -> absl::StatusOr<ExpressionPtr> {
    if (with_conditional) return ParseExpression();
    Nesting nesting(*this);
    SWITCHYARD_RETURN_IF_ERROR(nesting.Check());
    return ParseOr();
  };
  SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr first, parse_element());
  if (!tokens_.IsOperator(",")) return first;
  ExpressionPtr tuple = Make(Kind::kTuple);
  tuple->operands.push_back(std::move(first));
  while (tokens_.SkipOperator(",")) {
    if (tokens_.Is(Token::Type::kVariableEnd) || tokens_.Is(Token::Type::kBlockEnd)) break;
    SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr element, parse_element());
    tuple->operands.push_back(std::move(element));
  }
  return Finish(std::move(tuple));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseChain(std::string_view name, Kind kind,
                                                           Level operand) {
  SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr first, (this->*operand)());
  if (!tokens_.IsName(name)) return first;
  ExpressionPtr chain = Make(kind);
  chain->operands.push_back(std::move(first));
  while (tokens_.SkipName(name)) {
    SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr next, (this->*operand)());
    chain->operands.push_back(std::move(next));
  }
  return Finish(std::move(chain));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseOr() {
  return ParseChain("or", Kind::kOr, &ExpressionParser::ParseAnd);
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseAnd() {
  return ParseChain("and", Kind::kAnd, &ExpressionParser::ParseNot);
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseNot() {
  if (!tokens_.IsName("not")) return ParseComparison();
  Nesting nesting(*this);
  SWITCHYARD_RETURN_IF_ERROR(nesting.Check());
  ExpressionPtr node = Make(Kind::kNot);
  tokens_.Take();
  SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseNot());
  node->operands.push_back(std::move(operand));
  return Finish(std::move(node));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseComparison() {
  SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr first, ParseSum());
  ExpressionPtr node = Make(Kind::kCompare);
  while (true) {
    Operator op = Operator::kIn;
    if (TakeOperator(tokens_, kComparisons, &op)) {
    } else if (tokens_.SkipName("in")) {
      op = Operator::kIn;
    } else if (tokens_.IsName("not") && tokens_.next().type == Token::Type::kName &&
               tokens_.next().text == "in") {
      tokens_.Take();
      tokens_.Take();
      op = Operator::kNotIn;
    } else {
      break;
    }
    SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseSum());
    node->comparisons.push_back(op);
    node->operands.push_back(std::move(operand));
  }
  if (node->operands.empty()) return first;
  node->operands.insert(node->operands.begin(), std::move(first));
  return Finish(std::move(node));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseSum() {
  SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr left, ParseConcat());
  for (Operator op; TakeOperator(tokens_, kSums, &op);) {
    ExpressionPtr node = Make(Kind::kBinary);
    node->op = op;
    node->operands.push_back(std::move(left));
    SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr right, ParseConcat());
    node->operands.push_back(std::move(right));
    SWITCHYARD_ASSIGN_OR_RETURN(left, Finish(std::move(node)));
  }
  return left;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseConcat() {
  SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr first, ParseProduct());
  if (!tokens_.IsOperator("~")) return first;
  ExpressionPtr node = Make(Kind::kConcat);
  node->operands.push_back(std::move(first));
  while (tokens_.SkipOperator("~")) {
    SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr next, ParseProduct());
    node->operands.push_back(std::move(next));
  }
  return Finish(std::move(node));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseProduct() {
  SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr left, ParsePower());
  for (Operator op; TakeOperator(tokens_, kProducts, &op);) {
    ExpressionPtr node = Make(Kind::kBinary);
    node->op = op;
    node->operands.push_back(std::move(left));
    SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr right, ParsePower());
    node->operands.push_back(std::move(right));
    SWITCHYARD_ASSIGN_OR_RETURN(left, Finish(std::move(node)));
  }
  return left;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParsePower() {
  SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr left, ParseUnary(true));
  for (Operator op; TakeOperator(tokens_, kPowers, &op);) {
    ExpressionPtr node = Make(Kind::kBinary);
    node->op = op;
    node->operands.push_back(std::move(left));
    SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr right, ParseUnary(true));
    node->operands.push_back(std::move(right));
    SWITCHYARD_ASSIGN_OR_RETURN(left, Finish(std::move(node)));
  }
  return left;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseUnary(bool with_filters) {
  ExpressionPtr node;
  if (tokens_.IsOperator("-") || tokens_.IsOperator("+")) {
    Nesting nesting(*this);
    SWITCHYARD_RETURN_IF_ERROR(nesting.Check());
    node = Make(tokens_.IsOperator("-") ? Kind::kNegate : Kind::kPlus);
    tokens_.Take();
    SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseUnary(false));
    node->operands.push_back(std::move(operand));
    SWITCHYARD_ASSIGN_OR_RETURN(node, Finish(std::move(node)));
  } else {
    SWITCHYARD_ASSIGN_OR_RETURN(node, ParsePrimary());
  }
  SWITCHYARD_ASSIGN_OR_RETURN(node, ParsePostfix(std::move(node)));
  if (!with_filters) return node;
  return ParseFiltersAndTests(std::move(node));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParsePrimary() {
  switch (tokens_.current().type) {
    case Token::Type::kName:
      return ParseName();
    case Token::Type::kInteger:
    case Token::Type::kFloat:
      return ParseNumber();
    case Token::Type::kString: {
      ExpressionPtr node = Make(Kind::kConstant);
      std::string text;
      while (tokens_.Is(Token::Type::kString)) text += tokens_.Take().text;
      node->constant = Value::Of(Text(std::move(text), kFromTemplate));
      return node;
    }
    case Token::Type::kOperator:
      if (tokens_.IsOperator("(") || tokens_.IsOperator("[")) return ParseBracketed();
      if (tokens_.IsOperator("{")) return ParseMap();
      break;
    default:
      break;
  }
  return tokens_.Unexpected();
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseName() {
  ExpressionPtr node = Make(Kind::kConstant);
  node->name = tokens_.Take().text;
  if (node->name == "true" || node->name == "True") {
    node->constant = Value::Of(true);
  } else if (node->name == "false" || node->name == "False") {
    node->constant = Value::Of(false);
  } else if (node->name == "none" || node->name == "None") {
    node->constant = Value::MakeNone();
  } else {
    node->kind = Kind::kName;
    names_.insert(node->name);
  }
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseNumber() {
  ExpressionPtr node = Make(Kind::kConstant);
  const Token& token = tokens_.Take();
  if (token.type == Token::Type::kFloat) {
    node->constant = Value::Of(std::strtod(token.text.c_str(), nullptr));
    return node;
  }
  std::string_view digits = token.text;
  int base = 10;
  if (digits.size() > 2 && digits[0] == '0' && (digits[1] < '0' || digits[1] > '9')) {
    const char marker = static_cast<char>(digits[1] | 0x20);  // lower case
    base = marker == 'x' ? 16 : marker == 'o' ? 8 : 2;
    digits.remove_prefix(2);
  }
  int64_t value = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (result.ec != std::errc() || result.ptr != digits.data() + digits.size()) {
    return tokens_.Error("number is not an integer of 64 bits: {}", token.text);
  }
  node->constant = Value::Of(value);
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseBracketed() {
  const bool is_list = tokens_.IsOperator("[");
  const std::string_view close = is_list ? "]" : ")";
  ExpressionPtr node = Make(is_list ? Kind::kList : Kind::kTuple);
  tokens_.Take();
  bool is_sequence = is_list || tokens_.IsOperator(close);
  while (!tokens_.IsOperator(close)) {
    SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr element, ParseExpression());
    node->operands.push_back(std::move(element));
    if (!tokens_.SkipOperator(",")) break;
    is_sequence = true;
  }
  SWITCHYARD_RETURN_IF_ERROR(tokens_.ExpectOperator(close));
  if (!is_sequence) return std::move(node->operands[0]);  // (a) is a, (a,) is a tuple
  return Finish(std::move(node));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseMap() {
  ExpressionPtr node = Make(Kind::kMap);
  tokens_.Take();
  while (!tokens_.IsOperator("}")) {
    SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr key, ParseExpression());
    SWITCHYARD_RETURN_IF_ERROR(tokens_.ExpectOperator(":"));
    SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
    node->operands.push_back(std::move(key));
    node->operands.push_back(std::move(value));
    if (!tokens_.SkipOperator(",")) break;
  }
  SWITCHYARD_RETURN_IF_ERROR(tokens_.ExpectOperator("}"));
  return Finish(std::move(node));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParsePostfix(ExpressionPtr node) {
  while (true) {
    if (tokens_.IsOperator(".")) {
      ExpressionPtr attribute = Make(Kind::kAttribute);
      tokens_.Take();
      attribute->operands.push_back(std::move(node));
      if (tokens_.Is(Token::Type::kInteger)) {  // list.0 is list[0]
        attribute->kind = Kind::kSubscript;
        SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr index, ParseNumber());
        attribute->operands.push_back(std::move(index));
      } else {
        SWITCHYARD_ASSIGN_OR_RETURN(attribute->name, tokens_.ExpectAnyName());
      }
      SWITCHYARD_ASSIGN_OR_RETURN(node, Finish(std::move(attribute)));
    } else if (tokens_.IsOperator("[")) {
      SWITCHYARD_ASSIGN_OR_RETURN(node, ParseSubscript(std::move(node)));
    } else if (tokens_.IsOperator("(")) {
      ExpressionPtr call = Make(Kind::kCall);
      call->operands.push_back(std::move(node));
      SWITCHYARD_RETURN_IF_ERROR(ParseArguments(call.get()));
      SWITCHYARD_ASSIGN_OR_RETURN(node, Finish(std::move(call)));
    } else {
      return node;
    }
  }
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseSubscript(ExpressionPtr object) {
  ExpressionPtr node = Make(Kind::kSubscript);
  node->operands.push_back(std::move(object));
  tokens_.Take();
  // One index, or up to three parts with colons between them, each of which may be missing.
  ExpressionPtr parts[3];
  int num_parts = 1;
  while (!tokens_.IsOperator("]")) {
    if (tokens_.SkipOperator(":")) {
      if (++num_parts > 3) return tokens_.Error("slice has too many parts");
      continue;
    }
    if (parts[num_parts - 1] != nullptr) return tokens_.Unexpected();
    SWITCHYARD_ASSIGN_OR_RETURN(parts[num_parts - 1], ParseExpression());
  }
  tokens_.Take();
  if (num_parts == 1) {
    if (parts[0] == nullptr) return tokens_.Error("subscript is empty");
    node->operands.push_back(std::move(parts[0]));
  } else {
    node->kind = Kind::kSlice;
    for (ExpressionPtr& part : parts) node->operands.push_back(std::move(part));
  }
  return Finish(std::move(node));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseFilters(ExpressionPtr input) {
  while (tokens_.IsOperator("|")) {
    SWITCHYARD_ASSIGN_OR_RETURN(input, ParseFilter(std::move(input)));
  }
  return input;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseFiltersAndTests(ExpressionPtr node) {
  while (true) {
    if (tokens_.IsOperator("|")) {
      SWITCHYARD_ASSIGN_OR_RETURN(node, ParseFilter(std::move(node)));
    } else if (tokens_.IsName("is")) {
      SWITCHYARD_ASSIGN_OR_RETURN(node, ParseTest(std::move(node)));
    } else if (tokens_.IsOperator("(")) {
      SWITCHYARD_ASSIGN_OR_RETURN(node, ParsePostfix(std::move(node)));
    } else {
      return node;
    }
  }
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseFilter(ExpressionPtr input) {
  ExpressionPtr node = Make(Kind::kFilter);
  tokens_.Take();
  SWITCHYARD_ASSIGN_OR_RETURN(node->name, tokens_.ExpectAnyName());
  if (FindFilter(node->name) == nullptr) return tokens_.Error("no such filter: {}", node->name);
  node->operands.push_back(std::move(input));
  if (tokens_.IsOperator("(")) SWITCHYARD_RETURN_IF_ERROR(ParseArguments(node.get()));
  return Finish(std::move(node));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseTest(ExpressionPtr input) {
  ExpressionPtr node = Make(Kind::kTest);
  tokens_.Take();
  const bool negated = tokens_.SkipName("not");
  SWITCHYARD_ASSIGN_OR_RETURN(node->name, tokens_.ExpectAnyName());
  if (FindTest(node->name) == nullptr) return tokens_.Error("no such test: {}", node->name);
  node->operands.push_back(std::move(input));
  if (tokens_.IsOperator("(")) {
    SWITCHYARD_RETURN_IF_ERROR(ParseArguments(node.get()));
  } else if (!tokens_.IsName("else") && !tokens_.IsName("or") && !tokens_.IsName("and") &&
             (tokens_.Is(Token::Type::kName) || tokens_.Is(Token::Type::kString) ||
              tokens_.Is(Token::Type::kInteger) || tokens_.Is(Token::Type::kFloat) ||
              tokens_.IsOperator("[") || tokens_.IsOperator("{"))) {
    // One argument without parentheses: "x is divisibleby 3".
    if (tokens_.IsName("is")) return tokens_.Error("tests cannot be chained");
    SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr argument, ParsePrimary());
    SWITCHYARD_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    node->operands.push_back(std::move(argument));
  }
  SWITCHYARD_ASSIGN_OR_RETURN(node, Finish(std::move(node)));
  if (!negated) return node;
  ExpressionPtr negation = Make(Kind::kNot);
  negation->operands.push_back(std::move(node));
  return Finish(std::move(negation));
}

absl::Status ExpressionParser::ParseArguments(Expression* call) {
  tokens_.Take();
  while (!tokens_.IsOperator(")")) {
    if (tokens_.IsOperator("*") || tokens_.IsOperator("**")) {
      return tokens_.Error("unpacking of arguments is not supported");
    }
    const bool is_named = tokens_.Is(Token::Type::kName) &&
                          tokens_.next().type == Token::Type::kOperator &&
                          tokens_.next().text == "=";
    if (is_named) {
      NamedArgument argument;
      argument.name = tokens_.Take().text;
      tokens_.Take();
      SWITCHYARD_ASSIGN_OR_RETURN(argument.value, ParseExpression());
      call->named.push_back(std::move(argument));
    } else {
      if (!call->named.empty()) return tokens_.Error("positional argument follows a named one");
      SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr argument, ParseExpression());
      call->operands.push_back(std::move(argument));
    }
    if (!tokens_.SkipOperator(",")) break;
  }
  return tokens_.ExpectOperator(")");
}

}  // namespace switchyard::model::jinja
