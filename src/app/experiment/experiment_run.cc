#include "app/experiment/experiment_run.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <sched.h>
#include <set>
#include <thread>
#include <utility>

#include "app/bench/competitor.h"
#include "app/bench/machine_description.h"
#include "app/exit_code.h"
#include "app/experiment/answer_client.h"
#include "app/experiment/child_process.h"
#include "app/experiment/combinations.h"
#include "app/version.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

// A prompt is stored up to the last multiple of this many tokens before its end: shorter ones have
// no prefix to hit.
constexpr int kPrefixGrain = 64;

std::vector<int> UsableCpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// ---- processes ----------------------------------------------------------------------------------

struct Group {
  std::optional<ChildProcess> server;
  std::vector<ChildProcess> workers;
  std::unique_ptr<Competitor> competitor;
  std::string grpc_address;

  // Workers end when their server does, and at once.
  ~Group() {
    workers.clear();
    server.reset();
  }
};

// Why a start came to nothing.
struct StartFailure {
  bool is_refusal = false;  // it can never run, or it broke
  std::string reason;
};

std::vector<std::string> ServerArguments(const ExperimentSpec& spec, const Topology& topology) {
  std::vector<std::string> arguments = {"serve",
                                        spec.model,
                                        "--http",
                                        "127.0.0.1:0",
                                        "--grpc",
                                        "127.0.0.1:0",
                                        "--slots",
                                        "1",
                                        "--expect-workers",
                                        std::to_string(topology.workers),
                                        "--worker-listen",
                                        "127.0.0.1:0"};
  const auto add = [&](const char* flag, const std::string& value) {
    if (value.empty()) return;
    arguments.push_back(flag);
    arguments.push_back(value);
  };
  if (topology.mode != "single") add("--mode", topology.mode);
  add("--partition", topology.partition);
  add("--dense", topology.dense);
  add("--layer-split", topology.layer_split);
  add("-t", std::to_string(topology.threads));
  arguments.insert(arguments.end(), spec.serve_flags.begin(), spec.serve_flags.end());
  return arguments;
}

std::vector<std::string> WorkerArguments(const ExperimentSpec& spec, const Combination& combination,
                                         int rank, const std::string& address) {
  std::vector<std::string> arguments = {"worker",      "--coordinator",
                                        address,       spec.model,
                                        "-t",          std::to_string(combination.topology.threads),
                                        "--worker-id", fmt::format("rank-{}", rank)};
  if (combination.topology.workers > 1) {
    arguments.insert(arguments.end(), {"--rank", std::to_string(rank)});
  }
  if (!combination.condition.link_rules.empty()) {
    arguments.insert(arguments.end(), {"--link-faults", combination.condition.link_rules});
  }
  return arguments;
}

// The line in which a program says why it ends, without its name.
std::string ReasonOf(const ChildProcess& process) {
  constexpr std::string_view kName = "switchyard: ";
  std::string line = process.last_line();
  if (line.starts_with(kName)) line.erase(0, kName.size());
  return line;
}

bool IsRefusal(int exit_code) {
  return exit_code == static_cast<int>(ExitCode::kUsage) ||
         exit_code == static_cast<int>(ExitCode::kModelRejected) ||
         exit_code == static_cast<int>(ExitCode::kHardwareUnfit);
}

class Runner {
 public:
  Runner(const ExperimentSpec& spec, const ExperimentRunOptions& options)
      : spec_(spec), options_(options), cpus_(UsableCpus()) {}

  absl::StatusOr<ExperimentResult> Run() {
    if (!std::filesystem::exists(spec_.model)) {
      return WithExitCode(NotFound("no such model: {}", spec_.model), ExitCode::kModelRejected);
    }
    Describe();
    const auto num_tried = std::count_if(result_.runs.begin(), result_.runs.end(),
                                         [](const auto& run) { return run.status == "ok"; });
    int64_t number = 0;
    for (int repetition = 0; repetition < spec_.repetitions; ++repetition) {
      for (size_t i = 0; i < result_.runs.size(); ++i) {
        if (result_.runs[i].status != "ok") continue;
        options_.on_progress(num_tried * spec_.repetitions, number++);
        RunOnce(i, repetition);
        if (options_.is_interrupted()) return Cancelled("interrupted");
      }
    }
    Compare();
    return std::move(result_);
  }

 private:
  void Describe() {
    const std::vector<Combination> combinations = Enumerate(spec_);
    const MachineDescription machine = ReadMachineDescription("/");
    result_.name = spec_.name;
    result_.created_at = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
    result_.version = std::string(Version());
    result_.devices =
        DescribeDevices(combinations, static_cast<int>(cpus_.size()), machine.cpu_model);
    result_.machine = ToJson(machine);
    result_.model = {{"file", std::filesystem::path(spec_.model).filename().string()},
                     {"bytes", std::filesystem::file_size(spec_.model)}};
    result_.settings = {{"max_tokens", spec_.max_tokens},
                        {"repetitions", spec_.repetitions},
                        {"warmup", spec_.warmup},
                        {"prefix_hits", spec_.prefix_hits},
                        {"pinned", spec_.pin_workers},
                        {"seed", spec_.seed},
                        {"concurrency", 1},
                        {"sampling", "greedy"},
                        {"build", BuildDescription()},
                        {"serve_flags", spec_.serve_flags}};
    for (const Combination& combination : combinations) {
      CombinationResult run;
      run.combination = combination;
      run.status = combination.refusal.empty() ? "ok" : "refused";
      run.reason = combination.refusal;
      result_.runs.push_back(std::move(run));
    }
    tokens_.resize(result_.runs.size());
  }

