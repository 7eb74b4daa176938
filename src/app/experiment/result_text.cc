#include <algorithm>
#include <fmt/format.h>
#include <set>

#include "app/experiment/diagnosis.h"
#include "app/experiment/experiment_run.h"
#include "app/load/percentiles.h"

namespace switchyard::app {
namespace {

const char* NameOf(Cause cause) {
  switch (cause) {
    case Cause::kLinkDelay:
      return "link_delay";
    case Cause::kLinkRate:
      return "link_rate";
    case Cause::kSlowRank:
      break;
  }
  return "slow_rank";
}

std::string Title(const CombinationResult& run) {
  const Condition& condition = run.combination.condition;
  return Describe(run.combination.topology) +
         (condition.is_disturbed() ? "; " + condition.name : "");
}

std::string Row(const CombinationResult& run, const Measurement& measurement) {
  std::vector<double> prefill;
  std::vector<double> ttft;
  std::vector<double> decode;
  bool agrees = true;
  for (const AnswerSample& sample : measurement.samples) {
    prefill.push_back(sample.prefill_per_second);
    ttft.push_back(1e3 * sample.ttft_seconds);
    decode.push_back(sample.decode_per_second);
    agrees &= sample.agrees;
  }
  return fmt::format("| {} | {} | {} | {:.1f} | {:.2f} | {:.1f} ({:.1f}-{:.1f}) | {} | {} |\n",
                     Title(run), measurement.prompt, measurement.is_hit ? "hit" : "cold",
                     Percentile(prefill, 50), Percentile(ttft, 50), Percentile(decode, 50),
                     Percentile(decode, 10), Percentile(decode, 90), decode.size(),
                     agrees ? "as single" : "differ");
}

}  // namespace

std::string DescribeDevices(const std::vector<Combination>& combinations, int num_cpus,
                            const std::string& cpu_model) {
  std::set<int> threads;
  for (const Combination& combination : combinations) threads.insert(combination.topology.threads);
  std::string counts;
  for (const int count : threads)
    counts += fmt::format("{}{}", counts.empty() ? "" : " or ", count);
  return fmt::format("CPU workers with {} thread{} each, on {} CPU{}{}", counts,
                     counts == "1" ? "" : "s", num_cpus, num_cpus == 1 ? "" : "s",
                     cpu_model.empty() ? "" : " (" + cpu_model + ")");
}

std::string ResultTable(const ExperimentResult& result) {
  std::string out = result.devices +
                    "\n\n| run | prompt | prefix | prefill tok/s | TTFT ms | decode tok/s | n | "
                    "tokens |\n| --- | --- | --- | ---: | ---: | ---: | ---: | --- |\n";
  for (const CombinationResult& run : result.runs) {
    if (run.status != "ok") {
      out += fmt::format("| {} | {}: {} | | | | | | |\n", Title(run),
                         run.status == "refused" ? "cannot run" : "failed", run.reason);
    }
    for (const Measurement& measurement : run.measurements) {
      if (!measurement.samples.empty()) {
        out += Row(run, measurement);
      } else if (!measurement.reason.empty()) {
        out += fmt::format("| {} | {} | {} | {} | | | | |\n", Title(run), measurement.prompt,
                           measurement.is_hit ? "hit" : "cold", measurement.reason);
      }
    }
  }
  std::string findings;
  for (size_t i = 0; i < result.runs.size(); ++i) {
    for (const Finding& finding : Diagnose(result.runs[i], ReferenceOf(result, i))) {
      findings += fmt::format("{}: {}\n", Title(result.runs[i]), finding.text);
    }
  }
  return out + "\n" + (findings.empty() ? "no rank and no link stands out\n" : findings);
}

nlohmann::ordered_json DiagnosisJson(const ExperimentResult& result) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (size_t i = 0; i < result.runs.size(); ++i) {
    for (const Finding& finding : Diagnose(result.runs[i], ReferenceOf(result, i))) {
      nlohmann::ordered_json entry = {{"run", i}, {"cause", NameOf(finding.cause)}};
      if (finding.cause == Cause::kSlowRank) {
        entry["rank"] = finding.rank;
      } else {
        entry["from"] = finding.from;
        entry["to"] = finding.to;
      }
      entry["size"] = finding.size;
      entry["text"] = finding.text;
      json.push_back(std::move(entry));
    }
  }
  return json;
}

}  // namespace switchyard::app
