#include "app/report/report_page.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <set>
#include <utility>
#include <vector>

#include "app/experiment/diagnosis.h"
#include "app/load/percentiles.h"
#include "app/report/charts.h"
#include "app/report/html_text.h"
#include "app/report/report_style.h"
#include "base/units.h"

namespace switchyard::app {
namespace {

using Json = nlohmann::ordered_json;

// ---- stages in groups that eight colours can show -----------------------------------------------

struct StageGroup {
  const char* name;
  int colour;
  std::array<const char*, 4> stages;
};
constexpr StageGroup kGroups[] = {
    {"embedding, mixers and norms", 4, {"embed", "ple", "hc"}},
    {"delta net", 2, {"delta_net"}},
    {"attention", 0, {"attention", "qsa_select"}},
    {"router and experts", 1, {"router", "experts_device", "experts_host", "expert_fetch"}},
    {"head and sampling", 3, {"head", "sample", "draft"}},
    {"transfer", 5, {"collective"}},
    {"waiting for other ranks", 6, {"collective_wait"}},
};
constexpr int kRestColour = 7;

std::string NameOf(const CombinationResult& run) {
  const Condition& condition = run.combination.condition;
  return Describe(run.combination.topology) +
         (condition.is_disturbed() ? "; " + condition.name : "");
}

template <typename F>
std::vector<double> Values(const Measurement& measurement, const F& value) {
  std::vector<double> out;
  for (const AnswerSample& sample : measurement.samples) out.push_back(value(sample));
  return out;
}

Bar BarOf(const std::vector<double>& values, int colour, const std::string& what,
          const std::string& unit) {
  Bar bar{Percentile(values, 50), Percentile(values, 10), Percentile(values, 90), colour};
  bar.title = fmt::format("{}: median {} {}, P10 {}, P90 {}, n = {}", what, Short(bar.value), unit,
                          Short(bar.low), Short(bar.high), values.size());
  return bar;
}

// Prompts in the order in which the runs name them.
std::vector<std::string> PromptsOf(const ExperimentResult& result) {
  std::vector<std::string> prompts;
  for (const CombinationResult& run : result.runs) {
    for (const Measurement& m : run.measurements) {
      if (std::find(prompts.begin(), prompts.end(), m.prompt) == prompts.end()) {
        prompts.push_back(m.prompt);
      }
    }
  }
  return prompts;
}

int ColourOfMode(const std::string& mode) {
  if (mode == "layer_split") return 1;
  if (mode == "expert_parallel") return 2;
  if (mode == "tensor_expert_parallel") return 3;
  return 0;
}

std::string Panel(const std::string& heading, const std::string& note, const std::string& body) {
  if (body.empty()) return "";
  return fmt::format("<section><h2>{}</h2><p class=\"note\">{}</p>{}</section>\n", Escape(heading),
                     Escape(note), body);
}

// ---- panels -------------------------------------------------------------------------------------

std::string DiagnosisPanel(const ExperimentResult& result) {
  std::string causes;
  std::string shares;
  for (size_t i = 0; i < result.runs.size(); ++i) {
    const CombinationResult& run = result.runs[i];
    const CombinationResult* const reference = ReferenceOf(result, i);
    for (const Finding& finding : Diagnose(run, reference)) {
      causes += fmt::format("<li data-run=\"{0}\">{0}: <b>{1}</b></li>", Escape(NameOf(run)),
                            Escape(finding.text));
    }
    const std::string share = WhereTimeGoes(run);
    if (share.empty()) continue;
    shares += fmt::format("<li data-run=\"{0}\">{0}: {1}</li>", Escape(NameOf(run)), Escape(share));
  }
  if (shares.empty()) return "";
  return (causes.empty() ? std::string("<p>No rank and no link stands out.</p>")
                         : "<ul class=\"findings\">" + causes + "</ul>") +
         "<details><summary>Where each run's time goes</summary><ul>" + shares + "</ul></details>";
}

std::string DecodePanel(const ExperimentResult& result) {
  std::string out;
  for (const std::string& prompt : PromptsOf(result)) {
    std::vector<BarRow> rows;
    for (const CombinationResult& run : result.runs) {
      for (const Measurement& m : run.measurements) {
        if (m.prompt != prompt || m.is_hit || m.samples.empty()) continue;
        rows.push_back({NameOf(run),
                        {BarOf(Values(m, [](const auto& s) { return s.decode_per_second; }),
                               ColourOfMode(run.combination.topology.mode), "decode", "tok/s")}});
      }
    }
    out += BarChart("decode, prompt of " + prompt, "tok/s", rows);
  }
  if (out.empty()) return "";
  return Legend({{0, "single"},
                 {1, "layer_split"},
                 {2, "expert_parallel"},
                 {3, "tensor_expert_parallel"}}) +
         out;
}

// Cold and hit of every run beside each other, for one figure of the samples.
template <typename F>
std::string ColdAndHit(const ExperimentResult& result, const std::string& what,
                       const std::string& unit, const F& value) {
  std::string out;
  for (const std::string& prompt : PromptsOf(result)) {
    std::vector<BarRow> rows;
    for (const CombinationResult& run : result.runs) {
      BarRow row{NameOf(run), {}};
      for (const Measurement& m : run.measurements) {
        if (m.prompt != prompt || m.samples.empty()) continue;
        row.bars.push_back(
            BarOf(Values(m, value), m.is_hit ? 2 : 0, m.is_hit ? "prefix hit" : "cold", unit));
      }
      if (!row.bars.empty()) rows.push_back(std::move(row));
    }
    out += BarChart(what + ", prompt of " + prompt, unit, rows);
  }
  if (out.empty()) return "";
  return Legend({{0, "cold"}, {2, "prefix hit"}}) + out;
}

// The sample whose speed is the median of a run's first prompt, cold.
const AnswerSample* MedianSample(const CombinationResult& run) {
  for (const Measurement& m : run.measurements) {
    if (m.is_hit || m.samples.empty()) continue;
    const double median =
        Percentile(Values(m, [](const auto& s) { return s.decode_per_second; }), 50);
    for (const AnswerSample& sample : m.samples) {
      if (sample.decode_per_second == median) return &sample;
    }
  }
  return nullptr;
}

Lane LaneOf(const RankEntry& rank) {
  Lane lane{fmt::format("rank {}", rank.rank), {}};
  double covered = 0;
  for (const StageGroup& group : kGroups) {
    double seconds = 0;
    std::string parts;
    for (const char* const stage : group.stages) {
      const double part = stage != nullptr ? rank.StageSeconds(stage) : 0;
      if (part <= 0) continue;
      seconds += part;
      parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", stage, FormatSeconds(part));
    }
    if (seconds <= 0) continue;
    covered += seconds;
    lane.spans.push_back({seconds, group.colour, fmt::format("{}: {}", group.name, parts)});
  }
  const double rest = rank.seconds - covered;
  if (rest > 0) lane.spans.push_back({rest, kRestColour, "other: " + FormatSeconds(rest)});
  if (rank.idle_seconds > 0) {
    lane.spans.push_back(
        {rank.idle_seconds, kRestColour, "waiting for work: " + FormatSeconds(rank.idle_seconds)});
  }
  return lane;
}

std::string StageTable(const StepLedger& ledger) {
  std::set<std::string> stages;
  for (const RankEntry& rank : ledger.ranks) {
    for (const StageEntry& stage : rank.stages) stages.insert(stage.stage);
  }
  std::string out = "<div class=\"wide\"><table><tr><th>stage</th>";
  for (const RankEntry& rank : ledger.ranks) {
    out += fmt::format("<th class=\"n\">rank {}</th><th class=\"n\">weights</th>", rank.rank);
  }
  out += "</tr>";
  for (const std::string& name : stages) {
    out += fmt::format("<tr><td>{}</td>", Escape(name));
    for (const RankEntry& rank : ledger.ranks) {
      const auto stage = std::find_if(rank.stages.begin(), rank.stages.end(),
                                      [&](const StageEntry& s) { return s.stage == name; });
      if (stage == rank.stages.end()) {
        out += "<td></td><td></td>";
        continue;
      }
      out += fmt::format(
          "<td class=\"n\">{}</td><td class=\"n\">{}</td>", FormatSeconds(stage->seconds),
          stage->weight_bytes > 0 ? FormatBytes(static_cast<double>(stage->weight_bytes)) : "");
    }
    out += "</tr>";
  }
  return "<details><summary>Every stage</summary>" + out + "</table></div></details>";
}

std::string WaterfallPanel(const ExperimentResult& result) {
  std::string out;
  for (const CombinationResult& run : result.runs) {
    const AnswerSample* const sample = MedianSample(run);
    if (sample == nullptr || sample->token.ranks.empty()) continue;
    std::vector<Lane> lanes;
    for (const RankEntry& rank : sample->token.ranks) lanes.push_back(LaneOf(rank));
    const std::string chart = LaneChart(NameOf(run), "ms", 1e3, lanes);
    if (chart.empty()) continue;
    out += fmt::format("<div data-run=\"{}\">{}{}</div>", Escape(NameOf(run)), chart,
                       StageTable(sample->token));
  }
  if (out.empty()) return "";
  std::vector<LegendEntry> legend;
  for (const StageGroup& group : kGroups) legend.push_back({group.colour, group.name});
  legend.push_back({kRestColour, "other, and waiting for work"});
  return Legend(legend) + out;
}

std::string LinksPanel(const ExperimentResult& result) {
  std::string out;
  for (const CombinationResult& run : result.runs) {
    StepLedger decode;
    for (const Measurement& m : run.measurements) {
      for (const AnswerSample& sample : m.samples) Add(sample.decode, decode);
    }
    if (decode.links.empty() || decode.num_steps <= 0) continue;
    const auto size = static_cast<size_t>(run.combination.topology.workers);
    std::vector<std::vector<MatrixCell>> bytes(size, std::vector<MatrixCell>(size));
    std::vector<std::vector<MatrixCell>> flight = bytes;
    for (const LinkEntry& link : decode.links) {
      const auto from = static_cast<size_t>(link.from);
      const auto to = static_cast<size_t>(link.to);
      if (from >= size || to >= size || link.num_messages <= 0) continue;
      const double per_token =
          static_cast<double>(link.bytes) / static_cast<double>(decode.num_steps);
      const double each = link.flight_seconds / static_cast<double>(link.num_messages);
      bytes[from][to] = {per_token, FormatBytes(per_token)};
      flight[from][to] = {each, FormatSeconds(each)};
    }
    out += fmt::format("<div data-run=\"{}\">{}{}</div>", Escape(NameOf(run)),
                       Matrix(NameOf(run) + ": bytes of a token", bytes),
                       Matrix(NameOf(run) + ": time of a message on its way", flight));
  }
  return out;
}

// {"layers": [[share of hits of each expert, or -1]], "hit_rate"}.
std::string ResidencyPanel(const ExperimentResult& result) {
  if (!result.residency.is_object() || !result.residency.contains("layers") ||
      !result.residency["layers"].is_array()) {
    return "";
  }
  std::vector<std::vector<double>> rows;
  for (const Json& layer : result.residency["layers"]) {
    if (!layer.is_array()) return "";
    std::vector<double> row;
    for (const Json& expert : layer) {
      if (!expert.is_number()) return "";
      row.push_back(expert.get<double>());
    }
    rows.push_back(std::move(row));
  }
  if (rows.empty()) return "";
  return HeatMap("layers down, experts across", rows);
}

// [{"run": number, "term", "predicted_seconds", "measured_seconds"}].
std::string PredictionsPanel(const ExperimentResult& result) {
  if (!result.predictions.is_array()) return "";
  std::string out;
  for (size_t i = 0; i < result.runs.size(); ++i) {
    std::vector<BarRow> rows;
    for (const Json& entry : result.predictions) {
      if (!entry.is_object() || entry.value("run", -1) != static_cast<int>(i)) continue;
      BarRow row{entry.value("term", ""), {}};
      int colour = 0;
      for (const auto& [key, what] :
           {std::pair{"predicted_seconds", "predicted"}, {"measured_seconds", "measured"}}) {
        const double ms = 1e3 * entry.value(key, 0.0);
        row.bars.push_back({ms, ms, ms, colour, fmt::format("{}: {} ms", what, Short(ms))});
        colour = 2;
      }
      rows.push_back(std::move(row));
    }
    out += BarChart(NameOf(result.runs[i]), "ms a token", rows);
  }
  if (out.empty()) return "";
  return Legend({{0, "predicted"}, {2, "measured"}}) + out;
}

std::string RunsPanel(const ExperimentResult& result) {
  std::string out =
      "<div class=\"filter hidden\"><label for=\"filter\">Show runs with</label>"
      "<input id=\"filter\" placeholder=\"such as: 2 x expert\"></div>"
      "<div class=\"wide\"><table><thead><tr><th data-sort>run</th><th data-sort>prompt</th>"
      "<th data-sort>prefix</th><th class=\"n\" data-sort>prefill tok/s</th>"
      "<th class=\"n\" data-sort>TTFT ms</th><th class=\"n\" data-sort>decode tok/s P50</th>"
      "<th class=\"n\">P10 to P90</th><th class=\"n\">n</th><th>tokens</th></tr></thead><tbody>";
  for (const CombinationResult& run : result.runs) {
    const std::string name = Escape(NameOf(run));
    if (run.status != "ok") {
      out +=
          fmt::format("<tr data-run=\"{0}\"><td>{0}</td><td colspan=\"8\">{1}: {2}</td></tr>", name,
                      run.status == "refused" ? "cannot run" : "failed", Escape(run.reason));
    }
    for (const Measurement& m : run.measurements) {
      const char* const prefix = m.is_hit ? "hit" : "cold";
      if (m.samples.empty()) {
        out += fmt::format(
            "<tr data-run=\"{0}\"><td>{0}</td><td>{1}</td><td>{2}</td><td colspan=\"6\">{3}</td>"
            "</tr>",
            name, Escape(m.prompt), prefix, Escape(m.reason));
        continue;
      }
      const auto decode = Values(m, [](const auto& s) { return s.decode_per_second; });
      const bool agrees = std::all_of(m.samples.begin(), m.samples.end(),
                                      [](const AnswerSample& s) { return s.agrees; });
      int least = m.samples.front().completion_tokens;
      for (const AnswerSample& s : m.samples) least = std::min(least, s.num_equal_tokens);
      out += fmt::format(
          "<tr data-run=\"{0}\"><td>{0}</td><td>{1}</td><td>{2}</td><td class=\"n\">{3}</td>"
          "<td class=\"n\">{4}</td><td class=\"n\">{5}</td><td class=\"n\">{6} to {7}</td>"
          "<td class=\"n\">{8}</td><td>{9}</td></tr>",
          name, Escape(m.prompt), prefix,
          Short(Percentile(Values(m, [](const auto& s) { return s.prefill_per_second; }), 50)),
          Short(1e3 * Percentile(Values(m, [](const auto& s) { return s.ttft_seconds; }), 50)),
          Short(Percentile(decode, 50)), Short(Percentile(decode, 10)),
          Short(Percentile(decode, 90)), m.samples.size(),
          agrees ? std::string("as single") : fmt::format("differ from single after {}", least));
    }
  }
  return out + "</tbody></table></div>";
}

std::string ValueText(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string SettingsPanel(const ExperimentResult& result) {
  std::string out = "<div class=\"wide\"><table>";
  const auto add = [&](const std::string& name, const std::string& value) {
    out += fmt::format("<tr><th>{}</th><td>{}</td></tr>", Escape(name), Escape(value));
  };
  add("made", result.created_at);
  add("version", result.version);
  for (const auto& [prefix, values] : {std::pair{"model", &result.model},
                                       {"setting", &result.settings},
                                       {"machine", &result.machine}}) {
    if (!values->is_object()) continue;
    for (const auto& [key, value] : values->items()) {
      add(fmt::format("{}: {}", prefix, key), ValueText(value));
    }
  }
  return out + "</table></div>";
}

}  // namespace

std::string ReportPage(const ExperimentResult& result) {
  std::string page =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<link rel=\"icon\" href=\"data:,\">";
  page += fmt::format("<title>{}</title><style>{}</style></head>\n<body>\n", Escape(result.name),
                      kReportStyle);
  page += fmt::format("<p class=\"devices\">{}</p>\n<h1>{}</h1>\n", Escape(result.devices),
                      Escape(result.name));
  size_t num_ok = 0;
  for (const CombinationResult& run : result.runs) num_ok += run.status == "ok" ? 1 : 0;
  page += fmt::format(
      "<p class=\"note\">{} of {} combinations ran; the others are listed with the "
      "reason.</p>\n",
      num_ok, result.runs.size());
  page +=
      Panel("Diagnosis",
            "Computed from the ledgers of ranks and links alone, against the undisturbed run of "
            "the same arrangement where there is one.",
            DiagnosisPanel(result));
  page += Panel("Runs",
                "Medians. TTFT is the client's, queueing included. Prefill counts evaluated tokens "
                "only; cold prompts and prefix hits are never averaged together.",
                RunsPanel(result));
  page +=
      Panel("Decode by workers and mode",
            "Bars are medians, whiskers reach from P10 to P90. Cold prompts.", DecodePanel(result));
  page += Panel(
      "Time to first token", "By length of the prompt. Whiskers: P10 to P90.",
      ColdAndHit(result, "TTFT", "ms", [](const AnswerSample& s) { return 1e3 * s.ttft_seconds; }));
  page += Panel("Prefill", "Evaluated tokens only. Whiskers: P10 to P90.",
                ColdAndHit(result, "prefill", "tok/s",
                           [](const AnswerSample& s) { return s.prefill_per_second; }));
  page += Panel("One token by stage and rank",
                "The decode step with the median time. Stages are sums over layers, so that a "
                "stage's place in a lane says how long it took, not when.",
                WaterfallPanel(result));
  page += Panel("Links", "Decode steps; received bytes, from row to column.", LinksPanel(result));
  page += Panel("Residency", "Share of an expert's uses that found it in the fast tier.",
                ResidencyPanel(result));
  page += Panel("Predicted and measured", "Terms of the cost model, for one token.",
                PredictionsPanel(result));
  page += Panel("Settings", "What was run, on what.", SettingsPanel(result));
  page += fmt::format("<script type=\"application/json\" id=\"data\">{}</script>\n",
                      ScriptSafe(ToJson(result).dump()));
  page += fmt::format("<script>{}</script>\n</body></html>\n", kReportScript);
  return page;
}

}  // namespace switchyard::app
