#include "model/template/parser.h"

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/status_macros.h"
#include "model/template/expression_parser.h"
#include "model/template/limits.h"
#include "model/template/unicode.h"

namespace switchyard::model::jinja {
namespace {

using Kind = Statement::Kind;
using StatementPtr = std::unique_ptr<Statement>;
using EndNames = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens)
      : tokens_(std::move(tokens)), expressions_(tokens_, program_.names) {}

  absl::StatusOr<Program> Run() {
    SWITCHYARD_RETURN_IF_ERROR(ParseBlock({}, &program_.body));
    return std::move(program_);
  }

 private:
  StatementPtr Make(Kind kind) const {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = tokens_.line();
    return statement;
  }

  // Statements up to a tag with one of the `end` names, whose {% is taken and whose name is not.
  // With no names, up to the end of the template.
  absl::Status ParseBlock(EndNames end, Block* block) {
    const ExpressionParser::Nesting nesting(expressions_);
    SWITCHYARD_RETURN_IF_ERROR(nesting.Check());
    while (!tokens_.Is(Token::Type::kEnd)) {
      if (tokens_.Is(Token::Type::kData)) {
        block->push_back(Make(Kind::kData));
        block->back()->constant = Value::Of(Text(tokens_.Take().text, kFromTemplate));
        continue;
      }
      if (tokens_.Is(Token::Type::kVariableBegin)) {
        block->push_back(Make(Kind::kOutput));
        tokens_.Take();
        SWITCHYARD_ASSIGN_OR_RETURN(block->back()->expression,
                                    expressions_.ParseTuple(/*with_conditional=*/true));
        SWITCHYARD_RETURN_IF_ERROR(tokens_.Expect(Token::Type::kVariableEnd, "}}"));
        continue;
      }
      SWITCHYARD_RETURN_IF_ERROR(tokens_.Expect(Token::Type::kBlockBegin, "{%"));
      for (const std::string_view name : end) {
        if (tokens_.IsName(name)) return absl::OkStatus();
      }
      SWITCHYARD_RETURN_IF_ERROR(ParseStatement(block));
    }
    if (end.size() == 0) return absl::OkStatus();
    return tokens_.Error("block does not end, expected: {}", *(end.end() - 1));
  }

  absl::Status EndTag() { return tokens_.Expect(Token::Type::kBlockEnd, "%}"); }

  // The body of a block and its end tag, whose {% and name ParseBlock() and this take.
  absl::Status ParseBody(std::string_view end, Block* body) {
    SWITCHYARD_RETURN_IF_ERROR(EndTag());
    SWITCHYARD_RETURN_IF_ERROR(ParseBlock({end}, body));
    tokens_.Take();
    return EndTag();
  }

  absl::Status ParseStatement(Block* block) {
    if (!tokens_.Is(Token::Type::kName)) return tokens_.Unexpected();
    const std::string& name = tokens_.current().text;
    if (name == "if") return ParseIf(block);
    if (name == "for") return ParseFor(block);
    if (name == "set") return ParseSet(block);
    if (name == "macro") return ParseMacro(block);
    if (name == "with") return ParseWith(block);
    if (name == "break" || name == "continue") return ParseLoopControl(block);
    if (name == "generation") {
      tokens_.Take();
      return ParseBody("endgeneration", block);
    }
    return tokens_.Error("tag is not supported: {}", name);
  }

  absl::Status ParseIf(Block* block) {
    StatementPtr statement = Make(Kind::kIf);
    while (true) {
      Branch branch;
      const bool is_else = tokens_.IsName("else");
      tokens_.Take();
      if (!is_else) {
        SWITCHYARD_ASSIGN_OR_RETURN(branch.condition,
                                    expressions_.ParseTuple(/*with_conditional=*/true));
      }
      SWITCHYARD_RETURN_IF_ERROR(EndTag());
      SWITCHYARD_RETURN_IF_ERROR(is_else ? ParseBlock({"endif"}, &branch.body)
                                         : ParseBlock({"elif", "else", "endif"}, &branch.body));
      statement->branches.push_back(std::move(branch));
      if (tokens_.SkipName("endif")) break;
    }
    block->push_back(std::move(statement));
    return EndTag();
  }

  absl::Status ParseFor(Block* block) {
    StatementPtr statement = Make(Kind::kFor);
    tokens_.Take();
    SWITCHYARD_ASSIGN_OR_RETURN(statement->target, ParseTargets());
    if (!tokens_.SkipName("in")) return tokens_.Error("expected: in");
    SWITCHYARD_ASSIGN_OR_RETURN(statement->expression,
                                expressions_.ParseTuple(/*with_conditional=*/false));
    if (tokens_.SkipName("if")) {
      SWITCHYARD_ASSIGN_OR_RETURN(statement->filter, expressions_.ParseExpression());
    }
    if (tokens_.IsName("recursive")) return tokens_.Error("recursive loops are not supported");
    SWITCHYARD_RETURN_IF_ERROR(EndTag());
    ++loops_;
    SWITCHYARD_RETURN_IF_ERROR(ParseBlock({"else", "endfor"}, &statement->body));
    --loops_;
    if (tokens_.SkipName("else")) {
      SWITCHYARD_RETURN_IF_ERROR(EndTag());
      SWITCHYARD_RETURN_IF_ERROR(ParseBlock({"endfor"}, &statement->else_body));
    }
    tokens_.Take();
    block->push_back(std::move(statement));
    return EndTag();
  }

