// What a chat model answers, taken apart as it arrives: reasoning, content, tool calls.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/answer_format.h"
#include "model/tool_call_reader.h"
#include "model/tool_schemas.h"

namespace switchyard::model {

struct AnswerParserOptions {
  // Whether <think> ... </think> is reasoning; else it is content.
  bool parse_reasoning = true;
  // Whether the prompt has opened the reasoning already: see OpensReasoning().
  bool starts_in_reasoning = false;

  // The request's tools, as ToolSchemas takes them. Without any, the tags of tool calls are
  // content.
  nlohmann::ordered_json tools;
  ToolFormat tool_format = ToolFormat::kJson;
  // Calls get this and their index as id; unique as long as the prefix is.
  std::string call_id_prefix = "call_";
};

// A piece of an answer.
struct AnswerPiece {
  enum class Kind : uint8_t {
    kReasoning,  // text goes on with the reasoning
    kContent,    // text goes on with the content
    kToolCall,   // see below
  };

  Kind kind = Kind::kContent;
  // kToolCall: text to append to the arguments of call `call_index`. The first piece of a call has
  // its id and name and no text, the pieces after it have text only. All texts of one call make a
  // JSON object, and pieces of different calls do not mix.
  std::string text;
  int call_index = 0;
  std::string call_id;
  std::string call_name;
};

// Takes an answer apart. The answer may come in any pieces, and what comes out, texts of one kind
// joined, depends on its text alone.
//
// Reasoning is what stands between <think> and </think>, where <think> may have white space before
// it and nothing else: later in an answer it is content. A prompt that opens the reasoning makes
// the tag unnecessary; if the model repeats it, it is dropped. Reasoning that does not end is
// reasoning. Not part of either text are the newlines that the format puts around the tags: up to
// one after <think> and one before </think>, up to two after </think>.
//
// Tool calls stand in <tool_call> ... </tool_call>, see ToolCallReader. A call is delivered when it
// is complete, whatever comes after it, and not before: so what is delivered is always a whole
// call. What turns out to be none, and a call that is unfinished at the end of the answer, is
// released as ordinary text with its tags, so nothing is ever lost. Up to two newlines before a
// call, white space between calls and white space after the last one are dropped. Further:
// - the closing tag may be missing, as may, in kTags, the opening one before a call of one of the
//   request's tools: Qwen3-Coder forgets it at times;
// - in kTags, a call of one of the request's tools counts in the reasoning too, which then goes on:
//   Qwen3.5 calls tools without closing its reasoning. In kJson, calls in the reasoning are only
//   thought about.
//
// Text is held back only while it may begin a tag or is part of a call. Time is linear in the
// length of the answer, however it is split.
//
// Threads: one at a time.
class AnswerParser {
 public:
  explicit AnswerParser(AnswerParserOptions options);
  AnswerParser(const AnswerParser&) = delete;
  AnswerParser& operator=(const AnswerParser&) = delete;

  // Takes the next text of the answer, valid UTF-8. Returns what has become certain, in order;
  // neighbours of one kind are joined, and reasoning and content are never empty.
  std::vector<AnswerPiece> Push(std::string_view text);

  // Ends the answer and returns what was held back. No call may follow.
  std::vector<AnswerPiece> Finish();

  // Tool calls delivered so far: whether the answer ends "to call tools".
  int num_calls() const { return num_calls_; }

 private:
  enum class State {
    kStart,           // nothing but white space yet
    kReasoningStart,  // the prompt opened the reasoning; nothing but white space yet
    kAfterThink,      // before the newline after <think>
    kText,            // reasoning or content
    kCall,            // inside of what may be a call
    kAfterCall,       // white space after a call
  };
  struct Tag {
    size_t at;
    std::string_view text;
  };

  // Goes on with the text not yet consumed; false if that needs more text.
  bool Step();
  bool StepStart();
  bool StepReasoningStart();
  bool StepAfterThink();
  bool StepText();
  bool StepCall();
  bool StepAfterCall();

  std::string_view rest() const { return std::string_view(buffer_).substr(begin_); }
  bool takes_calls() const;
  // The first tag in `text` that matters in kText, or one that may have begun at its end: then
  // `text` of the tag is empty and `at` is where what is held back begins.
  Tag FindTag(std::string_view text) const;
  // Turns to kCall. `size` bytes of the rest precede the body.
  void OpenCall(std::string_view tag, size_t size);
  void EmitText(size_t size);  // of the first bytes of the rest, and consumes them
  void EmitCall();
  void Consume(size_t size);

  const AnswerParserOptions options_;
  const ToolSchemas schemas_;
  State state_;
  bool in_reasoning_;
  int newlines_to_drop_ = 0;  // kText: newlines of the format that may still come
  bool may_close_call_ = false;

  std::string buffer_;
  size_t begin_ = 0;       // of what is not consumed
  size_t call_body_ = 0;   // kCall: offset of the body in the rest
  size_t num_spaces_ = 0;  // kStart, kReasoningStart, kAfterCall: white space at the rest's begin
  std::optional<ToolCallReader> reader_;
  int num_calls_ = 0;
  std::vector<AnswerPiece> pieces_;
};

// A whole answer.
struct ParsedAnswer {
  struct ToolCall {
    std::string id;
    std::string name;
    std::string arguments;  // a JSON object
  };

  // Appends a piece. REQUIRES: pieces come in the parser's order.
  void Add(const AnswerPiece& piece);

  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;
};

ParsedAnswer ParseAnswer(std::string_view text, AnswerParserOptions options);

}  // namespace switchyard::model
