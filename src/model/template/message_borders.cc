#include "model/template/message_borders.h"

#include <algorithm>

namespace switchyard::model::jinja {

void MessageBorders::Iteration(const Value& item, size_t begin, size_t end) {
  if (!item.is_map() || item.map()->message_index() < 0) return;
  loops_.back().push_back({static_cast<size_t>(item.map()->message_index()), begin, end});
}

void MessageBorders::SetEnd(size_t message, size_t end) {
  if (message >= ends_.size()) ends_.resize(message + 1);
  ends_[message] = end;
}

void MessageBorders::EndLoop() {
  const std::vector<Visit> visits = std::move(loops_.back());
  loops_.pop_back();
  // Loops that only look for something (the last user message, system texts) write nothing.
  const bool writes = std::any_of(visits.begin(), visits.end(),
                                  [](const Visit& visit) { return visit.end > visit.begin; });
  if (!writes) return;
  for (const Visit& visit : visits) {
    // A message that no loop visits, such as a system message that is written before the loop over
    // messages[1:], ends at the latest where the next one begins.
    const size_t previous = visit.message - 1;
    if (visit.message > 0 && (previous >= ends_.size() || !ends_[previous])) {
      SetEnd(previous, visit.begin);
    }
    SetEnd(visit.message, visit.end);
  }
}

std::vector<size_t> MessageBorders::Resolve(const Text& rendered, size_t num_messages) const {
  // For messages written outside of loops, in macros or in captured blocks: their last byte.
  std::vector<size_t> last_bytes(num_messages, 0);
  for (const Text::Run& run : rendered.runs()) {
    if (run.origin >= 0 && static_cast<size_t>(run.origin) < num_messages) {
      last_bytes[static_cast<size_t>(run.origin)] = run.end;
    }
  }
  std::vector<size_t> ends(num_messages);
  size_t previous = 0;
  for (size_t i = 0; i < num_messages; ++i) {
    const size_t end = i < ends_.size() && ends_[i] ? *ends_[i] : last_bytes[i];
    previous = ends[i] = std::min(std::max(previous, end), rendered.size());
  }
  return ends;
}

}  // namespace switchyard::model::jinja
