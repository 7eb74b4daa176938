// Chat templates: a conversation -> the text of a prompt.
#pragma once

#include <cstddef>
#include <ctime>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace switchyard::model {

namespace jinja {
struct Program;
}

// A rendered conversation.
struct RenderedChat {
  struct Span {
    std::string text;
    bool is_template;  // written by the template, not by the sender of the messages
  };

  // The text in order; neighbours differ in is_template, and no span is empty. Special tokens may
  // be recognised only where they lie wholly in one template span. Everything else about
  // tokenisation looks at the whole text: a border of spans is no border of words.
  std::vector<Span> spans;

  // For each message the byte offset in Text() after what was rendered for it: where the iteration
  // over it ended, of the last loop over messages that wrote anything; for a message that no loop
  // visits, where the loop reaches the next one; failing both (text made by macros or blocks that
  // are captured), after the last byte that came from it, or the end of the message before it.
  // Never decreasing. These are good places for prefix checkpoints, no promise: a template may let
  // a later message change an earlier one's text.
  std::vector<size_t> message_ends;

  std::string Text() const;
};

// A parsed chat template in the part of Jinja2 that chat templates use, as Hugging Face's
// transformers runs them: trim_blocks and lstrip_blocks on, `tojson` without sorting or escaping,
// raise_exception(), strftime_now().
//
// Templates and messages are untrusted. Limits: source 256 KiB, nesting 64, 10^6 steps, output
// 16 MiB. Text remembers where it came from through all operations, so that what a user wrote can
// never become a special token.
//
// Not supported, and refused by Parse(): inheritance, include, import, call and filter blocks,
// recursive loops, unpacking of arguments. Case changes affect ASCII only.
//
// Threads: Render() from any number of threads.
class ChatTemplate {
 public:
  struct RenderOptions {
    // Variables that count as text of the template: bos_token, eos_token and their like. They hide
    // variables of the same name in the context.
    std::map<std::string, std::string> special_tokens;
    // What strftime_now() formats, in UTC; absent = the system's clock.
    std::optional<std::time_t> now;
  };

  // Errors: InvalidArgument with the line of what is wrong or not supported; ResourceExhausted for
  // a source that is too long. Callers then use BuiltInChatMl() and say so.
  static absl::StatusOr<ChatTemplate> Parse(std::string_view source);

  // The template for models that bring none, or none that Parse() takes: ChatML with tool calls as
  // JSON in <tool_call> tags.
  static ChatTemplate BuiltInChatMl();

  // Whether this is BuiltInChatMl().
  bool is_builtin() const { return is_builtin_; }
  const std::string& source() const { return *source_; }

  // Whether the template reads a variable of this name, such as "tools" or "enable_thinking".
  bool Reads(std::string_view variable) const;

  // Renders with the members of `context` as variables: messages (see NormalizeMessages), tools,
  // add_generation_prompt, enable_thinking and what else the template knows. A member that is
  // absent is undefined.
  //
  // Errors: InvalidArgument with the line, or with the text that the template gave to
  // raise_exception(); ResourceExhausted at a limit.
  absl::StatusOr<RenderedChat> Render(const nlohmann::ordered_json& context,
                                      const RenderOptions& options) const;
  absl::StatusOr<RenderedChat> Render(const nlohmann::ordered_json& context) const {
    return Render(context, RenderOptions());
  }

 private:
  ChatTemplate(std::shared_ptr<const std::string> source,
               std::shared_ptr<const jinja::Program> program, bool is_builtin);

  // Shared so that copies are cheap.
  std::shared_ptr<const std::string> source_;
  std::shared_ptr<const jinja::Program> program_;
  bool is_builtin_;
};

// Checks the messages of a request and brings them into the form that templates expect:
// - an array of 1 to 4,096 objects, each with a non-empty string `role`;
// - `content` becomes a string: absent and null become "", text parts are joined by "\n". Templates
//   call string methods on it without asking;
// - null `reasoning_content` and `tool_calls` are removed, as if absent;
// - each tool call is an object with a named function (directly or in `function`), whose
//   `arguments` become an object: absent is {}, a string is parsed as JSON.
//
// Errors: InvalidArgument that names the message by its index; the messages are then unspecified.
absl::Status NormalizeMessages(nlohmann::ordered_json& messages);

}  // namespace switchyard::model