  absl::Status ParseSet(Block* block) {
    StatementPtr statement = Make(Kind::kSet);
    tokens_.Take();
    SWITCHYARD_ASSIGN_OR_RETURN(statement->target, ParseTargets());
    if (tokens_.SkipOperator("=")) {
      SWITCHYARD_ASSIGN_OR_RETURN(statement->expression,
                                  expressions_.ParseTuple(/*with_conditional=*/true));
      block->push_back(std::move(statement));
      return EndTag();
    }
    statement->kind = Kind::kSetBlock;
    if (!statement->target.unpacked.empty()) return tokens_.Error("a block sets one name");
    if (tokens_.IsOperator("|")) {
      auto captured = std::make_unique<Expression>();
      captured->kind = Expression::Kind::kCaptured;
      captured->line = tokens_.line();
      SWITCHYARD_ASSIGN_OR_RETURN(statement->expression,
                                  expressions_.ParseFilters(std::move(captured)));
    }
    SWITCHYARD_RETURN_IF_ERROR(ParseBodyOutsideLoops("endset", &statement->body));
    block->push_back(std::move(statement));
    return absl::OkStatus();
  }

  absl::Status ParseMacro(Block* block) {
    StatementPtr statement = Make(Kind::kMacro);
    tokens_.Take();
    SWITCHYARD_ASSIGN_OR_RETURN(statement->target.name, tokens_.ExpectAnyName());
    SWITCHYARD_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
    while (!tokens_.IsOperator(")")) {
      Parameter parameter;
      SWITCHYARD_ASSIGN_OR_RETURN(parameter.name, tokens_.ExpectAnyName());
      if (tokens_.SkipOperator("=")) {
        SWITCHYARD_ASSIGN_OR_RETURN(parameter.default_value, expressions_.ParseExpression());
      } else if (!statement->parameters.empty() &&
                 statement->parameters.back().default_value != nullptr) {
        return tokens_.Error("parameter without a default follows one with a default");
      }
      statement->parameters.push_back(std::move(parameter));
      if (!tokens_.SkipOperator(",")) break;
    }
    SWITCHYARD_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
    SWITCHYARD_RETURN_IF_ERROR(ParseBodyOutsideLoops("endmacro", &statement->body));
    block->push_back(std::move(statement));
    return absl::OkStatus();
  }

  absl::Status ParseWith(Block* block) {
    StatementPtr statement = Make(Kind::kWith);
    tokens_.Take();
    while (!tokens_.Is(Token::Type::kBlockEnd)) {
      if (!statement->bindings.empty()) {
        SWITCHYARD_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      }
      SWITCHYARD_ASSIGN_OR_RETURN(Target target, ParseTarget());
      SWITCHYARD_RETURN_IF_ERROR(tokens_.ExpectOperator("="));
      SWITCHYARD_ASSIGN_OR_RETURN(ExpressionPtr value, expressions_.ParseExpression());
      statement->bindings.emplace_back(std::move(target), std::move(value));
    }
    SWITCHYARD_RETURN_IF_ERROR(ParseBody("endwith", &statement->body));
    block->push_back(std::move(statement));
    return absl::OkStatus();
  }

  absl::Status ParseLoopControl(Block* block) {
    block->push_back(Make(tokens_.IsName("break") ? Kind::kBreak : Kind::kContinue));
    if (loops_ == 0) return tokens_.Error("not in a loop: {}", tokens_.current().text);
    tokens_.Take();
    return EndTag();
  }

  // The body of a block that break and continue cannot leave.
  absl::Status ParseBodyOutsideLoops(std::string_view end, Block* body) {
    const int loops = std::exchange(loops_, 0);
    SWITCHYARD_RETURN_IF_ERROR(ParseBody(end, body));
    loops_ = loops;
    return absl::OkStatus();
  }

  // "a", "a.b", "(a, b)".
  absl::StatusOr<Target> ParseTarget() {
    if (tokens_.SkipOperator("(")) {
      const ExpressionParser::Nesting nesting(expressions_);
      SWITCHYARD_RETURN_IF_ERROR(nesting.Check());
      SWITCHYARD_ASSIGN_OR_RETURN(Target target, ParseTargets());
      SWITCHYARD_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
      return target;
    }
    Target target;
    SWITCHYARD_ASSIGN_OR_RETURN(target.name, tokens_.ExpectAnyName());
    for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
      if (target.name == constant) return tokens_.Error("cannot assign to: {}", constant);
    }
    if (tokens_.SkipOperator(".")) {
      SWITCHYARD_ASSIGN_OR_RETURN(target.attribute, tokens_.ExpectAnyName());
    }
    return target;
  }

  // One target, or several with commas between them.
  absl::StatusOr<Target> ParseTargets() {
    SWITCHYARD_ASSIGN_OR_RETURN(Target first, ParseTarget());
    if (!tokens_.IsOperator(",")) return first;
    Target target;
    target.unpacked.push_back(std::move(first));
    while (tokens_.SkipOperator(",")) {
      if (!tokens_.Is(Token::Type::kName) && !tokens_.IsOperator("(")) break;
      if (tokens_.IsName("in")) break;
      SWITCHYARD_ASSIGN_OR_RETURN(Target next, ParseTarget());
      target.unpacked.push_back(std::move(next));
    }
    return target;
  }

  Program program_;
  TokenStream tokens_;
  ExpressionParser expressions_;
  int loops_ = 0;  // around the current place, as far as break can reach
};

}  // namespace

absl::StatusOr<Program> ParseTemplate(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return ResourceExhausted("template is too long, limit in bytes: {}, got: {}", kMaxTemplateBytes,
                             source.size());
  }
  if (!IsValidUtf8(source)) return InvalidArgument("template is not UTF-8");
  SWITCHYARD_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace switchyard::model::jinja
