#include "model/template/sequence_filters.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/status_macros.h"
#include "model/template/filters.h"
#include "model/template/methods.h"
#include "model/template/operators.h"
#include "model/template/tests.h"
#include "model/template/text_functions.h"
#include "model/template/unicode.h"

namespace switchyard::model::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// What `path` names below `object`: keys and indices with dots between them, or one index. Where a
// step finds nothing it takes `missing` instead, if that is not null.
Result AtPath(const Value& object, const Value& path, const Value* missing, Budget& budget) {
  Value at = object;
  std::string_view rest = path.is_string() ? path.text().view() : "";
  for (bool is_last = false; !is_last;) {
    SWITCHYARD_RETURN_IF_ERROR(budget.ChargeSteps(1));
    Value key = path;
    const size_t dot = rest.find('.');
    is_last = dot == std::string_view::npos;
    if (path.is_string()) {
      const std::string_view part = rest.substr(0, dot);
      int64_t index = 0;
      const auto result = std::from_chars(part.data(), part.data() + part.size(), index);
      const bool is_index = result.ec == std::errc() && result.ptr == part.data() + part.size();
      key = is_index ? Value::Of(index) : Value::Of(Text(std::string(part), kFromTemplate));
    }
    SWITCHYARD_ASSIGN_OR_RETURN(at, Subscript(at, key, budget));
    if (at.is_undefined() && missing != nullptr) at = *missing;
    if (!is_last) rest.remove_prefix(dot + 1);
  }
  return at;
}

// Arguments without the first `count` positional ones.
Arguments Rest(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  count = std::min(count, rest.positional.size());
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<ptrdiff_t>(count));
  return rest;
}

// The items for which a test (truth if none is named) holds, or does not if `negated`. With
// `by_attribute` the first argument is the path that the test looks at.
Result SelectBy(const Value& input, const Arguments& arguments, bool by_attribute, bool negated,
                Budget& budget) {
  const size_t test_at = by_attribute ? 1 : 0;
  if (by_attribute && arguments.positional.empty()) {
    return InvalidArgument("selectattr needs the name of an attribute");
  }
  Test test = nullptr;
  Arguments test_arguments;
  if (arguments.positional.size() > test_at) {
    const Value& name = arguments.positional[test_at];
    test = name.is_string() ? FindTest(name.text().view()) : nullptr;
    if (test == nullptr) return InvalidArgument("no such test for select");
    test_arguments = Rest(arguments, test_at + 1);
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const ListPtr list, Elements(input, budget));
  std::vector<Value> selected;
  for (const Value& item : list->items) {
    SWITCHYARD_RETURN_IF_ERROR(budget.ChargeSteps(1));
    Value subject = item;
    if (by_attribute) {
      SWITCHYARD_ASSIGN_OR_RETURN(subject, AtPath(item, arguments.positional[0], nullptr, budget));
    }
    bool holds = subject.IsTrue();
    if (test != nullptr) {
      SWITCHYARD_ASSIGN_OR_RETURN(holds, test(subject, test_arguments, budget));
    }
    if (holds != negated) selected.push_back(item);
  }
  return MakeList(std::move(selected));
}

struct Keyed {
  Value key;
  Value item;
};

// Sorts by key, stable, as Python's sorted(). Strings compare without case unless asked to.
Result SortByKey(std::vector<Keyed> keyed, bool reverse, bool case_sensitive, Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeSteps(static_cast<int64_t>(keyed.size())));
  for (Keyed& entry : keyed) {
    if (entry.key.is_string() && !case_sensitive) {
      SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(entry.key.text().footprint()));
      entry.key = Value::Of(Lower(entry.key.text()));
    }
    const bool same_kind = entry.key.is_string() == keyed.front().key.is_string() &&
                           entry.key.is_number() == keyed.front().key.is_number();
    if (!same_kind || (!entry.key.is_string() && !entry.key.is_number())) {
      return InvalidArgument("cannot sort by: {}", entry.key.kind_name());
    }
  }
  absl::Status status;  // of comparing; once it fails the order no longer matters
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& a, const Keyed& b) {
    if (!status.ok()) return false;
    const absl::StatusOr<bool> less =
        Compare(Operator::kLess, reverse ? b.key : a.key, reverse ? a.key : b.key, budget);
    if (!less.ok()) {
      status = less.status();
      return false;
    }
    return *less;
  });
  SWITCHYARD_RETURN_IF_ERROR(status);
  std::vector<Value> items;
  items.reserve(keyed.size());
  for (Keyed& entry : keyed) items.push_back(std::move(entry.item));
  return MakeList(std::move(items));
}

}  // namespace

