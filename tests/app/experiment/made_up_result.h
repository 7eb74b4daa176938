// Ledgers by hand, of workers that compute as long as they are told to.
#pragma once

#include <string>
#include <vector>

#include "app/experiment/experiment_result.h"

namespace switchyard::app {

// A link of a made-up run.
struct MadeUpLink {
  int from = 0;
  int to = 0;
  double decode_flight = 10e-6;  // seconds a message
  double prefill_flight = 30e-6;
  double queueing = 1;  // so many times what the receiver waits
};

struct MadeUpRun {
  std::string mode = "tensor_expert_parallel";
  std::vector<double> compute_seconds = {1e-3, 1e-3};  // a step, by rank
  std::vector<MadeUpLink> links = {{0, 1}, {1, 0}};
  Condition condition{};
  double scatter = 0.05;  // of samples, to both sides
  int num_samples = 5;
};

inline constexpr int64_t kDecodeMessageBytes = 10240;
inline constexpr int64_t kPrefillMessageBytes = 65536;

inline StepLedger MadeUpLedger(const MadeUpRun& made, bool is_prefill, double factor) {
  StepLedger ledger;
  const int num_steps = is_prefill ? 1 : 64;
  const int64_t num_messages = is_prefill ? 40 : 4 * num_steps;
  ledger.num_steps = num_steps;
  for (size_t rank = 0; rank < made.compute_seconds.size(); ++rank) {
    const double seconds = made.compute_seconds[rank] * factor * num_steps;
    ledger.ranks.push_back({.rank = static_cast<int>(rank),
                            .num_steps = num_steps,
                            .seconds = seconds * 1.5,
                            .stages = {{"attention", seconds * 0.4, 4'000'000 * num_steps},
                                       {"experts_host", seconds * 0.6, 6'000'000 * num_steps},
                                       {"collective", seconds * 0.1, 0},
                                       {"collective_wait", seconds * 0.35, 0}}});
  }
  ledger.seconds = ledger.ranks.front().seconds;
  for (const MadeUpLink& link : made.links) {
    const double flight = (is_prefill ? link.prefill_flight : link.decode_flight) * factor;
    ledger.links.push_back(
        {.from = link.from,
         .to = link.to,
         .bytes = num_messages * (is_prefill ? kPrefillMessageBytes : kDecodeMessageBytes),
         .num_messages = num_messages,
         .transfer_seconds = flight * static_cast<double>(num_messages) / link.queueing,
         .flight_seconds = flight * static_cast<double>(num_messages)});
  }
  return ledger;
}

inline CombinationResult MakeRun(const MadeUpRun& made) {
  CombinationResult run;
  run.combination.topology.workers = static_cast<int>(made.compute_seconds.size());
  run.combination.topology.mode = made.mode;
  run.combination.condition = made.condition;
  run.status = "ok";
  Measurement measurement;
  measurement.prompt = "64 tokens";
  measurement.context = 64;
  for (int i = 0; i < made.num_samples; ++i) {
    const double side = made.num_samples > 1 ? 2.0 * i / (made.num_samples - 1) - 1 : 0;
    const double factor = 1 + made.scatter * side;
    AnswerSample sample;
    sample.repetition = i;
    sample.prompt_tokens = 64;
    sample.completion_tokens = 65;
    sample.prefill = MadeUpLedger(made, true, factor);
    sample.decode = MadeUpLedger(made, false, factor);
    sample.token = MadeUpLedger(made, false, factor / 64);
    sample.ttft_seconds = sample.prefill.seconds;
    sample.prefill_per_second = 64 / sample.prefill.seconds;
    sample.decode_per_second = 64 / sample.decode.seconds;
    sample.gap_seconds.assign(64, sample.decode.seconds / 64);
    sample.num_equal_tokens = 65;
    measurement.samples.push_back(std::move(sample));
  }
  run.measurements.push_back(std::move(measurement));
  return run;
}

// Of one and two workers, cold and hit; a delayed link, a slow rank, and one that cannot run.
inline ExperimentResult MadeUpResult() {
  ExperimentResult result;
  result.name = "made up";
  result.created_at = "2026-11-30T12:00:00Z";
  result.version = "0.1.0";
  result.devices = "CPU workers with 1 thread each";
  result.machine = {{"cpu_model", "a processor"}};
  result.model = {{"file", "m.gguf"}};
  result.settings = {{"repetitions", 5}};
  result.runs.push_back(MakeRun({.mode = "single", .compute_seconds = {1.7e-3}, .links = {}}));
  result.runs.push_back(MakeRun({}));
  Measurement hit = result.runs[1].measurements[0];
  hit.is_hit = true;
  for (AnswerSample& sample : hit.samples) {
    sample.cached_tokens = 48;
    sample.ttft_seconds /= 4;
  }
  result.runs[1].measurements.push_back(hit);
  result.runs.push_back(
      MakeRun({.links = {{0, 1, 300e-6, 300e-6}, {1, 0}},
               .condition = {.name = "slow link", .link_rules = "0->1 delay=300us"}}));
  result.runs.push_back(MakeRun(
      {.compute_seconds = {1e-3, 2e-3}, .condition = {.name = "busy core", .competitor_rank = 1}}));
  CombinationResult refused;
  refused.combination.topology.workers = 2;
  refused.status = "refused";
  refused.reason = refused.combination.refusal = "mode single has one worker, not 2";
  result.runs.push_back(refused);
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (int layer = 0; layer < 8; ++layer) {
    nlohmann::ordered_json row = nlohmann::ordered_json::array();
    for (int expert = 0; expert < 32; ++expert)
      row.push_back(expert < 24 ? 1.0 / (1 + expert) : -1);
    layers.push_back(row);
  }
  result.residency = {{"layers", layers}};
  result.predictions = {
      {{"run", 1}, {"term", "dense"}, {"predicted_seconds", 1e-3}, {"measured_seconds", 1.1e-3}}};
  return result;
}

}  // namespace switchyard::app
