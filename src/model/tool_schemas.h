// What the tools of a request say about the types of their arguments.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"

namespace switchyard::model {

// The tools of one request, as far as reading their calls needs them.
//
// Threads: any number of readers.
class ToolSchemas {
 public:
  ToolSchemas() = default;

  // Reads a list of tools in the OpenAI form: {"type": "function", "function": {"name": ...,
  // "parameters": <JSON schema>}}, or the inner object alone. Null is an empty list. Whatever has
  // another form is passed over: to check requests is the server's work.
  explicit ToolSchemas(const nlohmann::ordered_json& tools);

  bool empty() const { return tools_.empty(); }
  bool Contains(std::string_view tool) const;

  // Turns the raw text of an argument into JSON text by the schema of the parameter:
  // - a parameter that is only a string takes the text as it is;
  // - otherwise text that is JSON of an allowed type (with white space around it) is taken as
  //   written; so are true, false and null in Python's spelling where their type is allowed. A
  //   number without a fraction counts as an integer, also as 5.0;
  // - a parameter of unknown type takes any valid JSON;
  // - everything else is a string, also if the schema does not allow one, and so is JSON that
  //   passes the limits on arguments.
  //
  // Types come from `type`, `enum`, `const`, `anyOf`, `oneOf`, `allOf` and references to `$defs`
  // and `definitions` of the same schema.
  std::string ArgumentJson(std::string_view tool, std::string_view parameter,
                           std::string_view text) const;

 private:
  using Types = uint8_t;  // a set; see the source file
  using Parameters = absl::flat_hash_map<std::string, Types>;

  absl::flat_hash_map<std::string, Parameters> tools_;
};

// `text` as a JSON string; bytes that are no UTF-8 become U+FFFD.
std::string JsonString(std::string_view text);

}  // namespace switchyard::model
