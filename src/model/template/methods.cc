#include "model/template/methods.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/status_macros.h"
#include "model/template/text_functions.h"
#include "model/template/unicode.h"

namespace switchyard::model::jinja {
namespace {

using Result = absl::StatusOr<Value>;

constexpr std::string_view kTextMethods[] = {
    "capitalize", "count",      "endswith",   "find",   "isdigit", "join",         "lower",
    "lstrip",     "replace",    "rfind",      "rsplit", "rstrip",  "removeprefix", "removesuffix",
    "split",      "splitlines", "startswith", "strip",  "upper"};
constexpr std::string_view kListMethods[] = {"count", "index"};
constexpr std::string_view kMapMethods[] = {"get", "items", "keys", "values"};
constexpr std::string_view kLoopMethods[] = {"cycle"};

template <size_t n>
bool Contains(const std::string_view (&names)[n], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

absl::StatusOr<const Text*> NeedText(std::string_view method, const Value* argument) {
  if (argument != nullptr && argument->is_string()) return &argument->text();
  return InvalidArgument("argument is no string: {}", method);
}

absl::StatusOr<int64_t> IntegerOr(std::string_view method, const Value* argument, int64_t missing) {
  int64_t value = missing;
  if (argument == nullptr || argument->AsInteger(&value)) return value;
  return InvalidArgument("argument is no integer: {}", method);
}

Result StripMethod(const Text& text, std::string_view name, const Arguments& arguments,
                   Budget& budget) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind(name, {"chars"}));
  const Text* characters = nullptr;
  if (bound[0] != nullptr && !bound[0]->is_none()) {
    SWITCHYARD_ASSIGN_OR_RETURN(characters, NeedText(name, bound[0]));
  }
  SWITCHYARD_ASSIGN_OR_RETURN(Text stripped,
                              Strip(text, name != "rstrip", name != "lstrip", characters, budget));
  return Value::Of(std::move(stripped));
}

Result SplitMethod(const Text& text, std::string_view name, const Arguments& arguments,
                   Budget& budget) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind(name, {"sep", "maxsplit"}));
  const Text* separator = nullptr;
  if (bound[0] != nullptr && !bound[0]->is_none()) {
    SWITCHYARD_ASSIGN_OR_RETURN(separator, NeedText(name, bound[0]));
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t limit, IntegerOr(name, bound[1], -1));
  return Split(text, separator, limit, name == "rsplit", budget);
}

bool HasAffix(std::string_view text, std::string_view affix, bool is_prefix) {
  if (affix.size() > text.size()) return false;
  return text.substr(is_prefix ? 0 : text.size() - affix.size(), affix.size()) == affix;
}

// startswith and endswith with one string or a tuple of them.
Result AffixMethod(const Text& text, std::string_view name, const Arguments& arguments,
                   Budget& budget) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind(name, {"affix"}));
  std::vector<Value> candidates;
  if (bound[0] != nullptr && bound[0]->is_list() && bound[0]->list()->is_tuple) {
    SWITCHYARD_RETURN_IF_ERROR(
        budget.ChargeSteps(static_cast<int64_t>(bound[0]->list()->items.size())));
    candidates = bound[0]->list()->items;
  } else if (bound[0] != nullptr) {
    candidates.push_back(*bound[0]);
  }
  if (candidates.empty() && bound[0] == nullptr)
    return InvalidArgument("needs an argument: {}", name);
  for (const Value& candidate : candidates) {
    SWITCHYARD_ASSIGN_OR_RETURN(const Text* affix, NeedText(name, &candidate));
    SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(affix->size()));
    if (HasAffix(text.view(), affix->view(), name == "startswith")) return Value::Of(true);
  }
  return Value::Of(false);
}

Result RemoveAffixMethod(const Text& text, std::string_view name, const Arguments& arguments,
                         Budget& budget) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind(name, {"affix"}));
  SWITCHYARD_ASSIGN_OR_RETURN(const Text* affix, NeedText(name, bound[0]));
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(text.footprint()));
  const bool is_prefix = name == "removeprefix";
  if (!HasAffix(text.view(), affix->view(), is_prefix)) return Value::Of(text);
  return Value::Of(is_prefix ? text.Slice(affix->size(), text.size())
                             : text.Slice(0, text.size() - affix->size()));
}

Result ReplaceMethod(const Text& text, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("replace", {"old", "new", "count"}));
  SWITCHYARD_ASSIGN_OR_RETURN(const Text* old, NeedText("replace", bound[0]));
  SWITCHYARD_ASSIGN_OR_RETURN(const Text* with, NeedText("replace", bound[1]));
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t limit, IntegerOr("replace", bound[2], -1));
  SWITCHYARD_ASSIGN_OR_RETURN(Text replaced, Replace(text, *old, *with, limit, budget));
  return Value::Of(std::move(replaced));
}

// find() and rfind() in code points, and count() of occurrences that do not overlap.
Result SearchMethod(const Text& text, std::string_view name, const Arguments& arguments,
                    Budget& budget) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind(name, {"sub"}));
  SWITCHYARD_ASSIGN_OR_RETURN(const Text* needle, NeedText(name, bound[0]));
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(text.size()));
  size_t found = name == "rfind" ? FindLast(text.view(), needle->view())
                                 : Find(text.view(), needle->view(), 0);
  if (name != "count") {
    if (found == std::string_view::npos) return Value::Of(int64_t{-1});
    return Value::Of(static_cast<int64_t>(CountCodePoints(text.view().substr(0, found))));
  }
  if (needle->empty()) return Value::Of(static_cast<int64_t>(CountCodePoints(text.view())) + 1);
  int64_t count = 0;
  for (; found != std::string_view::npos; ++count) {
    found = Find(text.view(), needle->view(), found + needle->size());
  }
  return Value::Of(count);
}

