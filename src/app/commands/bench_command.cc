// The command `bench`: flags of the plain form, and the parts that measure one thing each.
#include <memory>

#include "app/bench/bench_options.h"
#include "app/bench/speed_bench.h"
#include "app/command.h"

namespace switchyard::app {
namespace {

void AddSpeedFlags(CLI::App& command, SpeedBenchOptions& options) {
  command.add_option("-m,--model", options.model.path, "GGUF file");
  const auto add_list = [&](const char* names, std::vector<int>& values, int low,
                            const char* description) {
    return command.add_option(names, values, description)
        ->delimiter(',')
        ->check(CLI::Range(low, 1 << 20));
  };
  add_list("-p,--n-prompt", options.num_prompt, 0, "Prompt tokens; a list such as 128,512")
      ->default_str("512");
  add_list("-n,--n-gen", options.num_gen, 0, "Tokens to generate; a list")->default_str("128");
  add_list("-d,--n-depth", options.depth, 0, "Tokens in front, not timed; a list")
      ->default_str("0");
  AddDeviceOptions(command, options.model);
  AddGroupOptions(command, options.model);
  command.remove_option(command.get_option("--threads"));
  add_list("-t,--threads", options.threads, 1, "Threads; a list makes a sweep")
      ->envname("SWITCHYARD_THREADS");
  command.add_option("-r,--repetitions", options.repetitions, "Repetitions, after one warm-up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  AddOutputOption(command, options.output, {"md", "json", "csv"});
}

// A flag of the plain form behind the name of a part would be read and forgotten. Values that come
// from the environment are for whoever takes them.
void RefuseFlagsOfPlainForm(const CLI::App& command, const CLI::App& part) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || !option->get_envname().empty()) continue;
    throw CLI::ExtrasError(part.get_name(), {option->get_name()});
  }
}

}  // namespace

void AddBenchCommand(CLI::App& app, CommandBody& body) {
  CLI::App* command = app.add_subcommand("bench", "Measure prefill and decode speed");
  auto options = std::make_shared<SpeedBenchOptions>();
  AddSpeedFlags(*command, *options);
  AddMembwBench(*command, body);
  AddPoolBench(*command, body);
  AddGemvBench(*command, body);
  AddGemmBench(*command, body);
  AddDecodeBench(*command, body);
  AddPrefillBench(*command, body);
  AddResidencyBench(*command, body);
  command->require_subcommand(0, 1);
  command->footer(
      "Examples:\n"
      "  switchyard bench -m model.gguf -p 512 -n 64 -t 1,2 -r 5 -o json\n"
      "  switchyard bench membw -t 1,2\n"
      "  switchyard bench decode -m model.gguf -t 1,2");
  command->callback([&body, command, options] {
    if (const auto parts = command->get_subcommands(); !parts.empty()) {
      return RefuseFlagsOfPlainForm(*command, *parts.front());
    }
    if (options->model.path.empty()) throw CLI::RequiredError("--model");
    body = [options] { return RunSpeedBench(*options); };
  });
}

}  // namespace switchyard::app
