#include "app/load/load_report.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>

#include "app/load/percentiles.h"
#include "app/version.h"
#include "base/status.h"

namespace switchyard::app {
namespace {

struct Group {
  std::string name;
  std::vector<const LoadSample*> samples;
};

// Cold and hit apart; failures in neither.
std::vector<Group> Groups(const LoadResult& result) {
  Group cold{"cold", {}};
  Group hit{"prefix hit", {}};
  for (const LoadSample& sample : result.samples) {
    if (!sample.status.ok()) continue;
    (sample.cached_tokens > 0 ? hit : cold).samples.push_back(&sample);
  }
  std::vector<Group> groups;
  if (!cold.samples.empty()) groups.push_back(std::move(cold));
  if (!hit.samples.empty()) groups.push_back(std::move(hit));
  return groups;
}

template <typename Value>
std::vector<double> Collect(const Group& group, Value value) {
  std::vector<double> values;
  for (const LoadSample* sample : group.samples) values.push_back(value(*sample));
  return values;
}

struct Series {
  std::string name;
  std::string unit;
  bool is_rate = false;  // P10, P50, P90; else P50, P90, P99
  std::vector<double> values;

  std::vector<double> percents() const {
    return is_rate ? std::vector<double>{10, 50, 90} : std::vector<double>{50, 90, 99};
  }
};

std::vector<Series> SeriesOf(const Group& group) {
  std::vector<Series> all;
  all.push_back({"TTFT", "ms", false,
                 Collect(group, [](const LoadSample& s) { return 1000 * s.ttft_seconds(); })});
  Series itl{"ITL", "ms", false, {}};
  Series tpot{"TPOT", "ms", false, {}};
  Series decode{"decode", "tok/s", true, {}};
  for (const LoadSample* sample : group.samples) {
    for (double gap : sample->gap_seconds) itl.values.push_back(1000 * gap);
    if (sample->tpot_seconds() <= 0) continue;
    tpot.values.push_back(1000 * sample->tpot_seconds());
    decode.values.push_back(1 / sample->tpot_seconds());
  }
  all.push_back(std::move(itl));
  all.push_back(std::move(tpot));
  all.push_back({"E2E", "ms", false,
                 Collect(group, [](const LoadSample& s) { return 1000 * s.e2e_seconds(); })});
  all.push_back({"prefill", "tok/s", true,
                 Collect(group, [](const LoadSample& s) { return s.prompt_per_second; })});
  all.push_back(std::move(decode));
  return all;
}

struct Totals {
  int num_ok = 0;
  int num_failed = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  std::map<std::string, int> errors;
};

Totals TotalsOf(const LoadResult& result) {
  Totals totals;
  for (const LoadSample& sample : result.samples) {
    if (!sample.status.ok()) {
      ++totals.num_failed;
      ++totals.errors[std::string(Message(sample.status))];
      continue;
    }
    ++totals.num_ok;
    totals.prompt_tokens += sample.prompt_tokens;
    totals.cached_tokens += sample.cached_tokens;
    totals.completion_tokens += sample.completion_tokens;
  }
  return totals;
}

double PerSecond(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

}  // namespace

std::string LoadReportText(const LoadContext& context, const LoadResult& result) {
  const Totals totals = TotalsOf(result);
  const LoadOptions& options = context.options;
  std::string out;
  const auto line = [&out](std::string_view name, const std::string& value) {
    out += fmt::format("{:<22}{}\n", name, value);
  };
  line("target", context.target);
  line("model", fmt::format("{} (digest {})", context.server.model, context.server.digest));
  line("mode", fmt::format("{} (plan {}), context {}", context.server.mode, context.server.plan_id,
                           context.server.context_tokens));
  line("load", options.requests_per_second > 0
                   ? fmt::format("{} requests a second, {} at a time at most",
                                 options.requests_per_second, options.concurrency)
                   : fmt::format("{} at a time", options.concurrency));
  line("requests", fmt::format("{} ok, {} failed, in {:.2f} s", totals.num_ok, totals.num_failed,
                               result.seconds));
  for (const auto& [message, count] : totals.errors) {
    line("  error", fmt::format("{} x {}", count, message));
  }
  line("tokens", fmt::format("prompt {} ({} reused), output {}", totals.prompt_tokens,
                             totals.cached_tokens, totals.completion_tokens));
  line("throughput", fmt::format("{:.2f} requests/s, {:.1f} output tok/s",
                                 PerSecond(totals.num_ok, result.seconds),
                                 PerSecond(totals.completion_tokens, result.seconds)));
  for (const Group& group : Groups(result)) {
    out += fmt::format("{} ({} requests), times as the client sees them\n", group.name,
                       group.samples.size());
    for (const Series& series : SeriesOf(group)) {
      std::string values;
      for (double percent : series.percents()) {
        values += fmt::format("  P{:<2.0f} {:>10.2f}", percent, Percentile(series.values, percent));
      }
      line(fmt::format("  {} ({})", series.name, series.unit),
           fmt::format("{}  n {}", values, series.values.size()));
    }
  }
  return out;
}

std::string LoadReportJson(const LoadContext& context, const LoadResult& result) {
  const LoadOptions& options = context.options;
  const Totals totals = TotalsOf(result);
  nlohmann::ordered_json json = {
      {"target", context.target},
      {"version", Version()},
      {"model", context.server.model},
      {"digest", context.server.digest},
      {"mode", context.server.mode},
      {"plan_id", context.server.plan_id},
      {"context_tokens", context.server.context_tokens},
      {"concurrency", options.concurrency},
      {"requests_per_second", options.requests_per_second},
      {"prompt_tokens", options.prompt_tokens},
      {"shared_prefix_tokens", options.shared_prefix_tokens},
      {"max_tokens", options.max_tokens},
      {"seconds", result.seconds},
      {"num_ok", totals.num_ok},
      {"num_failed", totals.num_failed},
      {"output_tokens_per_second", PerSecond(totals.completion_tokens, result.seconds)},
      {"groups", nlohmann::ordered_json::array()},
      {"samples", nlohmann::ordered_json::array()}};
  for (const Group& group : Groups(result)) {
    nlohmann::ordered_json entry = {{"name", group.name}, {"num_requests", group.samples.size()}};
    for (const Series& series : SeriesOf(group)) {
      nlohmann::ordered_json values = {{"unit", series.unit}, {"n", series.values.size()}};
      for (double percent : series.percents()) {
        values[fmt::format("p{:.0f}", percent)] = Percentile(series.values, percent);
      }
      entry[series.name] = std::move(values);
    }
    json["groups"].push_back(std::move(entry));
  }
  for (const LoadSample& sample : result.samples) {
    nlohmann::ordered_json entry = {
        {"error", Message(sample.status)},       {"prompt_tokens", sample.prompt_tokens},
        {"cached_tokens", sample.cached_tokens}, {"completion_tokens", sample.completion_tokens},
        {"ttft_seconds", sample.ttft_seconds()}, {"e2e_seconds", sample.e2e_seconds()},
        {"tpot_seconds", sample.tpot_seconds()}, {"prompt_per_second", sample.prompt_per_second},
        {"gap_seconds", sample.gap_seconds}};
    json["samples"].push_back(std::move(entry));
  }
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace switchyard::app