Result JoinMethod(const Text& separator, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("join", {"iterable"}));
  if (bound[0] == nullptr || !bound[0]->is_list()) return InvalidArgument("join() needs a list");
  for (const Value& item : bound[0]->list()->items) {
    if (!item.is_string()) return InvalidArgument("join() of no string: {}", item.kind_name());
  }
  SWITCHYARD_ASSIGN_OR_RETURN(Text joined, Join(bound[0]->list()->items, separator, budget));
  return Value::Of(std::move(joined));
}

Result CallTextMethod(const Text& text, std::string_view name, const Arguments& arguments,
                      Budget& budget) {
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    return StripMethod(text, name, arguments, budget);
  }
  if (name == "split" || name == "rsplit") return SplitMethod(text, name, arguments, budget);
  if (name == "startswith" || name == "endswith") {
    return AffixMethod(text, name, arguments, budget);
  }
  if (name == "removeprefix" || name == "removesuffix") {
    return RemoveAffixMethod(text, name, arguments, budget);
  }
  if (name == "replace") return ReplaceMethod(text, arguments, budget);
  if (name == "find" || name == "rfind" || name == "count")
    return SearchMethod(text, name, arguments, budget);
  if (name == "join") return JoinMethod(text, arguments, budget);
  // The rest takes no arguments.
  SWITCHYARD_RETURN_IF_ERROR(arguments.Bind(name, {}).status());
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(text.footprint()));
  if (name == "splitlines") return SplitLines(text, budget);
  if (name == "upper") return Value::Of(Upper(text));
  if (name == "lower") return Value::Of(Lower(text));
  if (name == "capitalize") return Value::Of(Capitalize(text));
  const std::string_view view = text.view();  // isdigit
  return Value::Of(!view.empty() && view.find_first_not_of("0123456789") == view.npos);
}

Result CallListMethod(const List& list, std::string_view name, const Arguments& arguments,
                      Budget& budget) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind(name, {"value"}));
  if (bound[0] == nullptr) return InvalidArgument("needs an argument: {}", name);
  int64_t count = 0;
  for (size_t i = 0; i < list.items.size(); ++i) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool equal, Equals(list.items[i], *bound[0], budget));
    if (!equal) continue;
    if (name == "index") return Value::Of(static_cast<int64_t>(i));
    ++count;
  }
  if (name == "index") return InvalidArgument("value is not in the list");
  return Value::Of(count);
}

Result CallMapMethod(const Map& map, std::string_view name, const Arguments& arguments,
                     Budget& budget) {
  if (name == "get") {
    SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind(name, {"key", "default"}));
    if (bound[0] == nullptr) return InvalidArgument("get() needs a key");
    if (bound[0]->is_string()) {
      if (const Value* found = map.Find(bound[0]->text().view())) return *found;
    }
    return bound[1] == nullptr ? Value::MakeNone() : *bound[1];
  }
  SWITCHYARD_RETURN_IF_ERROR(arguments.Bind(name, {}).status());
  if (name == "items") return MapItems(map, budget);
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeSteps(static_cast<int64_t>(map.entries().size())));
  std::vector<Value> values;
  values.reserve(map.entries().size());
  for (const Map::Entry& entry : map.entries()) {
    values.push_back(name == "keys" ? Value::Of(entry.key) : entry.value);
  }
  return MakeList(std::move(values));
}

}  // namespace

bool HasMethod(const Value& value, std::string_view name) {
  if (value.is_string()) return Contains(kTextMethods, name);
  if (value.is_map()) return Contains(kMapMethods, name);
  if (value.is_list()) return Contains(kListMethods, name);
  return value.as_loop() != nullptr && Contains(kLoopMethods, name);
}

absl::StatusOr<Value> CallMethod(const BoundMethod& method, const Arguments& arguments,
                                 Budget& budget) {
  const Value& self = method.self;
  if (self.is_string()) return CallTextMethod(self.text(), method.name, arguments, budget);
  if (self.is_map()) return CallMapMethod(*self.map(), method.name, arguments, budget);
  if (self.is_list()) return CallListMethod(*self.list(), method.name, arguments, budget);
  // loop.cycle(a, b, ...): one of them for each iteration in turn.
  if (arguments.positional.empty()) return InvalidArgument("cycle() needs an argument");
  const auto index = static_cast<size_t>(self.as_loop()->index);
  return arguments.positional[index % arguments.positional.size()];
}

absl::StatusOr<Value> MapItems(const Map& map, Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeSteps(static_cast<int64_t>(map.entries().size())));
  std::vector<Value> items;
  items.reserve(map.entries().size());
  for (const Map::Entry& entry : map.entries()) {
    SWITCHYARD_ASSIGN_OR_RETURN(Value item,
                                MakeList({Value::Of(entry.key), entry.value}, /*is_tuple=*/true));
    items.push_back(std::move(item));
  }
  return MakeList(std::move(items));
}

}  // namespace switchyard::model::jinja
