#include "app/cost_report.h"

#include <cctype>
#include <fmt/format.h>
#include <string_view>

#include "base/units.h"

namespace switchyard::app {
namespace {

namespace v1 = switchyard::worker::v1;

// STAGE_DELTA_NET -> "delta_net".
std::string StageName(size_t stage) {
  constexpr std::string_view kPrefix = "STAGE_";
  std::string name = v1::Stage_Name(static_cast<v1::Stage>(stage)).substr(kPrefix.size());
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

bool TookPart(const coordinator::StageTotal& total) {
  return total.seconds != 0 || total.weight_bytes != 0;
}

std::string Row(const std::string& name, double seconds, double all_seconds, int64_t bytes) {
  std::string row = fmt::format("{:<16} {:>10.4f} {:>6.1f}%", name, seconds,
                                all_seconds > 0 ? 100 * seconds / all_seconds : 0);
  if (bytes > 0) {
    row += fmt::format(" {:>12}", FormatBytes(static_cast<double>(bytes)));
    if (seconds > 0) row += fmt::format(" {:>8.2f}", static_cast<double>(bytes) / seconds / 1e9);
  }
  return row + "\n";
}

}  // namespace

std::string CostTable(const coordinator::StepCosts& costs) {
  std::string table = fmt::format("{:<16} {:>10} {:>7} {:>12} {:>8}\n", "stage", "seconds", "share",
                                  "weights", "GB/s");
  int64_t all_bytes = 0;
  for (size_t i = 0; i < costs.stages.size(); ++i) {
    const coordinator::StageTotal& total = costs.stages[i];
    if (!TookPart(total)) continue;
    table += Row(StageName(i), total.seconds, costs.seconds, total.weight_bytes);
    all_bytes += total.weight_bytes;
  }
  table += Row("unattributed", costs.unattributed_seconds(), costs.seconds, 0);
  table += Row("all", costs.seconds, costs.seconds, all_bytes);
  return table + fmt::format("{} steps; the worker waited {:.4f} s for plans between them\n",
                             costs.num_steps, costs.idle_seconds);
}

nlohmann::ordered_json CostsJson(const coordinator::StepCosts& costs) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (size_t i = 0; i < costs.stages.size(); ++i) {
    const coordinator::StageTotal& total = costs.stages[i];
    if (!TookPart(total)) continue;
    stages.push_back({{"stage", StageName(i)},
                      {"seconds", total.seconds},
                      {"weight_bytes", total.weight_bytes}});
  }
  return {{"steps", costs.num_steps},
          {"seconds", costs.seconds},
          {"idle_seconds", costs.idle_seconds},
          {"unattributed_seconds", costs.unattributed_seconds()},
          {"stages", std::move(stages)}};
}

}  // namespace switchyard::app
