// The values that templates compute with: Python's, as far as chat templates use them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "model/template/limits.h"
#include "model/template/text.h"

namespace switchyard::model::jinja {

class Value;
struct List;
class Map;
struct Namespace;
struct LoopState;
struct MacroValue;
struct BoundMethod;

using TextPtr = std::shared_ptr<const Text>;
using ListPtr = std::shared_ptr<const List>;
using MapPtr = std::shared_ptr<const Map>;

// A missing variable, attribute or element. `name` is what was looked up, for messages; it points
// into the parsed template and may be null.
struct Undefined {
  const std::string* name = nullptr;
};

enum class Builtin { kRange, kNamespace, kDict, kRaiseException, kStrftimeNow };

// One value. Lists, maps and texts are immutable and shared: nothing a template does changes a
// value that another name holds, except the fields of a namespace.
class Value {
 public:
  using None = std::monostate;

  Value() = default;  // undefined
  static Value MakeNone() { return Value(Data(None{})); }
  static Value MakeUndefined(const std::string* name) { return Value(Data(Undefined{name})); }
  static Value Of(bool value) { return Value(Data(value)); }
  static Value Of(int64_t value) { return Value(Data(value)); }
  static Value Of(uint64_t value);  // becomes a signed integer where that holds it
  static Value Of(double value) { return Value(Data(value)); }
  static Value Of(Text text) { return Value(Data(std::make_shared<const Text>(std::move(text)))); }
  static Value Of(TextPtr text) { return Value(Data(std::move(text))); }
  static Value Of(MapPtr map) { return Value(Data(std::move(map))); }
  static Value Of(ListPtr list) { return Value(Data(std::move(list))); }
  static Value Of(Namespace* fields) { return Value(Data(fields)); }
  static Value Of(std::shared_ptr<LoopState> loop) { return Value(Data(std::move(loop))); }
  static Value Of(std::shared_ptr<const MacroValue> m) { return Value(Data(std::move(m))); }
  static Value Of(std::shared_ptr<const BoundMethod> m) { return Value(Data(std::move(m))); }
  static Value Of(Builtin builtin) { return Value(Data(builtin)); }

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_string() const { return std::holds_alternative<TextPtr>(data_); }
  bool is_list() const { return std::holds_alternative<ListPtr>(data_); }
  bool is_map() const { return std::holds_alternative<MapPtr>(data_); }
  // Integers without booleans; unsigned ones are those above the signed range.
  bool is_integer() const { return std::holds_alternative<int64_t>(data_) || is_unsigned(); }
  bool is_unsigned() const { return std::holds_alternative<uint64_t>(data_); }
  bool is_number() const { return is_bool() || is_integer() || is_float(); }
  bool is_callable() const;

  // Each REQUIRES that the value is of that kind.
  const std::string* undefined_name() const { return std::get<Undefined>(data_).name; }
  bool boolean() const { return std::get<bool>(data_); }
  uint64_t unsigned_integer() const { return std::get<uint64_t>(data_); }
  double real() const { return std::get<double>(data_); }
  const Text& text() const { return *std::get<TextPtr>(data_); }
  const ListPtr& list() const { return std::get<ListPtr>(data_); }
  const MapPtr& map() const { return std::get<MapPtr>(data_); }

  // The object of that kind, or null.
  Namespace* as_namespace() const;
  LoopState* as_loop() const;
  const MacroValue* as_macro() const;
  const BoundMethod* as_method() const;
  const Builtin* as_builtin() const { return std::get_if<Builtin>(&data_); }
  // Integers in the signed range and booleans, which count as 0 and 1; else false.
  bool AsInteger(int64_t* out) const;
  // Any number; REQUIRES is_number().
  double AsDouble() const;

  // Python's truth: empty, zero, none and undefined are false.
  bool IsTrue() const;
  // "string", "integer", "map", ...: for messages.
  std::string_view kind_name() const;
  // Lists and maps inside each other; 0 for everything else.
  int depth() const;

 private:
  using Data =
      std::variant<Undefined, None, bool, int64_t, uint64_t, double, TextPtr, ListPtr, MapPtr,
                   Namespace*, std::shared_ptr<LoopState>, std::shared_ptr<const MacroValue>,
                   std::shared_ptr<const BoundMethod>, Builtin>;
  explicit Value(Data data) : data_(std::move(data)) {}

  Data data_;
};

struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  int depth = 1;
};

// A map from strings that keeps the order of insertion.
class Map {
 public:
  struct Entry {
    TextPtr key;
    Value value;
  };

  // A later value of the same key replaces the first in place.
  void Set(TextPtr key, Value value);
  const Value* Find(std::string_view key) const;  // null if absent

  const std::vector<Entry>& entries() const { return entries_; }
  int depth() const { return depth_; }
  // Which of the context's messages this map is, or -1.
  int message_index() const { return message_index_; }
  void set_message_index(int index) { message_index_ = index; }

 private:
  std::vector<Entry> entries_;
  // Filled once there are more than a few entries: clients choose keys and their number.
  absl::flat_hash_map<absl::string_view, size_t> index_;
  int depth_ = 1;
  int message_index_ = -1;
};

// The one mutable object, made by namespace(). Owned by the rendering, which makes cycles harmless.
struct Namespace {
  absl::flat_hash_map<std::string, Value> fields;
};

// The `loop` variable of one running loop.
struct LoopState {
  ListPtr items;
  int64_t index = 0;  // from 0
};

struct BoundMethod {
  Value self;
  std::string name;
};

// Makes a list, or an error if it nests too deep. Charges nothing.
absl::StatusOr<Value> MakeList(std::vector<Value> items, bool is_tuple = false);
absl::StatusOr<Value> MakeMap(Map map);

// Converts a JSON value whose strings are of this origin.
// Errors: InvalidArgument if it nests deeper than kMaxValueDepth.
absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json, Origin origin);

// Converts the variables of a rendering: FromJson(), where `messages` is an array whose elements
// carry their index as origin and message_index(). `template_strings` come on top, are text of the
// template and hide members of the same name.
// Errors: InvalidArgument if it is no object or nests too deep.
absl::StatusOr<MapPtr> FromContext(const nlohmann::ordered_json& context,
                                   const std::map<std::string, std::string>& template_strings);

// Python's ==. The budget pays for walking lists and maps.
absl::StatusOr<bool> Equals(const Value& a, const Value& b, Budget& budget);

// An error that says that `value` is undefined, for operations that need a value.
absl::Status UndefinedError(const Value& value);

}  // namespace switchyard::model::jinja
