#include "model/answer_parser.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "model/json_scanner.h"

namespace switchyard::model {
namespace {

using Kind = AnswerPiece::Kind;

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kToolCall = "<tool_call>";
constexpr std::string_view kToolCallEnd = "</tool_call>";
constexpr std::string_view kFunction = "<function=";

constexpr size_t kNewlinesBeforeThinkEnd = 1;
constexpr int kNewlinesAfterThinkEnd = 2;
// Templates write one or two between content and a call.
constexpr size_t kNewlinesBeforeCall = 2;

bool StartsWith(std::string_view text, std::string_view tag) {
  return text.substr(0, tag.size()) == tag;
}

// Whether more text may make `text` begin with `tag`.
bool MayBecome(std::string_view text, std::string_view tag) {
  return text.size() < tag.size() && tag.substr(0, text.size()) == text;
}

// Newlines directly before offset `at`, at most `limit`.
size_t NewlinesBefore(std::string_view text, size_t at, size_t limit) {
  size_t count = 0;
  while (count < limit && count < at && text[at - count - 1] == '\n') ++count;
  return count;
}

}  // namespace

AnswerParser::AnswerParser(AnswerParserOptions options)
    : options_(std::move(options)),
      schemas_(options_.tools),
      state_(!options_.parse_reasoning      ? State::kText
             : options_.starts_in_reasoning ? State::kReasoningStart
                                            : State::kStart),
      in_reasoning_(state_ == State::kReasoningStart) {}

std::vector<AnswerPiece> AnswerParser::Push(std::string_view text) {
  buffer_ += text;
  while (Step()) {
  }
  buffer_.erase(0, begin_);
  begin_ = 0;
  return std::exchange(pieces_, {});
}

std::vector<AnswerPiece> AnswerParser::Finish() {
  const bool is_dropped = state_ == State::kAfterCall && num_spaces_ == rest().size();
  if (!is_dropped) EmitText(rest().size());
  return std::exchange(pieces_, {});
}

bool AnswerParser::Step() {
  switch (state_) {
    case State::kStart:
      return StepStart();
    case State::kReasoningStart:
      return StepReasoningStart();
    case State::kAfterThink:
      return StepAfterThink();
    case State::kText:
      return StepText();
    case State::kCall:
      return StepCall();
    case State::kAfterCall:
      return StepAfterCall();
  }
  return false;
}

bool AnswerParser::StepStart() {
  const std::string_view text = rest();
  while (num_spaces_ < text.size() && IsJsonSpace(text[num_spaces_])) ++num_spaces_;
  const std::string_view first = text.substr(num_spaces_);
  if (StartsWith(first, kThink)) {
    Consume(num_spaces_ + kThink.size());
    in_reasoning_ = true;
    state_ = State::kAfterThink;
    return true;
  }
  if (MayBecome(first, kThink)) return false;
  state_ = State::kText;
  return true;
}

// As kStart, but without the tag this is reasoning all the same.
bool AnswerParser::StepReasoningStart() {
  const std::string_view text = rest();
  while (num_spaces_ < text.size() && IsJsonSpace(text[num_spaces_])) ++num_spaces_;
  const std::string_view first = text.substr(num_spaces_);
  if (MayBecome(first, kThink)) return false;
  if (StartsWith(first, kThink)) Consume(num_spaces_ + kThink.size());
  state_ = State::kAfterThink;
  return true;
}

bool AnswerParser::StepAfterThink() {
  const std::string_view text = rest();
  if (text.empty()) return false;
  if (text.front() == '\n') Consume(1);
  state_ = State::kText;
  return true;
}

bool AnswerParser::takes_calls() const {
  return !schemas_.empty() && (!in_reasoning_ || options_.tool_format == ToolFormat::kTags);
}

AnswerParser::Tag AnswerParser::FindTag(std::string_view text) const {
  const bool is_tags = options_.tool_format == ToolFormat::kTags;
  const std::string_view tags[] = {
      in_reasoning_ ? kThinkEnd : std::string_view(),
      takes_calls() ? kToolCall : std::string_view(),
      takes_calls() && is_tags ? kFunction : std::string_view(),
  };
  // Newlines that may belong to the tag after them.
  const size_t max_newlines = takes_calls()   ? kNewlinesBeforeCall
                              : in_reasoning_ ? kNewlinesBeforeThinkEnd
                                              : 0;
  size_t at = 0;
  for (; (at = text.find('<', at)) != std::string_view::npos; ++at) {
    for (const std::string_view tag : tags) {
      if (tag.empty()) continue;
      if (StartsWith(text.substr(at), tag)) return {at, tag};
      if (MayBecome(text.substr(at), tag)) {
        return {at - NewlinesBefore(text, at, max_newlines), {}};
      }
    }
  }
  return {text.size() - NewlinesBefore(text, text.size(), max_newlines), {}};
}

bool AnswerParser::StepText() {
  while (newlines_to_drop_ > 0 && !rest().empty()) {
    const bool is_newline = rest().front() == '\n';
    newlines_to_drop_ = is_newline ? newlines_to_drop_ - 1 : 0;
    if (is_newline) Consume(1);
  }
  const Tag tag = FindTag(rest());
  if (tag.text.empty()) {
    EmitText(tag.at);
    return false;
  }
  const bool is_think_end = tag.text == kThinkEnd;
  const size_t num_newlines =
      NewlinesBefore(rest(), tag.at, is_think_end ? kNewlinesBeforeThinkEnd : kNewlinesBeforeCall);
  EmitText(tag.at - num_newlines);
  if (is_think_end) {
    Consume(num_newlines + tag.text.size());
    in_reasoning_ = false;
    newlines_to_drop_ = kNewlinesAfterThinkEnd;
  } else {
    OpenCall(tag.text, num_newlines + tag.text.size());
  }
  return true;
}

void AnswerParser::OpenCall(std::string_view tag, size_t size) {
  const bool is_function = tag == kFunction;
  reader_.emplace(
      ToolCallReader::Options{.format = options_.tool_format,
                              .after_function_tag = is_function,
                              .known_tools_only = is_function || in_reasoning_,
                              .forbidden = in_reasoning_ ? kThinkEnd : std::string_view()},
      schemas_);
  call_body_ = size;
  state_ = State::kCall;
}

bool AnswerParser::StepCall() {
  const ToolCallReader::State state = reader_->Read(rest().substr(call_body_));
  if (state == ToolCallReader::State::kInside) return false;
  const size_t size = call_body_ + reader_->num_read();
  if (state == ToolCallReader::State::kDone) {
    EmitCall();
    Consume(size);
    num_spaces_ = 0;
    may_close_call_ = true;
    state_ = State::kAfterCall;
  } else {
    // The newlines at its end may belong to the next tag.
    EmitText(size - NewlinesBefore(rest(), size, kNewlinesBeforeCall));
    state_ = State::kText;
  }
  reader_.reset();
  return true;
}

bool AnswerParser::StepAfterCall() {
  const std::string_view text = rest();
  while (num_spaces_ < text.size() && IsJsonSpace(text[num_spaces_])) ++num_spaces_;
  const std::string_view first = text.substr(num_spaces_);
  if (may_close_call_ && StartsWith(first, kToolCallEnd)) {
    Consume(num_spaces_ + kToolCallEnd.size());
    num_spaces_ = 0;
    may_close_call_ = false;
    return true;
  }
  const bool is_tags = options_.tool_format == ToolFormat::kTags;
  for (const std::string_view tag : {kToolCall, kFunction}) {
    if (tag == kFunction && !is_tags) continue;
    if (!StartsWith(first, tag)) continue;
    OpenCall(tag, num_spaces_ + tag.size());
    return true;
  }
  if (in_reasoning_ && StartsWith(first, kThinkEnd)) {
    Consume(num_spaces_);
  } else if (first.empty() || (may_close_call_ && MayBecome(first, kToolCallEnd)) ||
             MayBecome(first, kToolCall) || (is_tags && MayBecome(first, kFunction)) ||
             (in_reasoning_ && MayBecome(first, kThinkEnd))) {
    return false;
  }
  state_ = State::kText;
  return true;
}

void AnswerParser::EmitText(size_t size) {
  if (size == 0) return;
  const Kind kind = in_reasoning_ ? Kind::kReasoning : Kind::kContent;
  if (pieces_.empty() || pieces_.back().kind != kind) pieces_.emplace_back().kind = kind;
  pieces_.back().text += rest().substr(0, size);
  Consume(size);
}

void AnswerParser::EmitCall() {
  AnswerPiece piece;
  piece.kind = Kind::kToolCall;
  piece.call_index = num_calls_++;
  AnswerPiece first = piece;
  first.call_id = options_.call_id_prefix + std::to_string(piece.call_index);
  first.call_name = reader_->name();
  piece.text = reader_->arguments();
  pieces_.push_back(std::move(first));
  pieces_.push_back(std::move(piece));
}

void AnswerParser::Consume(size_t size) {
  begin_ += size;
  SWITCHYARD_DCHECK(begin_ <= buffer_.size());
}

void ParsedAnswer::Add(const AnswerPiece& piece) {
  switch (piece.kind) {
    case Kind::kReasoning:
      reasoning += piece.text;
      break;
    case Kind::kContent:
      content += piece.text;
      break;
    case Kind::kToolCall:
      if (static_cast<size_t>(piece.call_index) == tool_calls.size()) {
        tool_calls.push_back({piece.call_id, piece.call_name, ""});
      }
      tool_calls[piece.call_index].arguments += piece.text;
      break;
  }
}

ParsedAnswer ParseAnswer(std::string_view text, AnswerParserOptions options) {
  AnswerParser parser(std::move(options));
  ParsedAnswer answer;
  for (const AnswerPiece& piece : parser.Push(text)) answer.Add(piece);
  for (const AnswerPiece& piece : parser.Finish()) answer.Add(piece);
  return answer;
}

}  // namespace switchyard::model
