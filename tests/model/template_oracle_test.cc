// Our interpreter against Jinja2 itself, over the corpus in tests/data/chat_templates/.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "model/chat_template.h"

namespace switchyard::model {
namespace {

using Json = nlohmann::ordered_json;

// 1 February 2026, 03:04:05 UTC, as in template_oracle.py.
constexpr std::time_t kNow = 1769915045;

const std::string kFolder = std::string(SWITCHYARD_TEST_DATA) + "/chat_templates/";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> Lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// What template_oracle.py prints.
std::string RunOracle() {
  const std::string command = "/usr/bin/python3 '" + std::string(SWITCHYARD_SOURCE_DIR) +
                              "/tests/model/template_oracle.py' '" + kFolder + "'";
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "";
  std::string output;
  char buffer[4096];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    output.append(buffer, n);
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  return output;
}

struct Corpus {
  std::vector<Json> conversations;
  Json expressions_context;
  std::vector<std::string> expressions;
  std::map<std::string, std::string> templates;

  std::string Source(const std::string& name) {
    const size_t colon = name.find(':');
    if (colon != std::string::npos) return expressions.at(std::stoul(name.substr(colon + 1)) - 1);
    const auto [it, is_new] = templates.try_emplace(name);
    if (is_new) it->second = ReadFile(kFolder + name);
    return it->second;
  }

  const Json& Context(const std::string& name, size_t index) const {
    return name.find(':') == std::string::npos ? conversations.at(index) : expressions_context;
  }
};

Corpus LoadCorpus() {
  Corpus corpus;
  for (const std::string& line : Lines(ReadFile(kFolder + "conversations.jsonl"))) {
    corpus.conversations.push_back(Json::parse(line));
  }
  corpus.expressions_context = Json::parse(ReadFile(kFolder + "expressions_context.json"));
  corpus.expressions = Lines(ReadFile(kFolder + "expressions.txt"));
  return corpus;
}

absl::StatusOr<std::string> Render(const std::string& source, const Json& context) {
  absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status();
  ChatTemplate::RenderOptions options;
  options.now = kNow;
  absl::StatusOr<RenderedChat> rendered = parsed->Render(context, options);
  if (!rendered.ok()) return rendered.status();
  return rendered->Text();
}

TEST(TemplateOracleTest, RendersWhatJinja2RendersAndRefusesWhatItRefuses) {
  const std::string output = RunOracle();
  if (output.rfind("missing:", 0) == 0) GTEST_SKIP() << output;
  Corpus corpus = LoadCorpus();
  size_t num_rendered = 0;
  size_t num_refused = 0;
  for (const std::string& line : Lines(output)) {
    const Json expected = Json::parse(line);
    const auto name = expected["template"].get<std::string>();
    const auto index = expected["case"].get<size_t>();
    SCOPED_TRACE(name + ", case " + std::to_string(index));
    const std::string source = corpus.Source(name);
    const auto text = Render(source, corpus.Context(name, index));
    if (expected.contains("error")) {
      ++num_refused;
      EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument)
          << source.substr(0, 200) << "\nJinja2: " << expected["error"]
          << "\nours: " << (text.ok() ? *text : std::string(Message(text.status())));
      continue;
    }
    ++num_rendered;
    if (!text.ok()) {
      ADD_FAILURE() << source.substr(0, 200) << "\n" << text.status();
      continue;
    }
    EXPECT_EQ(*text, expected["text"].get<std::string>());
  }
  // The corpus was read, all of it.
  EXPECT_EQ(num_rendered + num_refused,
            8 * corpus.conversations.size() + corpus.expressions.size());
  EXPECT_GT(num_rendered, 400u);
  EXPECT_GT(num_refused, 80u);
}

}  // namespace
}  // namespace switchyard::model
