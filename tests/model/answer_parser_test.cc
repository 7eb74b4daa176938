#include "model/answer_parser.h"

#include <algorithm>
#include <fmt/format.h>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace switchyard::model {
namespace {

using Json = nlohmann::ordered_json;
using Kind = AnswerPiece::Kind;

Json Tools() {
  return Json::parse(R"([
      {"type": "function", "function": {"name": "w", "parameters": {"type": "object", "properties":
          {"z": {"type": "string"}, "n": {"type": "integer"}}}}},
      {"type": "function", "function": {"name": "now"}}])");
}

AnswerParserOptions WithTools(ToolFormat format, bool starts_in_reasoning = false) {
  AnswerParserOptions options;
  options.tools = Tools();
  options.tool_format = format;
  options.starts_in_reasoning = starts_in_reasoning;
  return options;
}

AnswerParserOptions NoTools(bool starts_in_reasoning = false) {
  AnswerParserOptions options;
  options.starts_in_reasoning = starts_in_reasoning;
  return options;
}

std::string Describe(const ParsedAnswer& answer) {
  std::string text;
  if (!answer.reasoning.empty()) text += "R[" + answer.reasoning + "]";
  if (!answer.content.empty()) text += "C[" + answer.content + "]";
  for (const ParsedAnswer::ToolCall& call : answer.tool_calls) {
    text += fmt::format("{}:{} {};", call.id, call.name, call.arguments);
  }
  return text;
}

// Pushes the text in pieces that begin at these offsets, and checks what holds for all pieces.
std::string ParsePieces(std::string_view text, const AnswerParserOptions& options,
                        const std::vector<size_t>& borders) {
  AnswerParser parser(options);
  ParsedAnswer answer;
  const auto take = [&](const std::vector<AnswerPiece>& pieces) {
    for (const AnswerPiece& piece : pieces) {
      if (piece.kind == Kind::kToolCall) {
        const bool is_first = static_cast<size_t>(piece.call_index) == answer.tool_calls.size();
        EXPECT_EQ(piece.call_id.empty(), !is_first);
        EXPECT_EQ(piece.call_name.empty(), !is_first);
        EXPECT_EQ(piece.text.empty(), is_first);
      } else {
        EXPECT_FALSE(piece.text.empty());
      }
      answer.Add(piece);
    }
  };
  size_t begin = 0;
  for (const size_t border : borders) {
    take(parser.Push(text.substr(begin, border - begin)));
    begin = border;
  }
  take(parser.Push(text.substr(begin)));
  take(parser.Finish());
  EXPECT_EQ(static_cast<size_t>(parser.num_calls()), answer.tool_calls.size());
  for (const ParsedAnswer::ToolCall& call : answer.tool_calls) {
    EXPECT_TRUE(Json::parse(call.arguments, nullptr, false).is_object()) << call.arguments;
  }
  return Describe(answer);
}

// Parses the text whole, byte by byte, and cut once at every place.
std::string Parse(std::string_view text, const AnswerParserOptions& options) {
  const std::string whole = ParsePieces(text, options, {});
  std::vector<size_t> bytes;
  for (size_t i = 1; i < text.size(); ++i) {
    bytes.push_back(i);
    EXPECT_EQ(ParsePieces(text, options, {i}), whole) << text << "\ncut at " << i;
  }
  EXPECT_EQ(ParsePieces(text, options, bytes), whole) << text << "\nbyte by byte";
  return whole;
}

std::string ParseJson(std::string_view text) { return Parse(text, WithTools(ToolFormat::kJson)); }
std::string ParseTags(std::string_view text) { return Parse(text, WithTools(ToolFormat::kTags)); }

TEST(AnswerParserTest, PlainTextIsContent) {
  EXPECT_EQ(Parse("", NoTools()), "");
  EXPECT_EQ(Parse("Hello, é\n\n", NoTools()), "C[Hello, é\n\n]");
  EXPECT_EQ(Parse("\n 1 < 2 </think>", NoTools()), "C[\n 1 < 2 </think>]");
}

