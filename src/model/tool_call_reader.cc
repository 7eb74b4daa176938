#include "model/tool_call_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace switchyard::model {
namespace {

constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";
constexpr std::string_view kToolCallEnd = "</tool_call>";

enum class Match { kNo, kYes, kUnknown };

// Whether `text` begins with `tag`; unknown if it ends before that is decided.
Match StartsWith(std::string_view text, std::string_view tag) {
  const size_t size = std::min(text.size(), tag.size());
  if (text.substr(0, size) != tag.substr(0, size)) return Match::kNo;
  return size == tag.size() ? Match::kYes : Match::kUnknown;
}

// The string that a JSON text holds, if it holds one.
std::optional<std::string> DecodeString(std::string_view json) {
  const auto value = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!value.is_string()) return std::nullopt;
  return value.get<std::string>();
}

bool IsObject(std::string_view json) { return !json.empty() && json.front() == '{'; }

}  // namespace

ToolCallReader::ToolCallReader(const Options& options, const ToolSchemas& schemas)
    : options_(options),
      schemas_(schemas),
      phase_(options.after_function_tag ? Phase::kName : Phase::kOpen),
      // The call itself is the level around the arguments; its members are not theirs.
      scanner_(kMaxArgumentDepth + 1, kMaxArgumentMembers + 2) {}

ToolCallReader::State ToolCallReader::Read(std::string_view body) {
  return options_.format == ToolFormat::kJson ? ReadObject(body) : ReadTags(body);
}

void ToolCallReader::SkipSpace(std::string_view body) {
  while (at_ < body.size() && IsJsonSpace(body[at_])) ++at_;
}

ToolCallReader::State ToolCallReader::ReadObject(std::string_view body) {
  if (phase_ == Phase::kOpen) {
    SkipSpace(body);
    if (at_ == body.size()) return State::kInside;
    begin_ = at_;
    phase_ = Phase::kObject;
  }
  for (; at_ < body.size(); ++at_) {
    switch (scanner_.Take(body[at_])) {
      case JsonScanner::State::kInside:
        break;
      case JsonScanner::State::kRefused:
        return State::kRefused;
      case JsonScanner::State::kEnd:
        ++at_;
        return FinishObject(body.substr(begin_, at_ - begin_));
    }
  }
  return State::kInside;
}

ToolCallReader::State ToolCallReader::FinishObject(std::string_view object) {
  if (!IsJson(object)) return State::kRefused;
  const auto name = FindJsonMember(object, "name");
  if (!name.has_value()) return State::kRefused;
  name_ = DecodeString(*name).value_or("");
  if (name_.empty() || name_.size() > kMaxToolNameBytes) return State::kRefused;
  if (options_.known_tools_only && !schemas_.Contains(name_)) return State::kRefused;
  const std::string_view arguments = FindJsonMember(object, "arguments").value_or("null");
  if (arguments == "null") {
    arguments_ = "{}";
  } else if (IsObject(arguments)) {
    arguments_ = arguments;
  } else {
    arguments_ = DecodeString(arguments).value_or("");
    if (!IsObject(TrimJsonSpace(arguments_)) || !IsBoundedJson(arguments_)) return State::kRefused;
  }
  return State::kDone;
}

ToolCallReader::State ToolCallReader::ReadTags(std::string_view body) {
  while (true) {
    State state = State::kRefused;
    switch (phase_) {
      case Phase::kOpen:
        state = ReadOpen(body);
        break;
      case Phase::kName:
      case Phase::kKey:
        state = ReadName(body);
        break;
      case Phase::kBetween:
        state = ReadBetween(body);
        if (state == State::kDone && phase_ == Phase::kBetween) return FinishFunction();
        break;
      case Phase::kValue:
        state = ReadValue(body);
        break;
      case Phase::kValueEnded:
        state = ReadAfterValue(body);
        break;
      case Phase::kFunctionEnded:
        state = ReadAfterFunction(body);
        if (state == State::kDone && phase_ == Phase::kFunctionEnded) return FinishFunction();
        break;
      case Phase::kObject:
        break;  // kJson only
    }
    if (state != State::kDone) return state;
  }
}

ToolCallReader::State ToolCallReader::ReadOpen(std::string_view body) {
  SkipSpace(body);
  const Match match = StartsWith(body.substr(at_), kFunction);
  if (match == Match::kNo) return State::kRefused;
  if (match == Match::kUnknown) return State::kInside;
  at_ += kFunction.size();
  begin_ = at_;
  phase_ = Phase::kName;
  return State::kDone;
}

