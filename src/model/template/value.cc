#include "model/template/value.h"

#include <algorithm>
#include <limits>

#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::model::jinja {
namespace {

// Below this many entries a scan is as fast as a hash table.
constexpr size_t kIndexedFrom = 9;

absl::Status CheckDepth(int depth) {
  if (depth <= kMaxValueDepth) return absl::OkStatus();
  return InvalidArgument("value nests too deep, limit: {}", kMaxValueDepth);
}

absl::StatusOr<Value> FromJsonAt(const nlohmann::ordered_json& json, Origin origin, int level) {
  // Checked on the way down: the value's own depth is known only on the way up.
  SWITCHYARD_RETURN_IF_ERROR(CheckDepth(level));
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::boolean:
      return Value::Of(json.get<bool>());
    case Type::number_integer:
      return Value::Of(json.get<int64_t>());
    case Type::number_unsigned:
      return Value::Of(json.get<uint64_t>());
    case Type::number_float:
      return Value::Of(json.get<double>());
    case Type::string:
      return Value::Of(Text(json.get_ref<const std::string&>(), origin));
    case Type::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& element : json) {
        SWITCHYARD_ASSIGN_OR_RETURN(Value item, FromJsonAt(element, origin, level + 1));
        items.push_back(std::move(item));
      }
      return MakeList(std::move(items));
    }
    case Type::object: {
      Map map;
      for (const auto& [key, element] : json.items()) {
        SWITCHYARD_ASSIGN_OR_RETURN(Value value, FromJsonAt(element, origin, level + 1));
        map.Set(std::make_shared<const Text>(key, origin), std::move(value));
      }
      return MakeMap(std::move(map));
    }
    case Type::null:
    case Type::binary:
    case Type::discarded:
      break;
  }
  return Value::MakeNone();
}

absl::StatusOr<bool> ListsEqual(const List& a, const List& b, Budget& budget) {
  if (a.is_tuple != b.is_tuple || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool equal, Equals(a.items[i], b.items[i], budget));
    if (!equal) return false;
  }
  return true;
}

absl::StatusOr<bool> MapsEqual(const Map& a, const Map& b, Budget& budget) {
  if (a.entries().size() != b.entries().size()) return false;
  for (const Map::Entry& entry : a.entries()) {
    const Value* other = b.Find(entry.key->view());
    if (other == nullptr) return false;
    SWITCHYARD_ASSIGN_OR_RETURN(const bool equal, Equals(entry.value, *other, budget));
    if (!equal) return false;
  }
  return true;
}

}  // namespace

Value Value::Of(uint64_t value) {
  if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Of(static_cast<int64_t>(value));
  }
  return Value(Data(value));
}

bool Value::is_callable() const {
  return as_macro() != nullptr || as_method() != nullptr || as_builtin() != nullptr;
}

Namespace* Value::as_namespace() const {
  const auto* pointer = std::get_if<Namespace*>(&data_);
  return pointer == nullptr ? nullptr : *pointer;
}

LoopState* Value::as_loop() const {
  const auto* pointer = std::get_if<std::shared_ptr<LoopState>>(&data_);
  return pointer == nullptr ? nullptr : pointer->get();
}

const MacroValue* Value::as_macro() const {
  const auto* pointer = std::get_if<std::shared_ptr<const MacroValue>>(&data_);
  return pointer == nullptr ? nullptr : pointer->get();
}

const BoundMethod* Value::as_method() const {
  const auto* pointer = std::get_if<std::shared_ptr<const BoundMethod>>(&data_);
  return pointer == nullptr ? nullptr : pointer->get();
}

bool Value::AsInteger(int64_t* out) const {
  if (const auto* integer = std::get_if<int64_t>(&data_)) {
    *out = *integer;
    return true;
  }
  if (!is_bool()) return false;
  *out = boolean() ? 1 : 0;
  return true;
}

double Value::AsDouble() const {
  if (is_float()) return real();
  if (is_unsigned()) return static_cast<double>(unsigned_integer());
  int64_t integer = 0;
  AsInteger(&integer);
  return static_cast<double>(integer);
}

bool Value::IsTrue() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return is_unsigned() || AsDouble() != 0.0;
  if (is_string()) return !text().empty();
  if (is_list()) return !list()->items.empty();
  if (is_map()) return !map()->entries().empty();
  if (const LoopState* loop = as_loop()) return !loop->items->items.empty();
  return true;
}

std::string_view Value::kind_name() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "none";
  if (is_bool()) return "boolean";
  if (is_integer()) return "integer";
  if (is_float()) return "float";
  if (is_string()) return "string";
  if (is_list()) return list()->is_tuple ? "tuple" : "list";
  if (is_map()) return "map";
  if (as_namespace() != nullptr) return "namespace";
  if (as_loop() != nullptr) return "loop";
  return "function";
}