TEST(AnswerParserTest, ReasoningLosesTheNewlinesOfItsTags) {
  EXPECT_EQ(Parse("<think>\nWhy?\n\nSo.\n</think>\n\nBecause.", NoTools()),
            "R[Why?\n\nSo.]C[Because.]");
  EXPECT_EQ(Parse("\n <think>a</think>b", NoTools()), "R[a]C[b]");
  EXPECT_EQ(Parse("<think>\n\na\n\n</think>\n\n\n b", NoTools()), "R[\na\n]C[\n b]");
  EXPECT_EQ(Parse("<think>\n\n</think>\n\nyes", NoTools()), "C[yes]");
  EXPECT_EQ(Parse("<think></think>", NoTools()), "");
}

TEST(AnswerParserTest, ThePromptMayOpenTheReasoning) {
  EXPECT_EQ(Parse("Why?\n</think>\n\nBecause.", NoTools(true)), "R[Why?]C[Because.]");
  EXPECT_EQ(Parse("\n</think>\n\nBecause.", NoTools(true)), "C[Because.]");
  EXPECT_EQ(Parse("\n<think>\nWhy?\n</think>Because.", NoTools(true)), "R[Why?]C[Because.]");
  EXPECT_EQ(Parse("<thin", NoTools(true)), "R[<thin]");
}

TEST(AnswerParserTest, ReasoningThatDoesNotEndIsReasoning) {
  EXPECT_EQ(Parse("<think>\nWhy?\n</thin", NoTools()), "R[Why?\n</thin]");
  EXPECT_EQ(Parse("Why?\n", NoTools(true)), "R[Why?\n]");
}

TEST(AnswerParserTest, TagsOfReasoningElsewhereAreContent) {
  EXPECT_EQ(Parse("a <think>b</think>", NoTools()), "C[a <think>b</think>]");
  EXPECT_EQ(Parse("<think>a</think>b<think>c</think>", NoTools()), "R[a]C[b<think>c</think>]");
  EXPECT_EQ(Parse("<think>a<think>b</think>c", NoTools()), "R[a<think>b]C[c]");
}

TEST(AnswerParserTest, ReasoningMayStayContent) {
  AnswerParserOptions options;
  options.parse_reasoning = false;
  options.starts_in_reasoning = true;
  EXPECT_EQ(Parse("<think>\na\n</think>\n\nb", options), "C[<think>\na\n</think>\n\nb]");
}

TEST(AnswerParserTest, ReadsCallsAsJson) {
  EXPECT_EQ(ParseJson("I look.\n<tool_call>\n{\"name\": \"w\", \"arguments\": {\"z\": \"é\"}}\n"
                      "</tool_call>"),
            "C[I look.]call_0:w {\"z\": \"é\"};");
  EXPECT_EQ(ParseJson("<think>\na\n</think>\n\n<tool_call>{\"name\": \"now\"}</tool_call>\n"
                      "<tool_call>\n{\"name\": \"w\", \"arguments\": {}}\n</tool_call>\n"),
            "R[a]call_0:now {};call_1:w {};");
  EXPECT_EQ(ParseJson("<tool_call>{\"name\": \"unknown\", \"arguments\": {\"b\": 1, \"a\": 2}}"),
            "call_0:unknown {\"b\": 1, \"a\": 2};");
}

TEST(AnswerParserTest, ReadsCallsAsTags) {
  EXPECT_EQ(ParseTags("I look.\n\n<tool_call>\n<function=w>\n<parameter=z>\n12\n</parameter>\n"
                      "<parameter=n>\n12\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
                      "<function=now>\n</function>\n</tool_call>"),
            "C[I look.]call_0:w {\"z\": \"12\", \"n\": 12};call_1:now {};");
}

TEST(AnswerParserTest, IdsHaveTheCallersPrefix) {
  AnswerParserOptions options = WithTools(ToolFormat::kJson);
  options.call_id_prefix = "toolu_7_";
  EXPECT_EQ(Parse("<tool_call>{\"name\": \"now\"}<tool_call>{\"name\": \"now\"}", options),
            "toolu_7_0:now {};toolu_7_1:now {};");
}

