#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/input_file.h"
#include "app/loaded_model.h"
#include "app/terminal.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

struct TokenizeOptions {
  std::string path;
  std::string text;
  bool has_text = false;
  bool plain = false;
  std::string output;
};

absl::Status Tokenize(const TokenizeOptions& options) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto model, OpenModel(options.path));
  std::string text = options.text;
  if (!options.has_text) {
    SWITCHYARD_ASSIGN_OR_RETURN(text, ReadStandardInput());
  }
  const auto matching =
      options.plain ? model::SpecialMatching::kNone : model::SpecialMatching::kAll;
  const std::vector<int32_t> ids = model->tokenizer.Encode(text, matching);
  if (options.output == "json") {
    nlohmann::ordered_json tokens = nlohmann::ordered_json::array();
    for (int32_t id : ids) {
      tokens.push_back({{"id", id}, {"text", model->tokenizer.Decode({&id, 1}, true)}});
    }
    return WriteOutput(tokens.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
                       "\n");
  }
  return WriteOutput(fmt::format("{}\n", fmt::join(ids, " ")));
}

}  // namespace

void AddTokenizeCommand(CLI::App& app, CommandBody& body) {
  CLI::App* command = app.add_subcommand("tokenize", "Print the token ids of a text");
  auto options = std::make_shared<TokenizeOptions>();
  command->add_option("MODEL", options->path, "GGUF file")->required();
  CLI::Option* text =
      command->add_option("-p,--prompt", options->text, "The text (default: standard input)");
  command->add_flag("--plain", options->plain,
                    "Take special tokens in the text as plain characters");
  AddOutputOption(*command, options->output, {"text", "json"});
  command->footer("Example:\n  switchyard tokenize model.gguf -p 'Hello there' -o json");
  command->callback([&body, options, text] {
    options->has_text = text->count() > 0;
    body = [options] { return Tokenize(*options); };
  });
}

}  // namespace switchyard::app
