#include "model/template/arguments.h"

#include <algorithm>

#include "base/status.h"

namespace switchyard::model::jinja {

absl::StatusOr<std::vector<const Value*>> Arguments::Bind(
    std::string_view callee, std::initializer_list<std::string_view> parameters) const {
  if (positional.size() > parameters.size()) {
    return InvalidArgument("too many arguments: {}, wanted at most: {}, got: {}", callee,
                           parameters.size(), positional.size());
  }
  std::vector<const Value*> bound(parameters.size(), nullptr);
  for (size_t i = 0; i < positional.size(); ++i) bound[i] = &positional[i];
  for (const auto& [name, value] : named) {
    const auto* const found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end()) {
      return InvalidArgument("no such argument: {} of {}", name, callee);
    }
    const Value*& slot = bound[static_cast<size_t>(found - parameters.begin())];
    if (slot != nullptr) return InvalidArgument("argument is given twice: {} of {}", name, callee);
    slot = &value;
  }
  return bound;
}

}  // namespace switchyard::model::jinja
