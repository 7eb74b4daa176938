// plan: predicts how fast a model would be in every mode, from a profile of the machine.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "app/command.h"
#include "app/exit_code.h"
#include "app/plan/plan_output.h"
#include "app/plan/stored_profile.h"
#include "app/terminal.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "model/gguf_file.h"
#include "model/model_spec.h"
#include "placement/planner.h"

namespace switchyard::app {
namespace {

struct Arguments {
  std::string path;
  std::string profile;
  std::string goal = "latency";
  std::string device = "auto";
  std::string context;
  placement::PlanRequest request;
  std::string output;
};

absl::StatusOr<placement::PlanRequest> RequestOf(const Arguments& arguments,
                                                 const model::ModelSpec& spec) {
  placement::PlanRequest request = arguments.request;
  request.goal = *placement::GoalFromName(arguments.goal);
  if (arguments.device == "cpu") request.device = placement::DeviceKind::kCpu;
  if (arguments.device == "gpu") request.device = placement::DeviceKind::kGpu;
  request.context_tokens = std::min<int64_t>(request.context_tokens, spec.context_length);
  if (!arguments.context.empty()) {
    SWITCHYARD_ASSIGN_OR_RETURN(request.context_tokens, ParseCount(arguments.context));
  }
  return request;
}

absl::Status Plan(const Arguments& arguments) {
  const auto file = model::GgufFile::Open(arguments.path);
  if (!file.ok()) return WithExitCode(file.status(), ExitCode::kModelRejected);
  const auto spec = model::LoadModelSpec(*file);
  if (!spec.ok()) return WithExitCode(spec.status(), ExitCode::kModelRejected);
  const auto request = RequestOf(arguments, *spec);
  if (!request.ok()) return WithExitCode(request.status(), ExitCode::kUsage);
  const auto profile = LoadProfile(arguments.profile);
  if (!profile.ok()) return WithExitCode(profile.status(), ExitCode::kUsage);
  const auto plans = placement::MakePlans(*spec, *profile, *request);
  if (!plans.ok()) return WithExitCode(plans.status(), ExitCode::kUsage);
  SWITCHYARD_ASSIGN_OR_RETURN(const placement::NamedPlans named,
                              placement::MakeNamedPlans(*spec, *profile, *request));
  const PlanOutput output = {*spec, *profile, *request, *plans, named};
  if (arguments.output == "json") return WriteOutput(PlanJson(output).dump(2) + "\n");
  return WriteOutput(PlanText(output));
}

}  // namespace

void AddPlanCommand(CLI::App& app, CommandBody& body) {
  CLI::App* command =
      app.add_subcommand("plan", "Predict a model's speed in every mode, and say why");
  auto arguments = std::make_shared<Arguments>();
  placement::PlanRequest& request = arguments->request;
  command->add_option("MODEL", arguments->path, "Model (.gguf), or the first of several files")
      ->required();
  command->add_option("--profile", arguments->profile,
                      "Profile of the machine (default: what switchyard probe stored)");
  command->add_option("--workers", request.worker_counts, "Numbers of workers (default: 1 to 4)")
      ->delimiter(',')
      ->check(CLI::Range(1, placement::kMaxWorldSize));
  command
      ->add_option("--threads", request.threads_per_worker,
                   "Threads of each CPU worker (default: the cores divided among them)")
      ->check(CLI::Range(1, 1024));
  command->add_option("--context", arguments->context,
                      "Tokens that each sequence has when it is timed, as 200K (default: 8K)");
  command->add_option("--goal", arguments->goal, "What the order is by")
      ->check(CLI::IsMember({"latency", "context", "throughput"}))
      ->capture_default_str();
  command
      ->add_option("--sequences", request.num_sequences,
                   "Sequences at once (default: 8 for throughput, else 1)")
      ->check(CLI::Range(1, 4096));
  command->add_option("--window", request.window_rows, "Rows of a sequence in a pass: 1 and drafts")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command
      ->add_option("--tokens-per-pass", request.tokens_per_pass,
                   "Tokens that a sequence gains in a pass")
      ->check(CLI::Range(1.0, 64.0))
      ->capture_default_str();
  command->add_option("--device", arguments->device, "Where the workers are")
      ->check(CLI::IsMember({"auto", "cpu", "gpu"}))
      ->capture_default_str();
  command
      ->add_option("--backend", request.backend,
                   "Backend of collectives (default: the fastest of the profile)")
      ->check(CLI::IsMember({"shm", "ucx", "nccl", "hostmap", "p2p"}));
  AddOutputOption(*command, arguments->output, {"text", "json"});
  command->footer(
      "Times are predicted from bytes of the model's tensors and rates of the profile; terms are "
      "in\n"
      "ms. Nothing is loaded.\n"
      "Examples:\n"
      "  switchyard probe && switchyard plan model.gguf\n"
      "  switchyard plan model.gguf --profile deploy/profiles/rtx3090-x4.json --goal throughput\n"
      "  switchyard plan model.gguf --workers 2,3 --context 64K -o json");
  command->callback([&body, arguments] { body = [arguments] { return Plan(*arguments); }; });
}

}  // namespace switchyard::app
