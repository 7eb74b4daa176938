// Values as text: as Python prints them, and as JSON in the form that models are trained on.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "model/template/limits.h"
#include "model/template/text.h"
#include "model/template/value.h"

namespace switchyard::model::jinja {

// The shortest digits that read back as `value`, laid out as Python's repr(): "1.0", "1e-05",
// "1e+16", "inf", "nan".
std::string FloatRepr(double value);

// Python's str(). A string keeps its origins; a list or map becomes its repr(), which belongs
// whole to the strongest origin of any string in it. Undefined is empty.
// Errors: InvalidArgument for functions, loops and namespaces.
absl::StatusOr<Text> ToText(const Value& value, Budget& budget);

struct JsonFormat {
  std::optional<std::string> indent;  // of one level; absent = all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ensure_ascii = false;
  bool sort_keys = false;
};

// Python's json.dumps() with these settings. The defaults are what chat templates expect of their
// `tojson`: keys in order of insertion, nothing escaped that JSON does not require.
//
// The result belongs whole to the strongest origin of any string in it, keys included.
// Errors: InvalidArgument for values that are no JSON, ResourceExhausted if it gets too long.
absl::StatusOr<Text> ToJson(const Value& value, const JsonFormat& format, Budget& budget);

}  // namespace switchyard::model::jinja
