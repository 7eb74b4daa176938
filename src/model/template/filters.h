// The filters of templates: value | name(arguments).
#pragma once

#include <string_view>

#include "absl/status/statusor.h"

#include "model/template/arguments.h"
#include "model/template/limits.h"
#include "model/template/value.h"

namespace switchyard::model::jinja {

using Filter = absl::StatusOr<Value> (*)(const Value& input, const Arguments& arguments,
                                         Budget& budget);

// The filter of this name, or null. They behave as Jinja2's of the same name, except `tojson`,
// which is json.dumps() without ASCII or HTML escapes, and `safe`, which does nothing because
// nothing is ever escaped.
Filter FindFilter(std::string_view name);

}  // namespace switchyard::model::jinja
