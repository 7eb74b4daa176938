// A place in the tokens of a template, for the parsers.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "base/status.h"
#include "model/template/lexer.h"

namespace switchyard::model::jinja {

// The tokens of a template with a place in them.
class TokenStream {
 public:
  // REQUIRES: the last token is kEnd.
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  int line() const { return current().line; }
  // Returns the current token and moves on; the last one is never passed.
  const Token& Take();

  bool Is(Token::Type type) const { return current().type == type; }
  bool IsName(std::string_view name) const;
  bool IsOperator(std::string_view op) const;
  bool SkipName(std::string_view name);
  bool SkipOperator(std::string_view op);

  absl::Status Expect(Token::Type type, std::string_view description);
  absl::Status ExpectOperator(std::string_view op);
  absl::StatusOr<std::string> ExpectAnyName();

  // InvalidArgument that names the current line.
  template <typename... Args>
  absl::Status Error(fmt::format_string<Args...> format, Args&&... args) const {
    return InvalidArgument("line {}: {}", line(), fmt::format(format, std::forward<Args>(args)...));
  }
  absl::Status Unexpected() const;

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace switchyard::model::jinja
