#include "model/tool_schemas.h"

#include <cmath>
#include <cstdlib>
#include <utility>

#include "base/status.h"
#include "model/json_scanner.h"

namespace switchyard::model {
namespace {

using Json = nlohmann::ordered_json;

enum Type : uint8_t {
  kString = 1,
  kInteger = 2,
  kNumber = 4,
  kBoolean = 8,
  kNull = 16,
  kObject = 32,
  kArray = 64,
};
constexpr uint8_t kAnyType = 127;

// References and alternatives inside each other; real schemas have one or two.
constexpr int kMaxSchemaDepth = 8;

// Work on the types of one parameter, so that references cannot multiply.
constexpr int kMaxSchemaNodes = 1000;

uint8_t TypeOfName(std::string_view name) {
  if (name == "string") return kString;
  if (name == "integer") return kInteger;
  if (name == "number") return kNumber | kInteger;
  if (name == "boolean") return kBoolean;
  if (name == "null") return kNull;
  if (name == "object") return kObject;
  if (name == "array") return kArray;
  return 0;
}

uint8_t TypeOfValue(const Json& value) {
  if (value.is_string()) return kString;
  if (value.is_number_integer()) return kInteger;
  if (value.is_number()) return kNumber;
  if (value.is_boolean()) return kBoolean;
  if (value.is_null()) return kNull;
  return value.is_object() ? kObject : kArray;
}

const Json* Member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

// The types that one schema allows; 0 = it does not say.
class TypeReader {
 public:
  explicit TypeReader(const Json& root) : root_(root) {}

  uint8_t Read(const Json& schema, int depth = 0) {
    if (depth > kMaxSchemaDepth || ++num_nodes_ > kMaxSchemaNodes) return 0;
    if (const Json* type = Member(schema, "type")) return ReadType(*type);
    if (const Json* value = Member(schema, "const")) return TypeOfValue(*value);
    if (const Json* values = Member(schema, "enum")) {
      uint8_t types = 0;
      for (const Json& value : *values) types |= TypeOfValue(value);
      return types;
    }
    if (const Json* target = Target(schema)) return Read(*target, depth + 1);
    for (const char* const key : {"anyOf", "oneOf"}) {
      if (const Json* options = Member(schema, key)) return ReadUnion(*options, depth);
    }
    if (const Json* parts = Member(schema, "allOf")) {
      uint8_t types = kAnyType;
      for (const Json& part : *parts) {
        const uint8_t of_part = Read(part, depth + 1);
        if (of_part != 0) types &= of_part;
      }
      return types == kAnyType ? 0 : types;
    }
    return 0;
  }

 private:
  static uint8_t ReadType(const Json& type) {
    if (type.is_string()) return TypeOfName(type.get_ref<const std::string&>());
    uint8_t types = 0;
    if (!type.is_array()) return types;
    for (const Json& name : type) {
      if (name.is_string()) types |= TypeOfName(name.get_ref<const std::string&>());
    }
    return types;
  }

  // An alternative that does not say its type allows any.
  uint8_t ReadUnion(const Json& options, int depth) {
    uint8_t types = 0;
    for (const Json& option : options) {
      const uint8_t of_option = Read(option, depth + 1);
      if (of_option == 0) return 0;
      types |= of_option;
    }
    return types;
  }

  // What a "$ref" within the same schema points to, or null.
  const Json* Target(const Json& schema) const {
    const Json* reference = Member(schema, "$ref");
    if (reference == nullptr || !reference->is_string()) return nullptr;
    const std::string_view path = reference->get_ref<const std::string&>();
    for (const char* const key : {"$defs", "definitions"}) {
      const std::string prefix = "#/" + std::string(key) + "/";
      if (path.substr(0, prefix.size()) != prefix) continue;
      const Json* definitions = Member(root_, key);
      if (definitions == nullptr) return nullptr;
      return Member(*definitions, std::string(path.substr(prefix.size())).c_str());
    }
    return nullptr;
  }

  const Json& root_;
  int num_nodes_ = 0;
};

bool EqualsIgnoringCase(std::string_view text, std::string_view lower) {
  if (text.size() != lower.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c + 'a' - 'A') : c) != lower[i]) return false;
  }
  return true;
}

// JSON for the names of constants in either spelling, or null.
const char* Constant(std::string_view text, uint8_t types) {
  if ((types & kBoolean) != 0 && EqualsIgnoringCase(text, "true")) return "true";
  if ((types & kBoolean) != 0 && EqualsIgnoringCase(text, "false")) return "false";
  const bool is_null = EqualsIgnoringCase(text, "null") || EqualsIgnoringCase(text, "none");
  return (types & kNull) != 0 && is_null ? "null" : nullptr;
}

// Type of a valid JSON text by its first byte.
uint8_t TypeOfJson(std::string_view json) {
  switch (json.front()) {
    case '"':
      return kString;
    case '{':
      return kObject;
    case '[':
      return kArray;
    case 't':
    case 'f':
      return kBoolean;
    case 'n':
      return kNull;
    default:
      break;
  }
  if (json.find_first_of(".eE") == std::string_view::npos) return kInteger;
  const double value = std::strtod(std::string(json).c_str(), nullptr);
  return value == std::trunc(value) ? kInteger : kNumber;
}

}  // namespace

std::string JsonString(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

ToolSchemas::ToolSchemas(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    const Json* nested = Member(tool, "function");
    const Json& function = nested == nullptr ? tool : *nested;
    const Json* name = Member(function, "name");
    if (name == nullptr || !name->is_string()) continue;
    Parameters& parameters = tools_[name->get_ref<const std::string&>()];
    const Json* schema = Member(function, "parameters");
    const Json* properties = schema == nullptr ? nullptr : Member(*schema, "properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [key, property] : properties->items()) {
      parameters[key] = TypeReader(*schema).Read(property);
    }
  }
}

bool ToolSchemas::Contains(std::string_view tool) const { return tools_.contains(ToAbsl(tool)); }

std::string ToolSchemas::ArgumentJson(std::string_view tool, std::string_view parameter,
                                      std::string_view text) const {
  Types types = 0;
  if (const auto found = tools_.find(ToAbsl(tool)); found != tools_.end()) {
    const auto known = found->second.find(ToAbsl(parameter));
    if (known != found->second.end()) types = known->second;
  }
  if (types == kString) return JsonString(text);
  const std::string_view trimmed = TrimJsonSpace(text);
  if (const char* constant = Constant(trimmed, types)) return constant;
  if (!IsBoundedJson(trimmed)) return JsonString(text);
  if (types == 0) return std::string(trimmed);
  // Where a string is allowed, quotes belong to it.
  const Types type = TypeOfJson(trimmed) & ~kString;
  return (types & type) != 0 ? std::string(trimmed) : JsonString(text);
}

}  // namespace switchyard::model
