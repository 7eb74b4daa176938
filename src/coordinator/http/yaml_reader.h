// Reads the part of YAML in which docs/openapi.yaml is written.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"

#include "coordinator/http/json_text.h"

namespace switchyard::coordinator::http {

// Block mappings and sequences indented by spaces, plain and quoted scalars, flow sequences and
// mappings on one line, folded (>-) and literal (|) text, comments. Anchors, tags, documents and
// scalars over several lines are not read. Types of plain scalars are those of YAML 1.2's core
// schema.
//
// Errors: kInvalidArgument with the line.
absl::StatusOr<Json> ReadYaml(std::string_view text);

}  // namespace switchyard::coordinator::http
