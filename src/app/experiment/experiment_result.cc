#include "app/experiment/experiment_result.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSchema = "switchyard.experiment/1";

// ---- writing ------------------------------------------------------------------------------------

Json ToJson(const StepLedger& ledger) {
  Json ranks = Json::array();
  for (const RankEntry& rank : ledger.ranks) {
    Json stages = Json::array();
    for (const StageEntry& stage : rank.stages) {
      stages.push_back({{"stage", stage.stage},
                        {"seconds", stage.seconds},
                        {"weight_bytes", stage.weight_bytes}});
    }
    ranks.push_back({{"rank", rank.rank},
                     {"steps", rank.num_steps},
                     {"seconds", rank.seconds},
                     {"idle_seconds", rank.idle_seconds},
                     {"stages", std::move(stages)}});
  }
  Json links = Json::array();
  for (const LinkEntry& link : ledger.links) {
    links.push_back({{"from", link.from},
                     {"to", link.to},
                     {"bytes", link.bytes},
                     {"messages", link.num_messages},
                     {"transfer_seconds", link.transfer_seconds},
                     {"flight_seconds", link.flight_seconds}});
  }
  return {{"steps", ledger.num_steps},
          {"seconds", ledger.seconds},
          {"ranks", std::move(ranks)},
          {"links", std::move(links)}};
}

Json ToJson(const AnswerSample& sample) {
  return {{"repetition", sample.repetition},
          {"prompt_tokens", sample.prompt_tokens},
          {"cached_tokens", sample.cached_tokens},
          {"completion_tokens", sample.completion_tokens},
          {"prefill_per_second", sample.prefill_per_second},
          {"ttft_seconds", sample.ttft_seconds},
          {"decode_per_second", sample.decode_per_second},
          {"gap_seconds", sample.gap_seconds},
          {"equal_tokens", sample.num_equal_tokens},
          {"agrees", sample.agrees},
          {"prefill", ToJson(sample.prefill)},
          {"decode", ToJson(sample.decode)},
          {"token", ToJson(sample.token)}};
}

Json ToJson(const Measurement& measurement) {
  Json samples = Json::array();
  for (const AnswerSample& sample : measurement.samples) samples.push_back(ToJson(sample));
  return {{"prompt", measurement.prompt},
          {"context", measurement.context},
          {"prefix", measurement.is_hit ? "hit" : "cold"},
          {"reason", measurement.reason},
          {"samples", std::move(samples)}};
}

Json ToJson(const CombinationResult& run, size_t id) {
  const Topology& topology = run.combination.topology;
  const Condition& condition = run.combination.condition;
  Json measurements = Json::array();
  for (const Measurement& measurement : run.measurements) {
    measurements.push_back(ToJson(measurement));
  }
  return {{"id", id},
          {"workers", topology.workers},
          {"mode", topology.mode},
          {"partition", topology.partition},
          {"dense", topology.dense},
          {"layer_split", topology.layer_split},
          {"threads", topology.threads},
          {"condition",
           {{"name", condition.name},
            {"links", condition.link_rules},
            {"competitor_rank", condition.competitor_rank}}},
          {"status", run.status},
          {"reason", run.reason},
          {"plan_id", run.plan_id},
          {"measurements", std::move(measurements)}};
}

// ---- reading ------------------------------------------------------------------------------------

// Members of an object, whose first error stays. `place` names the object: "runs[0].".
class Reader {
 public:
  explicit Reader(absl::Status& status) : status_(status) {}

