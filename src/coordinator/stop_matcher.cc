#include "coordinator/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace switchyard::coordinator {
namespace {

// Length of the longest suffix of `text` that is a proper prefix of `stop`.
size_t HeldLength(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == stop.substr(0, n)) return n;
  }
  return 0;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stop) : stop_(std::move(stop)) {
  std::erase_if(stop_, [](const std::string& s) { return s.empty(); });
}

std::string StopMatcher::Push(std::string_view text) {
  if (has_match()) return {};
  held_ += text;
  size_t first = 0;
  size_t first_end = std::string::npos;
  for (const std::string& stop : stop_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    const size_t end = at + stop.size();
    if (end > first_end || (end == first_end && at >= first)) continue;
    first = at;
    first_end = end;
    matched_ = stop;
  }
  if (has_match()) {
    std::string out = held_.substr(0, first);
    held_.clear();
    return out;
  }
  size_t keep = 0;
  for (const std::string& stop : stop_) keep = std::max(keep, HeldLength(held_, stop));
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::Flush() { return std::exchange(held_, {}); }

}  // namespace switchyard::coordinator
