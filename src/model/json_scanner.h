// Finds the end of a JSON object in text that arrives in pieces.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace switchyard::model {

// Bounds on the arguments of one tool call, in requests and in answers. The JSON library scans a
// map's keys for each new one, and others recurse where objects nest.
inline constexpr int kMaxArgumentDepth = 64;
inline constexpr int kMaxArgumentMembers = 1024;

// Follows brackets, strings and members of one JSON value; it proves no more than that. The object
// itself is a level of `max_depth`.
class JsonScanner {
 public:
  enum class State {
    kInside,   // the object goes on
    kEnd,      // the byte just taken closed it
    kRefused,  // no JSON object can begin like this, or a limit is passed
  };

  explicit JsonScanner(int max_depth, int max_members = kMaxArgumentMembers)
      : max_depth_(max_depth), max_members_(max_members) {}

  // Takes the next byte. REQUIRES: all bytes before it gave kInside.
  State Take(char c);

 private:
  int max_depth_;
  int max_members_;
  int depth_ = 0;
  int num_members_ = 0;
  bool in_string_ = false;
  bool is_escaped_ = false;
};

// Whether `text` is valid JSON. To the library alone a zero byte is the end of the text.
bool IsJson(std::string_view text);

// Whether `text`, trimmed of white space, is valid JSON within the limits on arguments.
bool IsBoundedJson(std::string_view text);

// `text` without JSON's white space at both ends.
std::string_view TrimJsonSpace(std::string_view text);

inline bool IsJsonSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// The text of the last value of `key` among the members of `object`, as it stands there.
// REQUIRES: `object` is a valid JSON object; `key` needs no escapes.
std::optional<std::string_view> FindJsonMember(std::string_view object, std::string_view key);

}  // namespace switchyard::model