  void Get(const Json& object, const std::string& place, const char* key, std::string& out) {
    const Json* const value = Find(object, place, key);
    if (value == nullptr) return;
    if (!value->is_string()) return Fail(place, key, "a text");
    out = value->get<std::string>();
  }
  void Get(const Json& object, const std::string& place, const char* key, double& out) {
    const Json* const value = Find(object, place, key);
    if (value == nullptr) return;
    if (!value->is_number()) return Fail(place, key, "a number");
    out = value->get<double>();
  }
  void Get(const Json& object, const std::string& place, const char* key, bool& out) {
    const Json* const value = Find(object, place, key);
    if (value == nullptr) return;
    if (!value->is_boolean()) return Fail(place, key, "true or false");
    out = value->get<bool>();
  }
  void Get(const Json& object, const std::string& place, const char* key, int64_t& out) {
    const Json* const value = Find(object, place, key);
    if (value == nullptr) return;
    if (!value->is_number_integer()) return Fail(place, key, "a whole number");
    out = value->get<int64_t>();
  }
  void Get(const Json& object, const std::string& place, const char* key, int& out) {
    int64_t value = out;
    Get(object, place, key, value);
    if (value < -1 || value > (1 << 30)) return Fail(place, key, "a number from -1 to 2^30");
    out = static_cast<int>(value);
  }
  // Calls `read` with each element and its place.
  template <typename Read>
  void Each(const Json& object, const std::string& place, const char* key, const Read& read) {
    const Json* const value = Find(object, place, key);
    if (value == nullptr) return;
    if (!value->is_array()) return Fail(place, key, "a list");
    for (size_t i = 0; i < value->size() && status_.ok(); ++i) {
      read((*value)[i], fmt::format("{}{}[{}]", place, key, i));
    }
  }
  const Json* Find(const Json& object, const std::string& place, const char* key) {
    if (!status_.ok()) return nullptr;
    if (!object.is_object()) {
      status_ = InvalidArgument("{} is no object", place.empty() ? "the file" : place);
      return nullptr;
    }
    const auto found = object.find(key);
    if (found != object.end()) return &*found;
    status_ = InvalidArgument("{}{} is missing", place, key);
    return nullptr;
  }
  bool ok() const { return status_.ok(); }
  void Fail(const std::string& place, const char* key, const char* wanted) {
    status_ = InvalidArgument("{}{} is not {}", place, key, wanted);
  }

 private:
  absl::Status& status_;
};

StepLedger ReadLedger(Reader& reader, const Json& json, const std::string& place) {
  StepLedger ledger;
  reader.Get(json, place, "steps", ledger.num_steps);
  reader.Get(json, place, "seconds", ledger.seconds);
  reader.Each(json, place, "ranks", [&](const Json& entry, const std::string& at) {
    RankEntry rank;
    reader.Get(entry, at + ".", "rank", rank.rank);
    reader.Get(entry, at + ".", "steps", rank.num_steps);
    reader.Get(entry, at + ".", "seconds", rank.seconds);
    reader.Get(entry, at + ".", "idle_seconds", rank.idle_seconds);
    reader.Each(entry, at + ".", "stages", [&](const Json& line, const std::string& line_at) {
      StageEntry stage;
      reader.Get(line, line_at + ".", "stage", stage.stage);
      reader.Get(line, line_at + ".", "seconds", stage.seconds);
      reader.Get(line, line_at + ".", "weight_bytes", stage.weight_bytes);
      rank.stages.push_back(std::move(stage));
    });
    ledger.ranks.push_back(std::move(rank));
  });
  reader.Each(json, place, "links", [&](const Json& entry, const std::string& at) {
    LinkEntry link;
    reader.Get(entry, at + ".", "from", link.from);
    reader.Get(entry, at + ".", "to", link.to);
    reader.Get(entry, at + ".", "bytes", link.bytes);
    reader.Get(entry, at + ".", "messages", link.num_messages);
    reader.Get(entry, at + ".", "transfer_seconds", link.transfer_seconds);
    reader.Get(entry, at + ".", "flight_seconds", link.flight_seconds);
    ledger.links.push_back(link);
  });
  return ledger;
}

