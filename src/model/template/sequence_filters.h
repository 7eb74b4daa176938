// Filters on lists, maps and strings as sequences; FindFilter() names them.
#pragma once

#include "absl/status/statusor.h"

#include "model/template/arguments.h"
#include "model/template/limits.h"
#include "model/template/value.h"

namespace switchyard::model::jinja {

// Each takes the arguments of Jinja2's filter of that name, and fails with InvalidArgument for
// inputs and arguments that it does not know.
#define SWITCHYARD_FILTER(Name) \
  absl::StatusOr<Value> Name(const Value& input, const Arguments& arguments, Budget& budget)
SWITCHYARD_FILTER(LengthFilter);
SWITCHYARD_FILTER(ItemsFilter);
SWITCHYARD_FILTER(ListFilter);
SWITCHYARD_FILTER(FirstFilter);
SWITCHYARD_FILTER(LastFilter);
SWITCHYARD_FILTER(JoinFilter);
SWITCHYARD_FILTER(ReverseFilter);
SWITCHYARD_FILTER(UniqueFilter);
SWITCHYARD_FILTER(SortFilter);
SWITCHYARD_FILTER(DictSortFilter);
SWITCHYARD_FILTER(MapFilter);
SWITCHYARD_FILTER(SelectFilter);
SWITCHYARD_FILTER(RejectFilter);
SWITCHYARD_FILTER(SelectAttributeFilter);
SWITCHYARD_FILTER(RejectAttributeFilter);
#undef SWITCHYARD_FILTER

}  // namespace switchyard::model::jinja
