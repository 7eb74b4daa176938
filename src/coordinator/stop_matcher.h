// Finds stop strings in streamed text, also where they straddle token borders.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace switchyard::coordinator {

// Passes text through and holds back only what may be the beginning of a stop string.
class StopMatcher {
 public:
  // Empty strings are ignored.
  explicit StopMatcher(std::vector<std::string> stop);

  // Takes new text and returns what can be delivered. When a stop string is complete, the text
  // before it is returned, matched() names it, and all later text is dropped. Of several, the one
  // that is complete first counts, and of those that end together the longest: so the result does
  // not depend on how the text was cut.
  std::string Push(std::string_view text);

  // Returns the held text; the generation ended for another reason.
  std::string Flush();

  bool has_match() const { return !matched_.empty(); }
  const std::string& matched() const { return matched_; }

 private:
  std::vector<std::string> stop_;
  std::string held_;
  std::string matched_;
};

}  // namespace switchyard::coordinator