AnswerSample ReadSample(Reader& reader, const Json& json, const std::string& place) {
  AnswerSample sample;
  reader.Get(json, place, "repetition", sample.repetition);
  reader.Get(json, place, "prompt_tokens", sample.prompt_tokens);
  reader.Get(json, place, "cached_tokens", sample.cached_tokens);
  reader.Get(json, place, "completion_tokens", sample.completion_tokens);
  reader.Get(json, place, "prefill_per_second", sample.prefill_per_second);
  reader.Get(json, place, "ttft_seconds", sample.ttft_seconds);
  reader.Get(json, place, "decode_per_second", sample.decode_per_second);
  reader.Get(json, place, "equal_tokens", sample.num_equal_tokens);
  reader.Get(json, place, "agrees", sample.agrees);
  reader.Each(json, place, "gap_seconds", [&](const Json& gap, const std::string& at) {
    if (!gap.is_number()) return reader.Fail(at, "", "a number");
    sample.gap_seconds.push_back(gap.get<double>());
  });
  for (const auto& [key, ledger] : {std::pair{"prefill", &sample.prefill},
                                    {"decode", &sample.decode},
                                    {"token", &sample.token}}) {
    const Json* const value = reader.Find(json, place, key);
    if (value != nullptr) *ledger = ReadLedger(reader, *value, fmt::format("{}{}.", place, key));
  }
  return sample;
}

Measurement ReadMeasurement(Reader& reader, const Json& json, const std::string& place) {
  Measurement measurement;
  std::string prefix;
  reader.Get(json, place, "prompt", measurement.prompt);
  reader.Get(json, place, "context", measurement.context);
  reader.Get(json, place, "prefix", prefix);
  reader.Get(json, place, "reason", measurement.reason);
  measurement.is_hit = prefix == "hit";
  if (reader.ok() && prefix != "hit" && prefix != "cold") {
    reader.Fail(place, "prefix", "cold or hit");
  }
  reader.Each(json, place, "samples", [&](const Json& sample, const std::string& at) {
    measurement.samples.push_back(ReadSample(reader, sample, at + "."));
  });
  return measurement;
}

CombinationResult ReadRun(Reader& reader, const Json& json, const std::string& place) {
  CombinationResult run;
  Topology& topology = run.combination.topology;
  Condition& condition = run.combination.condition;
  reader.Get(json, place, "workers", topology.workers);
  reader.Get(json, place, "mode", topology.mode);
  reader.Get(json, place, "partition", topology.partition);
  reader.Get(json, place, "dense", topology.dense);
  reader.Get(json, place, "layer_split", topology.layer_split);
  reader.Get(json, place, "threads", topology.threads);
  if (const Json* const value = reader.Find(json, place, "condition")) {
    reader.Get(*value, place + "condition.", "name", condition.name);
    reader.Get(*value, place + "condition.", "links", condition.link_rules);
    reader.Get(*value, place + "condition.", "competitor_rank", condition.competitor_rank);
  }
  reader.Get(json, place, "status", run.status);
  reader.Get(json, place, "reason", run.reason);
  reader.Get(json, place, "plan_id", run.plan_id);
  if (run.status == "refused") run.combination.refusal = run.reason;
  reader.Each(json, place, "measurements", [&](const Json& entry, const std::string& at) {
    run.measurements.push_back(ReadMeasurement(reader, entry, at + "."));
  });
  return run;
}

template <typename T, typename IsSame>
T& FindOrAdd(std::vector<T>& list, const T& like, const IsSame& is_same) {
  const auto found =
      std::find_if(list.begin(), list.end(), [&](const T& entry) { return is_same(entry, like); });
  if (found != list.end()) return *found;
  list.push_back(like);
  return list.back();
}

// sum += sign * more.
void Accumulate(const StepLedger& more, int sign, StepLedger& sum) {
  sum.num_steps += sign * more.num_steps;
  sum.seconds += sign * more.seconds;
  for (const RankEntry& rank : more.ranks) {
    RankEntry& total =
        FindOrAdd(sum.ranks, RankEntry{.rank = rank.rank},
                  [](const RankEntry& a, const RankEntry& b) { return a.rank == b.rank; });
    total.num_steps += sign * rank.num_steps;
    total.seconds += sign * rank.seconds;
    total.idle_seconds += sign * rank.idle_seconds;
    for (const StageEntry& stage : rank.stages) {
      StageEntry& line =
          FindOrAdd(total.stages, StageEntry{.stage = stage.stage},
                    [](const StageEntry& a, const StageEntry& b) { return a.stage == b.stage; });
      line.seconds += sign * stage.seconds;
      line.weight_bytes += sign * stage.weight_bytes;
    }
  }
  for (const LinkEntry& link : more.links) {
    LinkEntry& total = FindOrAdd(
        sum.links, LinkEntry{.from = link.from, .to = link.to},
        [](const LinkEntry& a, const LinkEntry& b) { return a.from == b.from && a.to == b.to; });
    total.bytes += sign * link.bytes;
    total.num_messages += sign * link.num_messages;
    total.transfer_seconds += sign * link.transfer_seconds;
    total.flight_seconds += sign * link.flight_seconds;
  }
}

}  // namespace

