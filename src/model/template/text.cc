#include "model/template/text.h"

#include <algorithm>
#include <utility>

namespace switchyard::model::jinja {

Text::Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)) { AddRun(origin); }

void Text::AddRun(Origin origin) {
  const size_t covered = runs_.empty() ? 0 : runs_.back().end;
  if (bytes_.size() == covered) return;
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), origin});
  }
}

Origin Text::strongest_origin() const {
  Origin strongest = kFromTemplate;
  for (const Run& run : runs_) strongest = std::max(strongest, run.origin);
  return strongest;
}

void Text::Append(std::string_view bytes, Origin origin) {
  bytes_.append(bytes);
  AddRun(origin);
}

void Text::Append(const Text& other) { AppendSlice(other, 0, other.size()); }

void Text::AppendSlice(const Text& other, size_t begin, size_t end) {
  auto run = std::upper_bound(other.runs_.begin(), other.runs_.end(), begin,
                              [](size_t offset, const Run& r) { return offset < r.end; });
  for (size_t at = begin; at < end; ++run) {
    const size_t run_end = std::min(end, run->end);
    Append(other.view().substr(at, run_end - at), run->origin);
    at = run_end;
  }
}

Text Text::Slice(size_t begin, size_t end) const {
  Text slice;
  slice.AppendSlice(*this, begin, end);
  return slice;
}

}  // namespace switchyard::model::jinja
