// The tests of templates: value is name(arguments).
#pragma once

#include <string_view>

#include "absl/status/statusor.h"

#include "model/template/arguments.h"
#include "model/template/limits.h"
#include "model/template/value.h"

namespace switchyard::model::jinja {

using Test = absl::StatusOr<bool> (*)(const Value& value, const Arguments& arguments,
                                      Budget& budget);

// The test of this name, or null. They hold where Jinja2's of the same name do.
Test FindTest(std::string_view name);

}  // namespace switchyard::model::jinja
