#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "app/command.h"
#include "app/exit_code.h"
#include "app/input_file.h"
#include "app/interrupt.h"
#include "app/load/load_client.h"
#include "app/load/load_report.h"
#include "app/load/load_run.h"
#include "app/terminal.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

struct BenchServeOptions {
  std::string http;
  std::string grpc;
  std::string api_key_file;
  std::string prompts_path;
  LoadOptions load;
  std::string output;
};

// A file of prompts: on each line a JSON array of token ids.
absl::StatusOr<std::vector<std::vector<int32_t>>> ReadPrompts(const std::string& path,
                                                              int32_t vocab_size) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string text, ReadInputFile(path));
  std::vector<std::vector<int32_t>> prompts;
  size_t begin = 0;
  for (int number = 1; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const auto json = nlohmann::json::parse(text.begin() + static_cast<ptrdiff_t>(begin),
                                            text.begin() + static_cast<ptrdiff_t>(end), nullptr,
                                            /*allow_exceptions=*/false);
    begin = end + 1;
    std::vector<int32_t> prompt;
    bool is_good = json.is_array() && !json.empty();
    for (size_t i = 0; is_good && i < json.size(); ++i) {
      is_good = json[i].is_number_unsigned() &&
                json[i].get<uint64_t>() < static_cast<uint64_t>(vocab_size);
      if (is_good) prompt.push_back(json[i].get<int32_t>());
    }
    if (!is_good) {
      return InvalidArgument("wants an array of token ids below {}: {}, line: {}", vocab_size, path,
                             number);
    }
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) return InvalidArgument("holds no prompts: {}", path);
  return prompts;
}

absl::StatusOr<std::unique_ptr<LoadClient>> MakeClient(const BenchServeOptions& options) {
  std::string api_key;
  if (!options.api_key_file.empty()) {
    SWITCHYARD_ASSIGN_OR_RETURN(api_key, ReadInputFile(options.api_key_file));
    while (!api_key.empty() && (api_key.back() == '\n' || api_key.back() == '\r')) {
      api_key.pop_back();
    }
  }
  if (!options.grpc.empty()) return MakeGrpcLoadClient(options.grpc, api_key);
  auto client = MakeHttpLoadClient(options.http, api_key);
  if (!client.ok()) return WithExitCode(WithContext(client.status(), "--http"), ExitCode::kUsage);
  return client;
}

absl::Status BenchServe(BenchServeOptions options) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto client, MakeClient(options));
  LoadContext context;
  context.target = options.grpc.empty() ? options.http : options.grpc;
  SWITCHYARD_ASSIGN_OR_RETURN(context.server, client->Describe());
  if (!options.prompts_path.empty()) {
    auto prompts = ReadPrompts(options.prompts_path, context.server.vocab_size);
    if (!prompts.ok()) return WithExitCode(prompts.status(), ExitCode::kUsage);
    options.load.prompts = *std::move(prompts);
  }
  options.load.cache_salt = fmt::format("bench-serve-{:08x}", std::random_device{}());
  context.options = options.load;
  const LoadResult result =
      RunLoad(*client, options.load, context.server.vocab_size, [] { return IsInterrupted(); });
  SWITCHYARD_RETURN_IF_ERROR(WriteOutput(options.output == "json"
                                             ? LoadReportJson(context, result)
                                             : LoadReportText(context, result)));
  if (IsInterrupted()) return InterruptedStatus();
  for (const LoadSample& sample : result.samples) {
    if (!sample.status.ok()) return WithContext(sample.status, "not all requests succeeded");
  }
  return absl::OkStatus();
}

}  // namespace

void AddBenchServeCommand(CLI::App& app, CommandBody& body) {
  CLI::App* command = app.add_subcommand("bench-serve", "Measure a running server under load");
  auto options = std::make_shared<BenchServeOptions>();
  CLI::Option* http = command->add_option("--http", options->http, "URL, http://host:port");
  command->add_option("--grpc", options->grpc, "Address, host:port")->excludes(http);
  command->add_option("--api-key-file", options->api_key_file, "File with the key to send");
  LoadOptions& load = options->load;
  const auto add = [&](const char* names, int& value, int low, int high, const char* description) {
    command->add_option(names, value, description)
        ->check(CLI::Range(low, high))
        ->capture_default_str();
  };
  add("-r,--requests", load.num_requests, 1, 10'000'000, "Requests to measure");
  add("-c,--concurrency", load.concurrency, 1, 4096, "Requests at the same time, at most");
  add("--warmup", load.num_warmup, 0, 100'000, "Requests before the measurement");
  add("-p,--n-prompt", load.prompt_tokens, 1, 1 << 20, "Tokens of each random prompt");
  add("-n,--n-gen", load.max_tokens, 1, 1 << 20, "Tokens of each answer");
  add("--shared-prefix", load.shared_prefix_tokens, 0, 1 << 20,
      "Leading tokens that all prompts share, stored before the measurement");
  command
      ->add_option("--rate", load.requests_per_second,
                   "Requests a second, at random times (default: as soon as one ends)")
      ->check(CLI::PositiveNumber);
  command->add_option("--seed", load.seed, "Of prompts and times")->capture_default_str();
  command->add_option(
      "--prompts", options->prompts_path,
      "File with a JSON array of token ids on each line, instead of random prompts");
  AddOutputOption(*command, options->output, {"text", "json"});
  command->footer(
      "Examples:\n  switchyard bench-serve --http http://127.0.0.1:8080 -c 8 -r 64\n"
      "  switchyard bench-serve --grpc 127.0.0.1:50051 -p 1024 -n 32 --shared-prefix 896");
  command->callback([&body, options] {
    if (options->http.empty() && options->grpc.empty()) {
      throw CLI::ValidationError("bench-serve", "wants --http URL or --grpc ADDRESS");
    }
    body = [options] { return BenchServe(*options); };
  });
}

}  // namespace switchyard::app