int Value::depth() const {
  if (is_list()) return list()->depth;
  if (is_map()) return map()->depth();
  if (const BoundMethod* method = as_method()) return 1 + method->self.depth();
  return 0;
}

void Map::Set(TextPtr key, Value value) {
  depth_ = std::max(depth_, 1 + value.depth());
  if (const Value* present = Find(key->view())) {
    const_cast<Value&>(*present) = std::move(value);
    return;
  }
  entries_.push_back({std::move(key), std::move(value)});
  if (entries_.size() == kIndexedFrom) {
    for (size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].key->bytes(), i);
  } else if (entries_.size() > kIndexedFrom) {
    index_.emplace(entries_.back().key->bytes(), entries_.size() - 1);
  }
}

const Value* Map::Find(std::string_view key) const {
  if (entries_.size() >= kIndexedFrom) {
    const auto found = index_.find(ToAbsl(key));
    return found == index_.end() ? nullptr : &entries_[found->second].value;
  }
  for (const Entry& entry : entries_) {
    if (entry.key->view() == key) return &entry.value;
  }
  return nullptr;
}

absl::StatusOr<Value> MakeList(std::vector<Value> items, bool is_tuple) {
  auto list = std::make_shared<List>();
  for (const Value& item : items) list->depth = std::max(list->depth, 1 + item.depth());
  SWITCHYARD_RETURN_IF_ERROR(CheckDepth(list->depth));
  list->items = std::move(items);
  list->is_tuple = is_tuple;
  return Value::Of(ListPtr(std::move(list)));
}

absl::StatusOr<Value> MakeMap(Map map) {
  SWITCHYARD_RETURN_IF_ERROR(CheckDepth(map.depth()));
  return Value::Of(MapPtr(std::make_shared<const Map>(std::move(map))));
}

absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json, Origin origin) {
  return FromJsonAt(json, origin, 1);
}

absl::StatusOr<MapPtr> FromContext(const nlohmann::ordered_json& context,
                                   const std::map<std::string, std::string>& template_strings) {
  if (!context.is_object()) return InvalidArgument("variables of a template are no JSON object");
  auto variables = std::make_shared<Map>();
  for (const auto& [name, json] : context.items()) {
    Value value;
    if (name == "messages" && json.is_array()) {
      std::vector<Value> messages;
      messages.reserve(json.size());
      for (const auto& element : json) {
        const int index = static_cast<int>(messages.size());
        SWITCHYARD_ASSIGN_OR_RETURN(Value message, FromJson(element, index));
        if (message.is_map()) {
          Map tagged = *message.map();
          tagged.set_message_index(index);
          SWITCHYARD_ASSIGN_OR_RETURN(message, MakeMap(std::move(tagged)));
        }
        messages.push_back(std::move(message));
      }
      SWITCHYARD_ASSIGN_OR_RETURN(value, MakeList(std::move(messages)));
    } else {
      SWITCHYARD_ASSIGN_OR_RETURN(value, FromJson(json, kFromContext));
    }
    variables->Set(std::make_shared<const Text>(name, kFromContext), std::move(value));
  }
  for (const auto& [name, text] : template_strings) {
    variables->Set(std::make_shared<const Text>(name, kFromTemplate),
                   Value::Of(Text(text, kFromTemplate)));
  }
  return MapPtr(std::move(variables));
}

absl::StatusOr<bool> Equals(const Value& a, const Value& b, Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeNode());
  if (a.is_number() && b.is_number()) {
    int64_t left = 0;
    int64_t right = 0;
    if (a.AsInteger(&left) && b.AsInteger(&right)) return left == right;
    if (a.is_unsigned() && b.is_unsigned()) return a.unsigned_integer() == b.unsigned_integer();
    return a.AsDouble() == b.AsDouble();
  }
  if (a.is_string() && b.is_string()) {
    if (a.text().size() != b.text().size()) return false;
    SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(a.text().size()));
    return a.text().bytes() == b.text().bytes();
  }
  if (a.is_list() && b.is_list()) return ListsEqual(*a.list(), *b.list(), budget);
  if (a.is_map() && b.is_map()) return MapsEqual(*a.map(), *b.map(), budget);
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.as_namespace() != nullptr) return a.as_namespace() == b.as_namespace();
  if (a.as_loop() != nullptr) return a.as_loop() == b.as_loop();
  if (a.as_macro() != nullptr) return a.as_macro() == b.as_macro();
  if (a.as_method() != nullptr) return a.as_method() == b.as_method();
  if (a.as_builtin() != nullptr && b.as_builtin() != nullptr) {
    return *a.as_builtin() == *b.as_builtin();
  }
  return false;
}

absl::Status UndefinedError(const Value& value) {
  const std::string* name = value.undefined_name();
  if (name == nullptr) return InvalidArgument("value is undefined");
  return InvalidArgument("value is undefined: {}", *name);
}

}  // namespace switchyard::model::jinja
