// What filters and methods do with strings; the origin of every byte is kept throughout.
//
// Case is changed in ASCII only: other letters stay as they are.
// Errors: ResourceExhausted where the budget ends or a result gets too long.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

#include "model/template/limits.h"
#include "model/template/text.h"
#include "model/template/value.h"

namespace switchyard::model::jinja {

// Without leading (`left`) and trailing (`right`) code points out of `characters`; null = blanks.
absl::StatusOr<Text> Strip(const Text& text, bool left, bool right, const Text* characters,
                           Budget& budget);

Text Upper(Text text);
Text Lower(Text text);
Text Capitalize(Text text);  // first letter upper case, all others lower case
Text Title(Text text);       // the same for each word

// Replaces the first `limit` occurrences, or all if that is negative, from the left. An empty `old`
// occurs around every code point.
absl::StatusOr<Text> Replace(const Text& text, const Text& old, const Text& with, int64_t limit,
                             Budget& budget);

// The parts between separators, at most `limit` splits from the left or the right; negative = all.
// Null splits at runs of white space, as str.split() does.
// Errors: InvalidArgument for an empty separator.
absl::StatusOr<Value> Split(const Text& text, const Text* separator, int64_t limit, bool from_right,
                            Budget& budget);

absl::StatusOr<Value> SplitLines(const Text& text, Budget& budget);

// The texts of all items with `separator` between them.
absl::StatusOr<Text> Join(const std::vector<Value>& items, const Text& separator, Budget& budget);

}  // namespace switchyard::model::jinja