bool IsComputeStage(const std::string& stage) {
  return stage != "collective" && stage != "collective_wait" && stage != "idle" &&
         stage != "unattributed" && stage != "host";
}

double RankEntry::StageSeconds(const std::string& stage) const {
  for (const StageEntry& entry : stages) {
    if (entry.stage == stage) return entry.seconds;
  }
  return 0;
}

double RankEntry::compute_seconds() const {
  double sum = 0;
  for (const StageEntry& entry : stages) sum += IsComputeStage(entry.stage) ? entry.seconds : 0;
  return sum;
}

int64_t RankEntry::weight_bytes() const {
  int64_t sum = 0;
  for (const StageEntry& entry : stages) sum += entry.weight_bytes;
  return sum;
}

const RankEntry* StepLedger::FindRank(int rank) const {
  for (const RankEntry& entry : ranks) {
    if (entry.rank == rank) return &entry;
  }
  return nullptr;
}

const LinkEntry* StepLedger::FindLink(int from, int to) const {
  for (const LinkEntry& link : links) {
    if (link.from == from && link.to == to) return &link;
  }
  return nullptr;
}

bool CombinationResult::has_samples() const {
  return std::any_of(measurements.begin(), measurements.end(),
                     [](const Measurement& m) { return !m.samples.empty(); });
}

void Add(const StepLedger& more, StepLedger& sum) { Accumulate(more, 1, sum); }

StepLedger Subtract(const StepLedger& whole, const StepLedger& part) {
  StepLedger rest = whole;
  Accumulate(part, -1, rest);
  // Clocks are read once for both, but sums are rounded: nothing is left below zero.
  for (RankEntry& rank : rest.ranks) {
    for (StageEntry& stage : rank.stages) stage.seconds = std::max(0.0, stage.seconds);
  }
  return rest;
}

Json ToJson(const ExperimentResult& result) {
  Json runs = Json::array();
  for (size_t i = 0; i < result.runs.size(); ++i) runs.push_back(ToJson(result.runs[i], i));
  Json json = {
      {"schema", kSchema},         {"name", result.name},         {"created_at", result.created_at},
      {"version", result.version}, {"devices", result.devices},   {"machine", result.machine},
      {"model", result.model},     {"settings", result.settings}, {"runs", std::move(runs)}};
  if (!result.residency.is_null()) json["residency"] = result.residency;
  if (!result.predictions.is_null()) json["predictions"] = result.predictions;
  return json;
}

absl::StatusOr<ExperimentResult> ParseExperimentResult(const std::string& text,
                                                       const std::string& path) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return InvalidArgument("{}: is no JSON", path);
  absl::Status status;
  Reader reader(status);
  ExperimentResult result;
  std::string schema;
  reader.Get(json, "", "schema", schema);
  if (status.ok() && schema != kSchema) {
    return InvalidArgument("{}: is no result of an experiment: schema, got: {}, wanted: {}", path,
                           schema, kSchema);
  }
  reader.Get(json, "", "name", result.name);
  reader.Get(json, "", "created_at", result.created_at);
  reader.Get(json, "", "version", result.version);
  reader.Get(json, "", "devices", result.devices);
  for (const auto& [key, out] : {std::pair{"machine", &result.machine},
                                 {"model", &result.model},
                                 {"settings", &result.settings}}) {
    if (const Json* const value = reader.Find(json, "", key)) *out = *value;
  }
  reader.Each(json, "", "runs", [&](const Json& run, const std::string& place) {
    result.runs.push_back(ReadRun(reader, run, place + "."));
  });
  if (!status.ok()) return WithContext(status, path);
  if (json.contains("residency")) result.residency = json["residency"];
  if (json.contains("predictions")) result.predictions = json["predictions"];
  return result;
}

}  // namespace switchyard::app
