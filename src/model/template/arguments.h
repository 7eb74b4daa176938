// Arguments of a call, a filter or a test.
#pragma once

#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "model/template/value.h"

namespace switchyard::model::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;

  // The value of each of `parameters`, in that order; null where none was given. The pointers live
  // as long as these arguments.
  // Errors: InvalidArgument for too many, doubled or unknown ones, with the callee's name.
  absl::StatusOr<std::vector<const Value*>> Bind(
      std::string_view callee, std::initializer_list<std::string_view> parameters) const;
};

}  // namespace switchyard::model::jinja
