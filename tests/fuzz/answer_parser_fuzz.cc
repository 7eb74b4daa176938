// Fuzz target: any answer, cut anywhere.
//
// Input: a byte of options, a byte that seeds the cuts, then the answer. Checked: nothing crashes,
// pieces are well formed, arguments are JSON objects, cuts change nothing, and what comes out is
// not more than what went in.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "model/answer_parser.h"

namespace switchyard::model {
namespace {

using Json = nlohmann::ordered_json;

AnswerParserOptions MakeOptions(uint8_t bits) {
  static const Json& tools = *new Json(Json::parse(R"([
      {"type": "function", "function": {"name": "w", "parameters": {"properties": {
          "z": {"type": "string"}, "n": {"type": ["integer", "null"]}, "b": {"type": "boolean"},
          "o": {"type": "object"}, "a": {"type": "array"}}}}},
      {"name": "now"}])"));
  AnswerParserOptions options;
  options.parse_reasoning = (bits & 1) == 0;
  options.starts_in_reasoning = (bits & 2) != 0;
  options.tool_format = (bits & 4) != 0 ? ToolFormat::kTags : ToolFormat::kJson;
  if ((bits & 8) == 0) options.tools = tools;
  return options;
}

void Take(const std::vector<AnswerPiece>& pieces, ParsedAnswer& answer) {
  for (const AnswerPiece& piece : pieces) {
    const bool is_call = piece.kind == AnswerPiece::Kind::kToolCall;
    const size_t num_calls = answer.tool_calls.size();
    const bool is_first = is_call && static_cast<size_t>(piece.call_index) == num_calls;
    SWITCHYARD_CHECK(piece.call_id.empty() == !is_first);
    SWITCHYARD_CHECK(piece.call_name.empty() == !is_first);
    SWITCHYARD_CHECK(piece.text.empty() == is_first);
    SWITCHYARD_CHECK(!is_call || static_cast<size_t>(piece.call_index) + 1 >= num_calls);
    answer.Add(piece);
  }
}

ParsedAnswer Parse(std::string_view text, const AnswerParserOptions& options, unsigned seed) {
  AnswerParser parser(options);
  ParsedAnswer answer;
  std::minstd_rand random(seed);
  while (!text.empty()) {
    const size_t size = std::min<size_t>(text.size(), random() % 12 + (random() % 8 == 0 ? 40 : 0));
    Take(parser.Push(text.substr(0, size)), answer);
    text.remove_prefix(size);
  }
  Take(parser.Finish(), answer);
  SWITCHYARD_CHECK(static_cast<size_t>(parser.num_calls()) == answer.tool_calls.size());
  return answer;
}

void RunOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return;
  const AnswerParserOptions options = MakeOptions(data[0]);
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const ParsedAnswer whole = ParseAnswer(text, options);
  const ParsedAnswer cut = Parse(text, options, data[1] + 1u);
  SWITCHYARD_CHECK(whole.reasoning == cut.reasoning);
  SWITCHYARD_CHECK(whole.content == cut.content);
  SWITCHYARD_CHECK(whole.tool_calls.size() == cut.tool_calls.size());
  SWITCHYARD_CHECK(whole.reasoning.size() + whole.content.size() <= text.size());
  SWITCHYARD_CHECK(!options.tools.is_null() || whole.tool_calls.empty());
  for (size_t i = 0; i < whole.tool_calls.size(); ++i) {
    SWITCHYARD_CHECK(whole.tool_calls[i].id == cut.tool_calls[i].id);
    SWITCHYARD_CHECK(whole.tool_calls[i].name == cut.tool_calls[i].name);
    SWITCHYARD_CHECK(whole.tool_calls[i].arguments == cut.tool_calls[i].arguments);
    SWITCHYARD_CHECK(Json::parse(whole.tool_calls[i].arguments, nullptr, false).is_object());
  }
}

}  // namespace
}  // namespace switchyard::model

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  switchyard::model::RunOneInput(data, size);
  return 0;
}