Result LengthFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(arguments.Bind("length", {}).status());
  size_t length = 0;
  if (input.is_string()) {
    SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(input.text().size()));
    length = CountCodePoints(input.text().view());
  } else if (input.is_list()) {
    length = input.list()->items.size();
  } else if (input.is_map()) {
    length = input.map()->entries().size();
  } else if (const LoopState* loop = input.as_loop()) {
    length = loop->items->items.size();
  } else if (!input.is_undefined()) {
    return InvalidArgument("value has no length: {}", input.kind_name());
  }
  return Value::Of(static_cast<int64_t>(length));
}

Result ItemsFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(arguments.Bind("items", {}).status());
  if (input.is_undefined()) return MakeList({});
  if (!input.is_map()) return InvalidArgument("items of no map: {}", input.kind_name());
  return MapItems(*input.map(), budget);
}

Result ListFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(arguments.Bind("list", {}).status());
  SWITCHYARD_ASSIGN_OR_RETURN(const ListPtr list, Elements(input, budget));
  if (!list->is_tuple) return Value::Of(list);
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeSteps(static_cast<int64_t>(list->items.size())));
  return MakeList(list->items);
}

Result FirstFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(arguments.Bind("first", {}).status());
  if (input.is_string()) return Subscript(input, Value::Of(int64_t{0}), budget);
  SWITCHYARD_ASSIGN_OR_RETURN(const ListPtr list, Elements(input, budget));
  return list->items.empty() ? Value() : list->items.front();
}

Result LastFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(arguments.Bind("last", {}).status());
  if (input.is_string()) return Subscript(input, Value::Of(int64_t{-1}), budget);
  SWITCHYARD_ASSIGN_OR_RETURN(const ListPtr list, Elements(input, budget));
  return list->items.empty() ? Value() : list->items.back();
}

Result JoinFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("join", {"d", "attribute"}));
  if (bound[0] != nullptr && !bound[0]->is_string()) {
    return InvalidArgument("separator of join is no string: {}", bound[0]->kind_name());
  }
  const Text separator = bound[0] == nullptr ? Text() : bound[0]->text();
  SWITCHYARD_ASSIGN_OR_RETURN(const ListPtr list, Elements(input, budget));
  if (bound[1] == nullptr || bound[1]->is_none()) {
    SWITCHYARD_ASSIGN_OR_RETURN(Text joined, Join(list->items, separator, budget));
    return Value::Of(std::move(joined));
  }
  std::vector<Value> parts;
  for (const Value& item : list->items) {
    SWITCHYARD_ASSIGN_OR_RETURN(Value part, AtPath(item, *bound[1], nullptr, budget));
    parts.push_back(std::move(part));
  }
  SWITCHYARD_ASSIGN_OR_RETURN(Text joined, Join(parts, separator, budget));
  return Value::Of(std::move(joined));
}

Result ReverseFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_RETURN_IF_ERROR(arguments.Bind("reverse", {}).status());
  if (input.is_string()) return Slice(input, Value(), Value(), Value::Of(int64_t{-1}), budget);
  SWITCHYARD_ASSIGN_OR_RETURN(const ListPtr list, Elements(input, budget));
  SWITCHYARD_RETURN_IF_ERROR(budget.ChargeSteps(static_cast<int64_t>(list->items.size())));
  return MakeList(std::vector<Value>(list->items.rbegin(), list->items.rend()));
}

