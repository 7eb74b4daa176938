// Operators, attributes and subscripts on values.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "model/template/ast.h"
#include "model/template/limits.h"
#include "model/template/value.h"

namespace switchyard::model::jinja {

// + - * / // % ** on two values, with Python's rules. Strings and lists can be added and repeated.
// Errors: InvalidArgument for other kinds, division by zero, integers that leave 64 bits.
absl::StatusOr<Value> Arithmetic(Operator op, const Value& left, const Value& right,
                                 Budget& budget);

absl::StatusOr<Value> Negate(const Value& value);

// == != < <= > >= in, not in.
absl::StatusOr<bool> Compare(Operator op, const Value& left, const Value& right, Budget& budget);

// object.name: a method, a key of a map, a field of a namespace or of a loop; else undefined.
// `name` must live as long as the template.
absl::StatusOr<Value> Attribute(const Value& object, const std::string& name, Budget& budget);

// object[index]: element, character or key; undefined where there is none.
absl::StatusOr<Value> Subscript(const Value& object, const Value& index, Budget& budget);

// object[start:stop:step]; an undefined or none part is a missing one.
absl::StatusOr<Value> Slice(const Value& object, const Value& start, const Value& stop,
                            const Value& step, Budget& budget);

// What a loop over `value` sees: elements of a list, keys of a map, characters of a string, nothing
// for undefined. Errors: InvalidArgument for other kinds.
absl::StatusOr<ListPtr> Elements(const Value& value, Budget& budget);

}  // namespace switchyard::model::jinja
