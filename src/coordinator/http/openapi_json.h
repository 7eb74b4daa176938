// The description of the HTTP API, docs/openapi.yaml, as JSON. Written by the build.
#pragma once

#include <string_view>

namespace switchyard::coordinator::http {

extern const std::string_view kOpenApiJson;

}  // namespace switchyard::coordinator::http
