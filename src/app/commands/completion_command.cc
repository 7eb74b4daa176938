#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/command.h"
#include "app/terminal.h"

namespace switchyard::app {
namespace {

// The words that may follow a command: its own flags and those of the program.
std::string Flags(const CLI::App& command) {
  std::string words;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) words += "--" + name + " ";
    for (const std::string& name : option->get_snames()) words += "-" + name + " ";
  }
  return words;
}

std::string BashScript(const CLI::App& app) {
  std::string commands;
  std::string cases;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands += command->get_name() + " ";
    cases += fmt::format("    {}) words=\"{}\" ;;\n", command->get_name(), Flags(*command));
  }
  return fmt::format(
      R"(# bash completion of switchyard; load it with: source <(switchyard completion bash)
_switchyard() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words="{} {}" word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$word" in
{}    *) continue ;;
    esac
    break
  done
  if [[ "$current" == -* || "$words" == "{}"* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  fi
  if [[ ${{#COMPREPLY[@]}} -eq 0 ]]; then COMPREPLY=($(compgen -f -- "$current")); fi
}}
complete -o filenames -F _switchyard switchyard
)",
      commands, Flags(app), cases, commands);
}

}  // namespace

void AddCompletionCommand(CLI::App& app, CommandBody& body) {
  CLI::App* command = app.add_subcommand("completion", "Print a completion script for a shell");
  auto shell = std::make_shared<std::string>("bash");
  command->add_option("shell", *shell, "Which shell")->check(CLI::IsMember({"bash"}));
  command->footer("Example:\n  source <(switchyard completion bash)");
  // The option writes to `shell` while flags are read.
  command->callback(
      [&app, &body, shell] { body = [&app] { return WriteOutput(BashScript(app)); }; });
}

}  // namespace switchyard::app
