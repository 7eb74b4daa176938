#include "app/cost_report.h"

#include <fmt/format.h>

#include "base/units.h"

namespace switchyard::app {
namespace {

namespace v1 = switchyard::worker::v1;
using coordinator::StageName;

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

// Lines of one rank: its stages, what none of them covers, the whole.
std::string Table(const coordinator::StageTotals& stages, double seconds,
                  double unattributed_seconds) {
  std::string table = fmt::format("{:<16} {:>10} {:>7} {:>12} {:>8}\n", "stage", "seconds", "share",
                                  "weights", "GB/s");
  int64_t all_bytes = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    const coordinator::StageTotal& total = stages[i];
    if (!TookPart(total)) continue;
    table += Row(StageName(static_cast<int>(i)), total.seconds, seconds, total.weight_bytes);
    all_bytes += total.weight_bytes;
  }
  table += Row("unattributed", unattributed_seconds, seconds, 0);
  return table + Row("all", seconds, seconds, all_bytes);
}

// A line for each ordered pair of ranks that exchanged something.
std::string LinkTable(const std::vector<coordinator::LinkTotal>& links) {
  std::string table = fmt::format("{:<16} {:>10} {:>10} {:>12} {:>12}\n", "link", "bytes",
                                  "messages", "transfer", "on its way");
  for (const coordinator::LinkTotal& link : links) {
    const double each =
        link.num_messages > 0 ? link.flight_seconds / static_cast<double>(link.num_messages) : 0;
    table += fmt::format("{:<16} {:>10} {:>10} {:>12} {:>12}\n",
                         fmt::format("{} -> {}", link.from, link.to),
                         FormatBytes(static_cast<double>(link.bytes)), link.num_messages,
                         FormatSeconds(link.transfer_seconds), FormatSeconds(each));
  }
  return table;
}

nlohmann::ordered_json StagesJson(const coordinator::StageTotals& totals) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (size_t i = 0; i < totals.size(); ++i) {
    const coordinator::StageTotal& total = totals[i];
    if (!TookPart(total)) continue;
    stages.push_back({{"stage", StageName(static_cast<int>(i))},
                      {"seconds", total.seconds},
                      {"weight_bytes", total.weight_bytes}});
  }
  return stages;
}

}  // namespace

std::string CostTable(const coordinator::StepCosts& costs) {
  std::string table;
  for (const coordinator::RankTotal& rank : costs.ranks) {
    table +=
        fmt::format("rank {}; it waited {:.4f} s for headers\n", rank.rank, rank.idle_seconds) +
        Table(rank.stages, rank.seconds, rank.unattributed_seconds()) + "\n";
  }
  table += costs.ranks.empty() ? Table(costs.stages, costs.seconds, costs.unattributed_seconds())
                               : LinkTable(costs.links);
  return table + fmt::format("{} steps; the worker waited {:.4f} s for plans between them\n",
                             costs.num_steps, costs.idle_seconds);
}

nlohmann::ordered_json CostsJson(const coordinator::StepCosts& costs) {
  nlohmann::ordered_json json = {{"steps", costs.num_steps},
                                 {"seconds", costs.seconds},
                                 {"idle_seconds", costs.idle_seconds},
                                 {"unattributed_seconds", costs.unattributed_seconds()},
                                 {"stages", StagesJson(costs.stages)}};
  if (costs.ranks.empty()) return json;
  for (const coordinator::RankTotal& rank : costs.ranks) {
    json["ranks"].push_back({{"rank", rank.rank},
                             {"steps", rank.num_steps},
                             {"seconds", rank.seconds},
                             {"idle_seconds", rank.idle_seconds},
                             {"unattributed_seconds", rank.unattributed_seconds()},
                             {"stages", StagesJson(rank.stages)}});
  }
  json["links"] = nlohmann::ordered_json::array();
  for (const coordinator::LinkTotal& link : costs.links) {
    json["links"].push_back({{"from", link.from},
                             {"to", link.to},
                             {"bytes", link.bytes},
                             {"messages", link.num_messages},
                             {"transfer_seconds", link.transfer_seconds},
                             {"flight_seconds", link.flight_seconds}});
  }
  return json;
}

}  // namespace switchyard::app
