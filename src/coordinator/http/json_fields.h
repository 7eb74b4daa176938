// The fields of a JSON object in a request, each through one checked conversion.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

#include "coordinator/http/json_text.h"

namespace switchyard::coordinator::http {

// Reads fields by name. null is the same as absent. The first error stays; after it every read
// returns nothing, so callers read all they want and look at status() once.
//
// Errors: kInvalidArgument that names the field and what it must be, with the field as a detail.
class JsonFields {
 public:
  // `value` must outlive this; anything but an object is an error. `path`: of the object in the
  // request, "" for the request itself.
  explicit JsonFields(const Json& value, std::string path = "");

  const Json* Find(std::string_view name) const;
  std::optional<bool> Bool(std::string_view name);
  std::optional<int64_t> Integer(std::string_view name, int64_t low, int64_t high);
  std::optional<uint64_t> Unsigned(std::string_view name);
  std::optional<float> Number(std::string_view name, double low, double high);
  std::optional<std::string> String(std::string_view name);
  const Json* Array(std::string_view name);
  const Json* Object(std::string_view name);

  // Name of a field in the request: "stream_options.include_usage".
  std::string Path(std::string_view name) const;
  // Keeps `status` if it is the first error.
  void Fail(absl::Status status);
  // "`name` must be `what`".
  void FailType(std::string_view name, std::string_view what);
  const absl::Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }

 private:
  const Json& value_;
  const std::string path_;
  absl::Status status_;
};

// A JSON number as an integer in [low, high]: not negative zero's, not 1.5, not 1e300.
absl::StatusOr<int64_t> JsonInteger(std::string_view field, const Json& value, int64_t low,
                                    int64_t high);

}  // namespace switchyard::coordinator::http
