// Source of a template -> statements.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"

#include "model/template/ast.h"

namespace switchyard::model::jinja {

// Parses a whole template: text, {{ }}, if, for (with filter and else), set (of values and of
// blocks), macro, with, break, continue, raw, comments. {% generation %} marks text for training
// and is taken as its contents.
//
// Errors: InvalidArgument with the line; ResourceExhausted if it is longer than kMaxTemplateBytes.
absl::StatusOr<Program> ParseTemplate(std::string_view source);

}  // namespace switchyard::model::jinja
