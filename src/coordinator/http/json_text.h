// JSON of requests and responses: parsing within limits, writing that cannot fail.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace switchyard::coordinator::http {

// Keeps the order of keys: tools are shown to the model as they came.
using Json = nlohmann::ordered_json;

inline constexpr int kMaxJsonDepth = 64;
// Of one object. Each new key is compared with all before it, so their number bounds the time;
// logit_bias alone may have 1,024.
inline constexpr int kMaxJsonMembers = 2048;
// Of all objects and arrays: an empty one takes two bytes of text and some fifty of memory.
inline constexpr int kMaxJsonContainers = 1 << 18;

// Parses a whole text.
// Errors: kInvalidArgument: not JSON, not UTF-8, a number out of range, over a limit.
absl::StatusOr<Json> ParseJson(std::string_view text);

// The text of `value` in one line. Bytes that are no UTF-8 become U+FFFD.
std::string JsonText(const Json& value);

}  // namespace switchyard::coordinator::http
