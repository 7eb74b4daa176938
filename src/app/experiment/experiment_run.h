// Runs an experiment: starts server and worker processes for each combination and measures answers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "app/experiment/experiment_result.h"
#include "app/experiment/experiment_spec.h"

namespace switchyard::app {

struct ExperimentRunOptions {
  double ready_seconds = 300;   // from the start of the processes until they serve
  double answer_seconds = 600;  // of one answer
  // Called before each start of a combination: how many starts there are, and the one that begins.
  std::function<void(int64_t num_starts, int64_t number)> on_progress = [](int64_t, int64_t) {};
  std::function<bool()> is_interrupted = [] { return false; };
};

// Repetitions go over all combinations in turn, so that a machine that drifts changes all alike.
// Each starts processes anew: a server and one worker process for each rank, on CPUs of its own as
// far as there are enough. A combination that cannot run, or breaks, is in the result with the
// reason.
//
// Errors: kCancelled after an interrupt; kNotFound if the model is not there.
absl::StatusOr<ExperimentResult> RunExperiment(const ExperimentSpec& spec,
                                               const ExperimentRunOptions& options);

// CPUs of each rank: `threads` of `cpus` for one after the other, from the front again where they
// end. Empty lists if nothing is pinned.
std::vector<std::vector<int>> CpusOfRanks(const std::vector<int>& cpus, int num_ranks, int threads);

// "CPU workers with 1 thread each, on 2 CPUs (a processor)".
std::string DescribeDevices(const std::vector<Combination>& combinations, int num_cpus,
                            const std::string& cpu_model);

// A table for people: one row for each combination and prompt, cold and hit apart.
std::string ResultTable(const ExperimentResult& result);

// Findings of all runs: [{"run", "cause", "from", "to", "rank", "size", "text"}].
nlohmann::ordered_json DiagnosisJson(const ExperimentResult& result);

}  // namespace switchyard::app
