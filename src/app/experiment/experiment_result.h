// What an experiment measured: every sample, with the ledger of every rank and link. The form of
// the file is docs/how_to/run_experiments.md's.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "app/experiment/combinations.h"

namespace switchyard::app {

// What one stage cost on one rank, over all steps of a ledger.
struct StageEntry {
  std::string stage{};  // as in worker/v1/step.proto, without STAGE_ and in small letters
  double seconds = 0;
  int64_t weight_bytes = 0;
};

struct RankEntry {
  int rank = 0;
  int64_t num_steps = 0;
  double seconds = 0;
  double idle_seconds = 0;  // beside `seconds`
  std::vector<StageEntry> stages{};

  double StageSeconds(const std::string& stage) const;
  // In stages that compute: all but waiting, transfers and what no stage covers.
  double compute_seconds() const;
  int64_t weight_bytes() const;
};

// From one rank to another.
struct LinkEntry {
  int from = 0;
  int to = 0;
  int64_t bytes = 0;
  int64_t num_messages = 0;
  double transfer_seconds = 0;  // of the receiver's time
  double flight_seconds = 0;    // sum over messages of the time on the way
};

// Some steps: the prompt's, the answer's, or one.
struct StepLedger {
  int64_t num_steps = 0;
  double seconds = 0;  // of the lead rank
  std::vector<RankEntry> ranks;
  std::vector<LinkEntry> links;

  const RankEntry* FindRank(int rank) const;
  const LinkEntry* FindLink(int from, int to) const;
};

// Whether the stage is computing, and not waiting, moving bytes or unknown.
bool IsComputeStage(const std::string& stage);

// One answer.
struct AnswerSample {
  int repetition = 0;
  int prompt_tokens = 0;
  int cached_tokens = 0;
  int completion_tokens = 0;
  double prefill_per_second = 0;  // evaluated tokens only
  double ttft_seconds = 0;        // of the client
  double decode_per_second = 0;
  std::vector<double> gap_seconds;  // between tokens, of the client
  int num_equal_tokens = 0;         // as many of the first as the single worker gave too
  bool agrees = true;               // all of them
  StepLedger prefill;
  StepLedger decode;
  StepLedger token;  // the decode step with the median time
};

// Answers to one prompt, cold or after a prefix hit.
struct Measurement {
  std::string prompt;  // "64 tokens" or the text
  int context = 0;     // tokens of the prompt; 0 = not known, no answer came
  bool is_hit = false;
  std::string reason;  // why there are no samples; empty = there are
  std::vector<AnswerSample> samples;
};

// A combination and what came of it.
struct CombinationResult {
  Combination combination;
  std::string status;  // "ok", "refused" (cannot run), "failed" (broke while it ran)
  std::string reason;  // of the last two
  std::string plan_id;
  std::vector<Measurement> measurements;

  bool has_samples() const;
};

struct ExperimentResult {
  std::string name;
  std::string created_at;  // UTC, ISO 8601
  std::string version;
  std::string devices;  // "CPU workers with 1 thread each"
  nlohmann::ordered_json machine;
  nlohmann::ordered_json model;     // {"file", "digest", "architecture", ...}
  nlohmann::ordered_json settings;  // of the experiment, for the report's table
  std::vector<CombinationResult> runs;
  // Left as they are: what other commands found out. Null = nothing.
  nlohmann::ordered_json residency;    // {"num_layers", "num_experts", "states", "hits", "misses"}
  nlohmann::ordered_json predictions;  // [{"run", "term", "seconds"}], per token
};

nlohmann::ordered_json ToJson(const ExperimentResult& result);

// Errors: kInvalidArgument names what is missing or has another type.
absl::StatusOr<ExperimentResult> ParseExperimentResult(const std::string& text,
                                                       const std::string& path);

// Adds up.
void Add(const StepLedger& more, StepLedger& sum);
// `whole` without `part`, which is of its first steps.
StepLedger Subtract(const StepLedger& whole, const StepLedger& part);

}  // namespace switchyard::app
