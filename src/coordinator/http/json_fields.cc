#include "coordinator/http/json_fields.h"

#include <limits>
#include <utility>

#include "base/error_info.h"
#include "base/status.h"
#include "coordinator/request_limits.h"

namespace switchyard::coordinator::http {

absl::StatusOr<int64_t> JsonInteger(std::string_view field, const Json& value, int64_t low,
                                    int64_t high) {
  if (value.is_number_unsigned()) {
    return CheckedInteger(field, value.get<uint64_t>(), low, high);
  }
  if (value.is_number_integer()) return CheckedInteger(field, value.get<int64_t>(), low, high);
  if (value.is_number_float()) return CheckedInteger(field, value.get<double>(), low, high);
  return WithField(InvalidArgument("{} must be an integer from {} to {}, got: {}", field, low, high,
                                   value.type_name()),
                   field);
}

JsonFields::JsonFields(const Json& value, std::string path)
    : value_(value), path_(std::move(path)) {
  if (value_.is_object()) return;
  if (path_.empty()) {
    Fail(InvalidArgument("the body must be a JSON object"));
  } else {
    Fail(WithField(InvalidArgument("{} must be an object", path_), path_));
  }
}

std::string JsonFields::Path(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

void JsonFields::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void JsonFields::FailType(std::string_view name, std::string_view what) {
  const std::string path = Path(name);
  Fail(WithField(InvalidArgument("{} must be {}", path, what), path));
}

const Json* JsonFields::Find(std::string_view name) const {
  if (!status_.ok()) return nullptr;
  const auto found = value_.find(name);
  return found == value_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> JsonFields::Bool(std::string_view name) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  FailType(name, "true or false");
  return std::nullopt;
}

std::optional<int64_t> JsonFields::Integer(std::string_view name, int64_t low, int64_t high) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  auto integer = JsonInteger(Path(name), *value, low, high);
  if (integer.ok()) return *integer;
  Fail(integer.status());
  return std::nullopt;
}

std::optional<uint64_t> JsonFields::Unsigned(std::string_view name) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  const auto integer = Integer(name, 0, std::numeric_limits<int64_t>::max());
  return integer ? std::optional<uint64_t>(static_cast<uint64_t>(*integer)) : std::nullopt;
}

std::optional<float> JsonFields::Number(std::string_view name, double low, double high) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    FailType(name, "a number");
    return std::nullopt;
  }
  const auto number = CheckedFloat(Path(name), value->get<double>(), low, high);
  if (number.ok()) return *number;
  Fail(number.status());
  return std::nullopt;
}

std::optional<std::string> JsonFields::String(std::string_view name) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  FailType(name, "a string");
  return std::nullopt;
}

const Json* JsonFields::Array(std::string_view name) {
  const Json* const value = Find(name);
  if (value == nullptr || value->is_array()) return value;
  FailType(name, "a list");
  return nullptr;
}

const Json* JsonFields::Object(std::string_view name) {
  const Json* const value = Find(name);
  if (value == nullptr || value->is_object()) return value;
  FailType(name, "an object");
  return nullptr;
}

}  // namespace switchyard::coordinator::http
