// Methods of strings, lists, maps and loops: value.name(arguments).
#pragma once

#include <string_view>

#include "absl/status/statusor.h"

#include "model/template/arguments.h"
#include "model/template/limits.h"
#include "model/template/value.h"

namespace switchyard::model::jinja {

// Whether `value` has a method of this name. Methods that change their object do not exist, as in
// Jinja2's immutable sandbox, under which chat templates are written.
bool HasMethod(const Value& value, std::string_view name);

// Calls it as Python would. REQUIRES: HasMethod(method.self, method.name).
absl::StatusOr<Value> CallMethod(const BoundMethod& method, const Arguments& arguments,
                                 Budget& budget);

// The (key, value) tuples of a map.
absl::StatusOr<Value> MapItems(const Map& map, Budget& budget);

}  // namespace switchyard::model::jinja
