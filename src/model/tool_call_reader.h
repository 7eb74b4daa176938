// Reads one tool call of a model's answer as its text arrives.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "model/answer_format.h"
#include "model/json_scanner.h"
#include "model/tool_schemas.h"

namespace switchyard::model {

// Limit on names of functions and parameters, in bytes. OpenAI's API allows 64.
inline constexpr size_t kMaxToolNameBytes = 256;

// What stands between <tool_call> and </tool_call>, both excluded.
//
// kJson: an object with a string `name` and `arguments`, which are an object, an object as JSON in
// a string, null, or absent. They are passed on as the model wrote them.
//
// kTags: <function=NAME>, any number of <parameter=KEY> VALUE </parameter>, </function>, with white
// space between them. One newline at each end of VALUE belongs to the format. </parameter> ends
// VALUE only where <parameter= or </function> follows: values may quote the tag. Where a model
// forgot it, </function> and </tool_call> after it end VALUE too. Of parameters with the same key
// the last counts, at the place of the first.
//
// Arguments nest at most kMaxArgumentDepth deep and have at most kMaxArgumentMembers members.
class ToolCallReader {
 public:
  enum class State {
    kInside,   // the call may go on
    kDone,     // complete
    kRefused,  // this is no call
  };

  struct Options {
    ToolFormat format = ToolFormat::kJson;
    // kTags: <function= has been read already.
    bool after_function_tag = false;
    // Whether only calls of the request's tools count.
    bool known_tools_only = false;
    // Text that no value may hold; empty = none.
    std::string_view forbidden = {};
  };

  // Keeps a reference to `schemas`, which must live longer.
  ToolCallReader(const Options& options, const ToolSchemas& schemas);

  // Reads on. `body` is all text from the call's begin: what the last call gave, and more behind
  // it. REQUIRES: no call has returned anything but kInside.
  State Read(std::string_view body);

  // After kDone: bytes of the call. After kRefused: where the text begins that has not been looked
  // at as part of this call.
  size_t num_read() const { return at_; }

  // After kDone. Arguments are a JSON object.
  const std::string& name() const { return name_; }
  const std::string& arguments() const { return arguments_; }

 private:
  enum class Phase {
    kOpen,           // before { or <function=
    kObject,         // inside the JSON object
    kName,           // after <function=
    kBetween,        // before <parameter= or </function>
    kKey,            // after <parameter=
    kValue,          // inside a value
    kValueEnded,     // after a </parameter> that may be part of the value
    kFunctionEnded,  // after a </function> that may be part of the value
  };
  struct Argument {
    std::string key;
    std::string json;
  };

  State ReadObject(std::string_view body);
  State FinishObject(std::string_view object);
  State ReadTags(std::string_view body);
  // One step of a phase; kDone here means that the phase is over.
  State ReadOpen(std::string_view body);
  State ReadName(std::string_view body);
  State ReadBetween(std::string_view body);
  State ReadValue(std::string_view body);
  State ReadAfterValue(std::string_view body);
  State ReadAfterFunction(std::string_view body);
  State FinishFunction();
  void SkipSpace(std::string_view body);
  bool AddArgument(std::string_view value);

  const Options options_;
  const ToolSchemas& schemas_;
  Phase phase_;
  size_t at_ = 0;         // everything before is read
  size_t begin_ = 0;      // of the object, name, key or value being read
  size_t value_end_ = 0;  // kValueEnded, kFunctionEnded
  JsonScanner scanner_;
  std::string key_;
  std::vector<Argument> tagged_;
  std::string name_;
  std::string arguments_;
};

}  // namespace switchyard::model
