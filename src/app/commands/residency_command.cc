// residency: where every expert of a running server is.
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "app/command.h"
#include "app/exit_code.h"
#include "app/input_file.h"
#include "app/load/load_client.h"
#include "app/terminal.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "base/units.h"

namespace switchyard::app {
namespace {

using Json = nlohmann::ordered_json;

struct ResidencyCommandOptions {
  std::string url = "http://127.0.0.1:8080";
  std::string api_key_file;
  std::string output;
};

std::string Percent(const Json& hits, const Json& misses) {
  const double all = hits.get<double>() + misses.get<double>();
  return all == 0 ? "-" : fmt::format("{:.1f} %", 100 * hits.get<double>() / all);
}

// One line a layer: a letter an expert, and its hit rate.
std::string RankMap(const Json& rank, size_t number) {
  if (rank.is_null()) return fmt::format("rank {}: has told nothing yet\n", number);
  std::string text = fmt::format(
      "rank {}: {} layers x {} experts, {} in memory of {}, version {}\n", number,
      rank.at("num_layers").get<int>(), rank.at("num_experts").get<int>(),
      FormatBytes(rank.at("host_bytes").get<double>() + rank.at("device_bytes").get<double>()),
      FormatBytes(rank.at("budget_bytes").get<double>()), rank.at("version").get<uint64_t>());
  const Json& states = rank.at("states");
  for (size_t l = 0; l < states.size(); ++l) {
    const Json& layer = rank.at("layers").at(l);
    text +=
        fmt::format("{:4} {}  hits {}, in {}, out {}\n", l, states.at(l).get<std::string>(),
                    Percent(layer.at("hits"), layer.at("misses")),
                    layer.at("promotions").get<uint64_t>(), layer.at("evictions").get<uint64_t>());
  }
  return text;
}

std::string ResidencyText(const Json& json) {
  const auto device = json.at("device").get<uint64_t>(), host = json.at("host").get<uint64_t>();
  std::string text = fmt::format(
      "resident {}/{} (device {}, host {}, file {})\nhits {} of {} uses, {} promotions, {} "
      "evictions, {} moved\n",
      device > 0 ? device : host, json.at("experts").get<uint64_t>(), device, host,
      json.at("file").get<uint64_t>(), Percent(json.at("hits"), json.at("misses")),
      json.at("hits").get<uint64_t>() + json.at("misses").get<uint64_t>(),
      json.at("promotions").get<uint64_t>(), json.at("evictions").get<uint64_t>(),
      FormatBytes(json.at("bytes_moved").get<double>()));
  const Json& ranks = json.at("ranks");
  for (size_t r = 0; r < ranks.size(); ++r) text += RankMap(ranks.at(r), r);
  text +=
      "h in host memory, f in the file, l on its way, r on the device, p pinned there, . of "
      "another rank\n";
  return text;
}

absl::Status Run(const ResidencyCommandOptions& options) {
  std::string api_key;
  if (!options.api_key_file.empty()) {
    SWITCHYARD_ASSIGN_OR_RETURN(api_key, ReadInputFile(options.api_key_file));
    while (!api_key.empty() && (api_key.back() == '\n' || api_key.back() == '\r')) {
      api_key.pop_back();
    }
  }
  const auto body = HttpGet(options.url, "/api/residency", api_key);
  if (body.status().code() == absl::StatusCode::kInvalidArgument) {
    return WithExitCode(body.status(), ExitCode::kUsage);
  }
  SWITCHYARD_RETURN_IF_ERROR(body.status());
  if (options.output == "json") return WriteOutput(*body + "\n");
  const Json json = Json::parse(*body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("ranks")) {
    return Internal("the server's answer makes no sense: {}", options.url);
  }
  return WriteOutput(ResidencyText(json));
}

}  // namespace

void AddResidencyCommand(CLI::App& app, CommandBody& body) {
  CLI::App* command =
      app.add_subcommand("residency", "Show where every expert of a running server is");
  auto options = std::make_shared<ResidencyCommandOptions>();
  command->add_option("URL", options->url, "The server's HTTP address")->capture_default_str();
  command->add_option("--api-key-file", options->api_key_file, "File with the key to send");
  AddOutputOption(*command, options->output, {"text", "json"});
  command->add_flag_callback(
      "--json", [options] { options->output = "json"; }, "As --output json");
  command->footer(
      "Examples:\n"
      "  switchyard residency\n"
      "  switchyard residency http://127.0.0.1:8080 --json");
  command->callback([&body, options] { body = [options] { return Run(*options); }; });
}

}  // namespace switchyard::app
