#include "coordinator/http/json_text.h"

#include <array>
#include <cstdint>

#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::coordinator::http {
namespace {

// Of all objects together: the n-th member of an object is compared with the n - 1 before it. Some
// 0.2 s of comparing; 32 objects of kMaxJsonMembers, or any number of small ones.
constexpr int64_t kMaxKeyComparisons = int64_t{1} << 26;

// Looks at brackets and commas only, before anything is allocated; what is in strings does not
// count. Whether it is JSON is for the parser to say.
absl::Status CheckLimits(std::string_view text) {
  std::array<int, kMaxJsonDepth + 1> num_members{};  // by depth: commas since the bracket
  std::array<bool, kMaxJsonDepth + 1> is_object{};
  int depth = 0;
  int num_containers = 0;
  int64_t num_comparisons = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    switch (c) {
      case '"':
        in_string = true;
        break;
      case '[':
      case '{':
        if (++depth > kMaxJsonDepth) {
          return InvalidArgument("JSON nests too deep, limit: {}", kMaxJsonDepth);
        }
        if (++num_containers > kMaxJsonContainers) {
          return InvalidArgument("JSON has too many objects and arrays, limit: {}",
                                 kMaxJsonContainers);
        }
        num_members[depth] = 1;
        is_object[depth] = c == '{';
        break;
      case ']':
      case '}':
        if (depth > 0) --depth;
        break;
      case ',':
        if (!is_object[depth]) break;
        num_comparisons += num_members[depth];
        if (++num_members[depth] > kMaxJsonMembers) {
          return InvalidArgument("a JSON object has too many members, limit: {}", kMaxJsonMembers);
        }
        if (num_comparisons > kMaxKeyComparisons) {
          return InvalidArgument("JSON has too many large objects");
        }
        break;
      default:
        break;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text) {
  SWITCHYARD_RETURN_IF_ERROR(CheckLimits(text));
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    return InvalidArgument("the body is not valid JSON in UTF-8 with numbers in range");
  }
  return value;
}

std::string JsonText(const Json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace switchyard::coordinator::http
