// Finds the first place where a text stops being JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace switchyard::placement {

struct JsonError {
  std::string what;  // "text ends inside an object"
  int line = 1;      // both from 1
  int column = 1;    // in bytes
};

// Nothing if `text` is one JSON value of at most 64 levels (RFC 8259).
std::optional<JsonError> FindJsonError(std::string_view text);

}  // namespace switchyard::placement