TEST(AnswerParserTest, ContentMayFollowCalls) {
  EXPECT_EQ(ParseJson("a\n\n\n<tool_call>{\"name\": \"now\"}</tool_call>\nb"),
            "C[a\n\nb]call_0:now {};");
  EXPECT_EQ(ParseJson("<tool_call>{\"name\": \"now\"}</tool_call></tool_call>"),
            "C[</tool_call>]call_0:now {};");
  EXPECT_EQ(ParseJson("<tool_call>{\"name\": \"now\"}} </tool_call>"),
            "C[} </tool_call>]call_0:now {};");
}

TEST(AnswerParserTest, TheClosingTagMayBeMissing) {
  EXPECT_EQ(ParseJson("<tool_call>{\"name\": \"now\"} \n"), "call_0:now {};");
  EXPECT_EQ(ParseTags("<tool_call><function=now></function>"), "call_0:now {};");
  EXPECT_EQ(ParseTags("<tool_call><function=now></function>\n</tool_c"),
            "C[\n</tool_c]call_0:now {};");
}

TEST(AnswerParserTest, TheOpeningTagMayBeMissingBeforeAKnownFunction) {
  EXPECT_EQ(ParseTags("So:\n<function=now>\n</function>\n</tool_call>\n<function=w></function>"),
            "C[So:]call_0:now {};call_1:w {};");
  EXPECT_EQ(ParseTags("Write <function=f></function>"), "C[Write <function=f></function>]");
  EXPECT_EQ(ParseJson("<function=now></function>"), "C[<function=now></function>]");
}

TEST(AnswerParserTest, UnfinishedCallsAreContent) {
  for (const std::string_view text :
       {"a\n\n<tool_call>\n{\"name\": \"w\", \"arguments\": {\"z\": \"1", "\n<tool_call>",
        "a\n<tool_c", "<tool_call>\n{\"name\": \"w\", \"arguments\": {}"}) {
    EXPECT_EQ(ParseJson(text), fmt::format("C[{}]", text));
  }
  for (const std::string_view text :
       {"a\n<tool_call>\n<function=w>\n<parameter=z>\n1\n</parameter>\n", "<tool_call>\n<func"}) {
    EXPECT_EQ(ParseTags(text), fmt::format("C[{}]", text));
  }
  EXPECT_EQ(ParseJson("<tool_call>{\"name\": \"now\"}</tool_call>\n<tool_call>{"),
            "C[\n<tool_call>{]call_0:now {};");
}

TEST(AnswerParserTest, WhatIsNoCallIsContentAndDoesNotHideTheNext) {
  EXPECT_EQ(ParseJson("The <tool_call> tag: <tool_call>{\"name\": \"now\"}</tool_call>"),
            "C[The <tool_call> tag: ]call_0:now {};");
  EXPECT_EQ(ParseJson("<tool_call>\n{\"name\": 1}\n</tool_call>\n<tool_call>{\"name\": \"now\"}"),
            "C[<tool_call>\n{\"name\": 1}\n</tool_call>]call_0:now {};");
  EXPECT_EQ(ParseJson("<tool_call><tool_call>{\"name\": \"now\"}"), "C[<tool_call>]call_0:now {};");
  EXPECT_EQ(ParseTags("<tool_call>\n{\"name\": \"now\"}\n</tool_call>"),
            "C[<tool_call>\n{\"name\": \"now\"}\n</tool_call>]");
  EXPECT_EQ(ParseTags("<tool_call><function=w>oops <tool_call><function=w></function>"),
            "C[<tool_call><function=w>oops ]call_0:w {};");
}

TEST(AnswerParserTest, WithoutToolsTheirTagsAreContent) {
  const std::string text = "a\n<tool_call>\n{\"name\": \"w\", \"arguments\": {}}\n</tool_call>\n";
  EXPECT_EQ(Parse(text, NoTools()), "C[" + text + "]");
  AnswerParserOptions options = NoTools();
  options.tools = Json::array();
  EXPECT_EQ(Parse(text, options), "C[" + text + "]");
}