// A name or a key, up to the ">" after it.
ToolCallReader::State ToolCallReader::ReadName(std::string_view body) {
  for (; at_ < body.size() && body[at_] != '>'; ++at_) {
    const char c = body[at_];
    if (c == '<' || c == '\n' || c == '\r' || at_ - begin_ >= kMaxToolNameBytes) {
      return State::kRefused;
    }
  }
  if (at_ == body.size()) return State::kInside;
  const std::string_view name = body.substr(begin_, at_ - begin_);
  const bool is_key = phase_ == Phase::kKey;
  if (name.empty()) return State::kRefused;
  if (!is_key && options_.known_tools_only && !schemas_.Contains(name)) return State::kRefused;
  (is_key ? key_ : name_) = name;
  ++at_;
  begin_ = at_;
  phase_ = is_key ? Phase::kValue : Phase::kBetween;
  return State::kDone;
}

// Stays in this phase at the function's end.
ToolCallReader::State ToolCallReader::ReadBetween(std::string_view body) {
  SkipSpace(body);
  const std::string_view rest = body.substr(at_);
  const Match parameter = StartsWith(rest, kParameter);
  const Match end = StartsWith(rest, kFunctionEnd);
  if (parameter == Match::kYes) {
    at_ += kParameter.size();
    begin_ = at_;
    phase_ = Phase::kKey;
    return State::kDone;
  }
  if (end == Match::kYes) {
    at_ += kFunctionEnd.size();
    return State::kDone;
  }
  const bool is_open = parameter == Match::kUnknown || end == Match::kUnknown;
  return is_open ? State::kInside : State::kRefused;
}

ToolCallReader::State ToolCallReader::ReadValue(std::string_view body) {
  while (true) {
    const size_t tag = body.find('<', at_);
    if (tag == std::string_view::npos) {
      at_ = body.size();
      return State::kInside;
    }
    at_ = tag;
    const std::string_view rest = body.substr(tag);
    const Match end = StartsWith(rest, kParameterEnd);
    const Match function_end = StartsWith(rest, kFunctionEnd);
    const Match forbidden =
        options_.forbidden.empty() ? Match::kNo : StartsWith(rest, options_.forbidden);
    if (forbidden == Match::kYes) return State::kRefused;
    if (end == Match::kYes || function_end == Match::kYes) {
      value_end_ = at_;
      at_ += end == Match::kYes ? kParameterEnd.size() : kFunctionEnd.size();
      phase_ = end == Match::kYes ? Phase::kValueEnded : Phase::kFunctionEnded;
      return State::kDone;
    }
    if (end == Match::kUnknown || function_end == Match::kUnknown || forbidden == Match::kUnknown) {
      return State::kInside;
    }
    ++at_;
  }
}

ToolCallReader::State ToolCallReader::ReadAfterValue(std::string_view body) {
  SkipSpace(body);
  const std::string_view rest = body.substr(at_);
  const Match parameter = StartsWith(rest, kParameter);
  const Match end = StartsWith(rest, kFunctionEnd);
  if (parameter == Match::kYes || end == Match::kYes) {
    if (!AddArgument(body.substr(begin_, value_end_ - begin_))) return State::kRefused;
    phase_ = Phase::kBetween;
    return State::kDone;
  }
  if (parameter == Match::kUnknown || end == Match::kUnknown) return State::kInside;
  phase_ = Phase::kValue;  // the tag was part of the value
  return State::kDone;
}

// Stays in this phase at the function's end.
ToolCallReader::State ToolCallReader::ReadAfterFunction(std::string_view body) {
  SkipSpace(body);
  const Match end = StartsWith(body.substr(at_), kToolCallEnd);
  if (end == Match::kUnknown) return State::kInside;
  if (end == Match::kNo) {
    phase_ = Phase::kValue;  // the tag was part of the value
    return State::kDone;
  }
  return AddArgument(body.substr(begin_, value_end_ - begin_)) ? State::kDone : State::kRefused;
}

// False if there are too many.
bool ToolCallReader::AddArgument(std::string_view value) {
  if (!value.empty() && value.front() == '\n') value.remove_prefix(1);
  if (!value.empty() && value.back() == '\n') value.remove_suffix(1);
  std::string json = schemas_.ArgumentJson(name_, key_, value);
  for (Argument& argument : tagged_) {
    if (argument.key != key_) continue;
    argument.json = std::move(json);
    return true;
  }
  if (tagged_.size() == kMaxArgumentMembers) return false;
  tagged_.push_back({key_, std::move(json)});
  return true;
}

ToolCallReader::State ToolCallReader::FinishFunction() {
  arguments_ = "{";
  for (const Argument& argument : tagged_) {
    if (arguments_.size() > 1) arguments_ += ", ";
    arguments_ += JsonString(argument.key) + ": " + argument.json;
  }
  arguments_ += "}";
  return State::kDone;
}

}  // namespace switchyard::model