Result UniqueFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound,
                              arguments.Bind("unique", {"case_sensitive", "attribute"}));
  const bool case_sensitive = bound[0] != nullptr && bound[0]->IsTrue();
  SWITCHYARD_ASSIGN_OR_RETURN(const ListPtr list, Elements(input, budget));
  std::vector<Value> keys;
  std::vector<Value> items;
  for (const Value& item : list->items) {
    SWITCHYARD_RETURN_IF_ERROR(budget.ChargeSteps(1));
    Value key = item;
    if (bound[1] != nullptr && !bound[1]->is_none()) {
      SWITCHYARD_ASSIGN_OR_RETURN(key, AtPath(item, *bound[1], nullptr, budget));
    }
    if (key.is_string() && !case_sensitive) {
      SWITCHYARD_RETURN_IF_ERROR(budget.ChargeText(key.text().footprint()));
      key = Value::Of(Lower(key.text()));
    }
    bool is_new = true;
    for (size_t i = 0; i < keys.size() && is_new; ++i) {
      SWITCHYARD_ASSIGN_OR_RETURN(const bool equal, Equals(keys[i], key, budget));
      is_new = !equal;
    }
    if (!is_new) continue;
    keys.push_back(std::move(key));
    items.push_back(item);
  }
  return MakeList(std::move(items));
}

Result SortFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound,
                              arguments.Bind("sort", {"reverse", "case_sensitive", "attribute"}));
  SWITCHYARD_ASSIGN_OR_RETURN(const ListPtr list, Elements(input, budget));
  std::vector<Keyed> keyed;
  for (const Value& item : list->items) {
    Value key = item;
    if (bound[2] != nullptr && !bound[2]->is_none()) {
      SWITCHYARD_ASSIGN_OR_RETURN(key, AtPath(item, *bound[2], nullptr, budget));
    }
    keyed.push_back({std::move(key), item});
  }
  return SortByKey(std::move(keyed), bound[0] != nullptr && bound[0]->IsTrue(),
                   bound[1] != nullptr && bound[1]->IsTrue(), budget);
}

Result DictSortFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto bound,
                              arguments.Bind("dictsort", {"case_sensitive", "by", "reverse"}));
  if (!input.is_map()) return InvalidArgument("dictsort of no map: {}", input.kind_name());
  size_t by = 0;
  if (bound[1] != nullptr) {
    const std::string_view name = bound[1]->is_string() ? bound[1]->text().view() : "";
    if (name != "key" && name != "value")
      return InvalidArgument("dictsort by neither key nor value");
    by = name == "key" ? 0 : 1;
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const Value items, MapItems(*input.map(), budget));
  std::vector<Keyed> keyed;
  for (const Value& item : items.list()->items) keyed.push_back({item.list()->items[by], item});
  return SortByKey(std::move(keyed), bound[2] != nullptr && bound[2]->IsTrue(),
                   bound[0] != nullptr && bound[0]->IsTrue(), budget);
}

Result MapFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  SWITCHYARD_ASSIGN_OR_RETURN(const ListPtr list, Elements(input, budget));
  std::vector<Value> mapped;
  if (arguments.positional.empty()) {
    SWITCHYARD_ASSIGN_OR_RETURN(const auto bound, arguments.Bind("map", {"attribute", "default"}));
    if (bound[0] == nullptr) return InvalidArgument("map needs a filter or an attribute");
    for (const Value& item : list->items) {
      SWITCHYARD_ASSIGN_OR_RETURN(Value value, AtPath(item, *bound[0], bound[1], budget));
      mapped.push_back(std::move(value));
    }
    return MakeList(std::move(mapped));
  }
  const Value& name = arguments.positional[0];
  const Filter filter = name.is_string() ? FindFilter(name.text().view()) : nullptr;
  if (filter == nullptr) return InvalidArgument("no such filter for map");
  // A filter that is given filters would nest without end: map('map', 'map', ...).
  if (filter == &MapFilter) return InvalidArgument("map cannot apply map");
  const Arguments filter_arguments = Rest(arguments, 1);
  for (const Value& item : list->items) {
    SWITCHYARD_RETURN_IF_ERROR(budget.ChargeSteps(1));
    SWITCHYARD_ASSIGN_OR_RETURN(Value value, filter(item, filter_arguments, budget));
    mapped.push_back(std::move(value));
  }
  return MakeList(std::move(mapped));
}

Result SelectFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  return SelectBy(input, arguments, /*by_attribute=*/false, /*negated=*/false, budget);
}

Result RejectFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  return SelectBy(input, arguments, /*by_attribute=*/false, /*negated=*/true, budget);
}

Result SelectAttributeFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  return SelectBy(input, arguments, /*by_attribute=*/true, /*negated=*/false, budget);
}

Result RejectAttributeFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  return SelectBy(input, arguments, /*by_attribute=*/true, /*negated=*/true, budget);
}

}  // namespace switchyard::model::jinja
