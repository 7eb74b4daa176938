#include "model/template/token_stream.h"

namespace switchyard::model::jinja {

const Token& TokenStream::Take() {
  const Token& token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TokenStream::IsName(std::string_view name) const {
  return Is(Token::Type::kName) && current().text == name;
}

bool TokenStream::IsOperator(std::string_view op) const {
  return Is(Token::Type::kOperator) && current().text == op;
}

bool TokenStream::SkipName(std::string_view name) {
  if (!IsName(name)) return false;
  Take();
  return true;
}

bool TokenStream::SkipOperator(std::string_view op) {
  if (!IsOperator(op)) return false;
  Take();
  return true;
}

absl::Status TokenStream::Expect(Token::Type type, std::string_view description) {
  if (!Is(type)) return Error("expected: {}, got: {}", description, current().text);
  Take();
  return absl::OkStatus();
}

absl::Status TokenStream::ExpectOperator(std::string_view op) {
  if (SkipOperator(op)) return absl::OkStatus();
  return Error("expected: {}, got: {}", op, current().text);
}

absl::StatusOr<std::string> TokenStream::ExpectAnyName() {
  if (!Is(Token::Type::kName)) return Error("expected a name, got: {}", current().text);
  return Take().text;
}

absl::Status TokenStream::Unexpected() const {
  switch (current().type) {
    case Token::Type::kEnd:
      return Error("template ends too early");
    case Token::Type::kVariableEnd:
    case Token::Type::kBlockEnd:
      return Error("tag ends too early");
    default:
      return Error("unexpected: {}", current().text);
  }
}

}  // namespace switchyard::model::jinja