  // Waits until `is_done`; false when a process has ended before or the time is over, which
  // `failure` then says.
  bool WaitFor(Group& group, const std::function<bool()>& is_done, StartFailure& failure) {
    const Clock& clock = MonotonicClock::Get();
    const double end = clock.NowSeconds() + options_.ready_seconds;
    while (true) {
      group.server->Poll();
      for (ChildProcess& worker : group.workers) worker.Poll();
      if (is_done()) return true;
      if (const auto code = group.server->exit_code()) {
        failure = {IsRefusal(*code), ReasonOf(*group.server)};
        return false;
      }
      for (size_t rank = 0; rank < group.workers.size(); ++rank) {
        const auto code = group.workers[rank].exit_code();
        if (!code) continue;
        failure = {IsRefusal(*code),
                   fmt::format("rank {}: {}", rank, ReasonOf(group.workers[rank]))};
        return false;
      }
      if (options_.is_interrupted()) {
        failure = {false, "interrupted"};
        return false;
      }
      if (clock.NowSeconds() > end) {
        failure = {false, fmt::format("was not ready after {} s; the server's last line: {}",
                                      options_.ready_seconds, ReasonOf(*group.server))};
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  bool StartGroup(const Combination& combination, Group& group, StartFailure& failure) {
    const Topology& topology = combination.topology;
    const std::vector<std::vector<int>> cpus = CpusOfRanks(
        spec_.pin_workers ? cpus_ : std::vector<int>(), topology.workers, topology.threads);
    auto server = ChildProcess::Start(ServerArguments(spec_, topology), {});
    if (!server.ok()) {
      failure = {false, std::string(Message(server.status()))};
      return false;
    }
    group.server.emplace(*std::move(server));
    std::optional<std::string> address;
    const auto has_addresses = [&] {
      address = group.server->FindLine("workers: ");
      return address.has_value();
    };
    if (!WaitFor(group, has_addresses, failure)) return false;
    for (int rank = 0; rank < topology.workers; ++rank) {
      auto worker = ChildProcess::Start(WorkerArguments(spec_, combination, rank, *address),
                                        cpus[static_cast<size_t>(rank)]);
      if (!worker.ok()) {
        failure = {false, std::string(Message(worker.status()))};
        return false;
      }
      group.workers.push_back(*std::move(worker));
    }
    const auto is_ready = [&] { return group.server->FindLine("ready: ").has_value(); };
    if (!WaitFor(group, is_ready, failure)) return false;
    group.grpc_address = group.server->FindLine("grpc: ").value_or("");
    const int rank = combination.condition.competitor_rank;
    if (rank >= 0) {
      const std::vector<int>& own = cpus[static_cast<size_t>(rank)];
      group.competitor = std::make_unique<Competitor>(own.empty() ? cpus_.front() : own.front());
      if (!group.competitor->is_running()) {
        failure = {false, "the competitor did not start"};
        return false;
      }
    }
    return true;
  }

  // One start of a combination and all its prompts.
  void RunOnce(size_t index, int repetition) {
    CombinationResult& run = result_.runs[index];
    Group group;
    StartFailure failure;
    if (!StartGroup(run.combination, group, failure)) {
      run.status = failure.is_refusal ? "refused" : "failed";
      run.reason = failure.reason;
      return;
    }
    const auto client = MakeAnswerClient(group.grpc_address);
    const absl::Status status = Measure(*client, run, tokens_[index], repetition);
    if (status.ok()) return;
    run.status = "failed";
    run.reason = std::string(Message(status));
  }

  std::vector<AnswerRequest> Prompts(int32_t vocab_size) const {
    std::vector<AnswerRequest> prompts;
    for (const int context : spec_.contexts) {
      AnswerRequest request;
      std::mt19937_64 random(spec_.seed + static_cast<uint64_t>(context));
      for (int i = 0; i < context; ++i) {
        request.token_ids.push_back(
            static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size)));
      }
      prompts.push_back(std::move(request));
    }
    for (const std::string& text : spec_.prompts) {
      AnswerRequest request;
      request.text = text;
      prompts.push_back(std::move(request));
    }
    for (AnswerRequest& request : prompts) request.max_tokens = spec_.max_tokens;
    return prompts;
  }

  static std::string NameOf(const AnswerRequest& request) {
    return request.text.empty() ? fmt::format("{} tokens", request.token_ids.size()) : request.text;
  }

  using Tokens = std::vector<std::vector<std::vector<int32_t>>>;  // by measurement and sample

  absl::Status Measure(AnswerClient& client, CombinationResult& run, Tokens& tokens,
                       int repetition) {
    SWITCHYARD_ASSIGN_OR_RETURN(const AnsweringModel model, client.Describe());
    run.plan_id = model.plan_id;
    result_.model["digest"] = model.digest;
    result_.model["architecture"] = model.architecture;
    std::vector<AnswerRequest> prompts = Prompts(model.vocab_size);
    if (run.measurements.empty()) {
      for (const AnswerRequest& prompt : prompts) {
        for (const bool is_hit : {false, true}) {
          if (is_hit && !spec_.prefix_hits) continue;
          Measurement measurement;
          measurement.prompt = NameOf(prompt);
          measurement.is_hit = is_hit;
          run.measurements.push_back(std::move(measurement));
        }
      }
      tokens.resize(run.measurements.size());
    }
    for (int i = 0; i < spec_.warmup; ++i) {
      prompts.front().cache_salt = fmt::format("warm-up {}", i);
      SWITCHYARD_RETURN_IF_ERROR(client.Ask(prompts.front(), options_.answer_seconds).status());
    }
    size_t place = 0;
    for (AnswerRequest& prompt : prompts) {
      prompt.cache_salt = fmt::format("repetition {}", repetition);
      for (; place < run.measurements.size() && run.measurements[place].prompt == NameOf(prompt);
           ++place) {
        if (options_.is_interrupted()) return Cancelled("interrupted");
        SWITCHYARD_RETURN_IF_ERROR(
            MeasureOnce(client, prompt, repetition, run.measurements[place], tokens[place]));
      }
    }
    return absl::OkStatus();
  }

  absl::Status MeasureOnce(AnswerClient& client, const AnswerRequest& prompt, int repetition,
                           Measurement& measurement, std::vector<std::vector<int32_t>>& tokens) {
    if (!measurement.reason.empty()) return absl::OkStatus();
    SWITCHYARD_ASSIGN_OR_RETURN(Answer answer, client.Ask(prompt, options_.answer_seconds));
    measurement.context = answer.sample.prompt_tokens;
    if (measurement.is_hit && answer.sample.prompt_tokens <= kPrefixGrain) {
      measurement.reason =
          fmt::format("no prefix is stored of a prompt of {} tokens; from {} on there is one",
                      answer.sample.prompt_tokens, kPrefixGrain + 1);
      return absl::OkStatus();
    }
    if ((answer.sample.cached_tokens > 0) != measurement.is_hit) {
      return Internal("a {} answer reused {} tokens", measurement.is_hit ? "prefix-hit" : "cold",
                      answer.sample.cached_tokens);
    }
    answer.sample.repetition = repetition;
    measurement.samples.push_back(std::move(answer.sample));
    tokens.push_back(std::move(answer.token_ids));
    return absl::OkStatus();
  }

  // Holds every answer against the first of the single worker to the same prompt.
  void Compare() {
    std::map<std::string, std::vector<int32_t>> wanted;
    for (size_t i = 0; i < result_.runs.size(); ++i) {
      const CombinationResult& run = result_.runs[i];
      const Topology& topology = run.combination.topology;
      if (topology.mode != "single" || run.combination.condition.is_disturbed()) continue;
      for (size_t m = 0; m < run.measurements.size(); ++m) {
        if (!tokens_[i][m].empty()) wanted.emplace(run.measurements[m].prompt, tokens_[i][m][0]);
      }
    }
    for (size_t i = 0; i < result_.runs.size(); ++i) {
      for (size_t m = 0; m < result_.runs[i].measurements.size(); ++m) {
        Measurement& measurement = result_.runs[i].measurements[m];
        const std::vector<int32_t>& single = wanted[measurement.prompt];
        for (size_t s = 0; s < measurement.samples.size(); ++s) {
          const std::vector<int32_t>& own = tokens_[i][m][s];
          const auto end =
              std::mismatch(own.begin(), own.end(), single.begin(), single.end()).first;
          measurement.samples[s].num_equal_tokens = static_cast<int>(end - own.begin());
          measurement.samples[s].agrees = own == single;
        }
      }
    }
  }

  const ExperimentSpec& spec_;
  const ExperimentRunOptions& options_;
  std::vector<int> cpus_;
  ExperimentResult result_;
  std::vector<Tokens> tokens_;  // by run
};

}  // namespace

absl::StatusOr<ExperimentResult> RunExperiment(const ExperimentSpec& spec,
                                               const ExperimentRunOptions& options) {
  return Runner(spec, options).Run();
}

std::vector<std::vector<int>> CpusOfRanks(const std::vector<int>& cpus, int num_ranks,
                                          int threads) {
  std::vector<std::vector<int>> out(static_cast<size_t>(num_ranks));
  if (cpus.empty()) return out;
  size_t next = 0;
  for (std::vector<int>& own : out) {
    for (int i = 0; i < threads && own.size() < cpus.size(); ++i) {
      own.push_back(cpus[next++ % cpus.size()]);
    }
  }
  return out;
}

}  // namespace switchyard::app
