#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/terminal.h"
#include "app/version.h"
#include "base/cpu_topology.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "device/device_info.h"
#include "kernels/cpu/cpu_features.h"

namespace switchyard::app {

void AddVersionCommand(CLI::App& app, CommandBody& body) {
  CLI::App* command = app.add_subcommand("version", "Print version and build");
  auto output = std::make_shared<std::string>();
  AddOutputOption(*command, *output, {"text", "json"});
  command->callback([&body, output] {
    body = [output]() -> absl::Status {
      SWITCHYARD_ASSIGN_OR_RETURN(const auto devices, device::ListDevices());
      const CpuBudget cpu = DefaultCpuBudget();
      const auto level = CpuLevelName(kernels::cpu::DetectCpuLevel());
      if (*output == "json") {
        nlohmann::ordered_json json = {{"version", Version()},
                                       {"build", BuildDescription()},
                                       {"cpu", {{"level", level}, {"threads", cpu.num_threads}}},
                                       {"devices", nlohmann::ordered_json::array()}};
        for (const auto& info : devices) {
          json["devices"].push_back({{"device", info.device},
                                     {"name", info.name},
                                     {"pci_address", info.pci_address},
                                     {"total_bytes", info.total_bytes}});
        }
        return WriteOutput(json.dump() + "\n");
      }
      std::string text = fmt::format("switchyard {}\n{}\ncpu: {}, threads: {} ({})\n", Version(),
                                     BuildDescription(), level, cpu.num_threads, cpu.reason);
      for (const auto& info : devices) {
        text += fmt::format("device {}: {}, {}, {}\n", info.device, info.name, info.pci_address,
                            FormatBytes(static_cast<double>(info.total_bytes)));
      }
      return WriteOutput(text);
    };
  });
}

}  // namespace switchyard::app