TEST(AnswerParserTest, CallsInTheReasoningCountOnlyAsTags) {
  EXPECT_EQ(Parse("a\n<tool_call>{\"name\": \"now\"}</tool_call>\n</think>\n\nb",
                  WithTools(ToolFormat::kJson, true)),
            "R[a\n<tool_call>{\"name\": \"now\"}</tool_call>]C[b]");
  const AnswerParserOptions tags = WithTools(ToolFormat::kTags, true);
  const std::string call = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
  EXPECT_EQ(Parse("a\n\n" + call, tags), "R[a]call_0:now {};");
  EXPECT_EQ(Parse("a\n" + call + "\n</think>\n\nb", tags), "R[a]C[b]call_0:now {};");
  EXPECT_EQ(Parse("a\n" + call + "\nc</think>b", tags), "R[a\nc]C[b]call_0:now {};");
  EXPECT_EQ(Parse("a\n\n</think>\n\n" + call, tags), "R[a\n]call_0:now {};");
}

TEST(AnswerParserTest, ReasoningAboutCallsStaysReasoning) {
  const AnswerParserOptions tags = WithTools(ToolFormat::kTags, true);
  EXPECT_EQ(Parse("<tool_call><function=f></function></tool_call>\n</think>b", tags),
            "R[<tool_call><function=f></function></tool_call>]C[b]");
  EXPECT_EQ(Parse("<tool_call><function=w><parameter=z>a\n</think>\n\nb", tags),
            "R[<tool_call><function=w><parameter=z>a]C[b]");
}

// Text given out by one Push() after another, with "|" between them.
std::string Stream(const std::vector<std::string>& pieces, const AnswerParserOptions& options) {
  AnswerParser parser(options);
  std::string result;
  for (const std::string& text : pieces) {
    for (const AnswerPiece& piece : parser.Push(text)) result += piece.call_name + piece.text;
    result += "|";
  }
  for (const AnswerPiece& piece : parser.Finish()) result += piece.call_name + piece.text;
  return result;
}

TEST(AnswerParserTest, HoldsTextOnlyWhileItMayBeATag) {
  EXPECT_EQ(Stream({"a<", "b\n", "c"}, NoTools()), "a<|b\n|c|");
  EXPECT_EQ(Stream({"a\n", "\n", "\n", "<tool", "_x"}, WithTools(ToolFormat::kJson)),
            "a||\n||\n\n<tool_x|");
  EXPECT_EQ(Stream({"a<", "b<function", "<"}, WithTools(ToolFormat::kJson)), "a|<b<function||<");
  EXPECT_EQ(Stream({"a\n", "b</", "think", "x"}, NoTools(true)), "a|\nb||</thinkx|");
  EXPECT_EQ(Stream({"<tool_call>{\"name\"", ": \"now\"", "}"}, WithTools(ToolFormat::kJson)),
            "||now{}|");
}

// Every way to cut short answers, and random ways to cut random ones.
TEST(AnswerParserTest, AllCutsOfShortAnswersAgree) {
  const auto check = [](const std::string& text, const AnswerParserOptions& options) {
    const std::string whole = ParsePieces(text, options, {});
    for (uint32_t mask = 0; mask < 1u << (text.size() - 1); ++mask) {
      std::vector<size_t> borders;
      for (size_t i = 1; i < text.size(); ++i) {
        if ((mask >> (i - 1) & 1) != 0) borders.push_back(i);
      }
      ASSERT_EQ(ParsePieces(text, options, borders), whole) << text << ", cuts " << mask;
    }
  };
  check("\n</think>\n\n\na", NoTools(true));
  check("a\n\n\n<tool_x", WithTools(ToolFormat::kJson));
}

