#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/version.h"

namespace switchyard::app {

void AddVersionCommand(CLI::App& app, CommandBody& body) {
  CLI::App* command = app.add_subcommand("version", "Print version and build");
  auto output = std::make_shared<std::string>();
  AddOutputOption(*command, *output, {"text", "json"});
  command->callback([&body, output] {
    body = [output] {
      if (*output == "json") {
        const nlohmann::ordered_json json = {{"version", Version()}, {"build", BuildDescription()}};
        fmt::print("{}\n", json.dump());
      } else {
        fmt::print("switchyard {}\n{}\n", Version(), BuildDescription());
      }
      return absl::OkStatus();
    };
  });
}

}  // namespace switchyard::app