TEST(AnswerParserTest, RandomCutsOfRandomAnswersAgree) {
  const std::string_view words[] = {"<think>",
                                    "</think>",
                                    "<tool_call>",
                                    "</tool_call>",
                                    "<function=w>",
                                    "<function=x>",
                                    "</function>",
                                    "<parameter=z>",
                                    "<parameter=n>",
                                    "</parameter>",
                                    "{\"name\": \"w\", \"arguments\": {\"a\": [1]}}",
                                    "{\"name\": \"",
                                    "\n",
                                    "\n",
                                    "\n\n",
                                    " ",
                                    "é",
                                    "<",
                                    "12",
                                    "}",
                                    "<tool_call>\n<function=now>\n</function>\n</tool_call>"};
  std::mt19937_64 random(20261130);
  int num_calls = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (size_t count = random() % 12; count > 0; --count) {
      text += words[random() % std::size(words)];
    }
    AnswerParserOptions options =
        WithTools(random() % 2 == 0 ? ToolFormat::kJson : ToolFormat::kTags, random() % 2 == 0);
    if (random() % 8 == 0) options.tools = nullptr;
    const std::string whole = ParsePieces(text, options, {});
    num_calls += whole.find("call_0") != std::string::npos ? 1 : 0;
    for (int cut = 0; cut < 3; ++cut) {
      std::vector<size_t> borders;
      for (size_t at = 0; (at += random() % 9) < text.size();) borders.push_back(at);
      ASSERT_EQ(ParsePieces(text, options, borders), whole) << text;
    }
  }
  EXPECT_GT(num_calls, 1000);
}

// Without tools nothing but the tags and newlines of reasoning is ever left out.
TEST(AnswerParserTest, WithoutToolsNothingIsLost) {
  for (const std::string_view text : {"<tool_call>\n{}</tool_call>\n", "\n \n", "</think></think>",
                                      "<<<function=w></function>\n\n"}) {
    EXPECT_EQ(Parse(text, NoTools()), fmt::format("C[{}]", text));
  }
}

// Quadratic work would take minutes.
TEST(AnswerParserTest, LongAnswersTakeLinearTime) {
  const int count = 300'000;
  for (const std::string_view piece :
       {"\n", " ", "<", "{", "<tool_call>{", "<tool_call><function=w><parameter=z></parameter> ",
        "</parameter>", "<think>"}) {
    for (const std::string_view head :
         {"", "<tool_call>{\"name\": \"", "<tool_call><function=w><parameter=z>",
          "<tool_call><function=w></function>"}) {
      AnswerParser parser(WithTools(ToolFormat::kTags));
      size_t size = 0;
      const auto take = [&](const std::vector<AnswerPiece>& pieces) {
        for (const AnswerPiece& out : pieces) size += out.text.size();
      };
      take(parser.Push(head));
      for (int i = 0; i < count; ++i) take(parser.Push(piece));
      take(parser.Finish());
      EXPECT_LE(size, head.size() + piece.size() * count + 2);
    }
  }
}

// What the templates write of a call is what the parser reads back.
TEST(AnswerParserTest, ArgumentsSurviveTheWayThroughATemplate) {
  const Json arguments = Json::parse(
      R"({"z": "line\n\nline <b> \"q\" é", "n": -3, "list": [1, {"b": null, "a": [true]}],
          "f": 1.5, "deep": {"y": {}, "x": "é"}})");
  const std::string as_json =
      ChatTemplate::Parse("{{ a | tojson }}")->Render({{"a", arguments}})->Text();
  for (const ToolFormat format : {ToolFormat::kJson, ToolFormat::kTags}) {
    const bool is_json = format == ToolFormat::kJson;
    const std::string source =
        is_json ? "<tool_call>\n{\"name\": \"w\", \"arguments\": {{ arguments | tojson }}}\n"
                  "</tool_call>"
                : "<tool_call>\n<function=w>\n{% for k, v in arguments|items %}<parameter={{ k }}>"
                  "{{ '\\n' }}{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}"
                  "</function>\n</tool_call>";
    const auto rendered = ChatTemplate::Parse(source)->Render({{"arguments", arguments}});
    ASSERT_TRUE(rendered.ok()) << rendered.status();
    const ParsedAnswer answer = ParseAnswer(rendered->Text(), WithTools(format));
    ASSERT_EQ(answer.tool_calls.size(), 1u) << rendered->Text();
    EXPECT_EQ(answer.tool_calls[0].arguments, as_json);
  }
}

}  // namespace
}  // namespace switchyard::model
