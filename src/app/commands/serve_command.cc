#include <fmt/format.h>
#include <utility>

#include "app/command.h"
#include "app/exit_code.h"
#include "app/interrupt.h"
#include "app/listen_address.h"
#include "app/serving.h"
#include "app/terminal.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "placement/placement.h"

namespace switchyard::app {
namespace {

using coordinator::GateState;

struct ServeOptions {
  ServingOptions serving;
  int expect_workers = 0;
  double drain_seconds = 60;
  std::string on_worker_loss = "replay";
  std::vector<std::string> metrics_compat;
};

absl::Status AnnounceListeners(const Serving& serving) {
  std::string text =
      fmt::format("http: {}\ngrpc: {}\n", serving.http_url(), serving.grpc_address());
  if (!serving.worker_address().empty()) {
    text += fmt::format("workers: {}\n", serving.worker_address());
  }
  return WriteOutput(text);
}

// Serves until a signal comes (OK then) or the worker is lost for good.
absl::Status ServeUntilEnd(Serving& serving) {
  const double start = MonotonicClock::Get().NowSeconds();
  bool was_ready = false;
  while (true) {
    if (IsInterrupted()) return absl::OkStatus();  // it also ends a load, which is no failure then
    const GateState state = serving.state();
    if (state == GateState::kFailed) return serving.failure();
    if (state == GateState::kServing && !was_ready) {
      was_ready = true;
      SWITCHYARD_RETURN_IF_ERROR(
          WriteOutput(fmt::format("ready: {} in {:.2f} s\n", serving.ModelText(),
                                  MonotonicClock::Get().NowSeconds() - start)));
    }
    switch (WaitForWakeUp()) {
      case WakeUp::kInterrupt:
        return absl::OkStatus();
      case WakeUp::kReload:
        if (const absl::Status status = serving.ReloadKeys(); status.ok()) {
          LogInfo("read the API keys again");
        } else {
          LogError("the former API keys stay: {}", Message(status));
        }
        break;
      case WakeUp::kNotified:
        break;
    }
  }
}

absl::Status Serve(ServeOptions options) {
  CatchReload();
  SWITCHYARD_ASSIGN_OR_RETURN(const auto serving,
                              Serving::Start(options.serving, [] { NotifyWakeUp(); }));
  SWITCHYARD_RETURN_IF_ERROR(AnnounceListeners(*serving));
  if (const absl::Status status = ServeUntilEnd(*serving); !status.ok()) {
    serving->Drain(0);  // who waits for an answer is told why there is none
    return status;
  }
  LogInfo("draining: running requests may end within {} s", options.drain_seconds);
  if (!serving->Drain(options.drain_seconds)) LogWarning("requests were cancelled");
  return absl::OkStatus();
}

CLI::Option* AddAddress(CLI::App& command, const std::string& name, ListenAddress& address,
                        const std::string& description) {
  return command
      .add_option_function<std::string>(
          name,
          [&address, name](const std::string& text) {
            const auto parsed = ParseListenAddress(text);
            if (!parsed.ok()) {
              throw CLI::ValidationError(name, std::string(Message(parsed.status())));
            }
            address = *parsed;
          },
          description + " (default: " + address.Text() + ")")
      ->type_name("HOST:PORT");
}

void AddListenOptions(CLI::App& command, ServeOptions& options) {
  ServingOptions& serving = options.serving;
  AddAddress(command, "--http", serving.http, "Where to serve HTTP; port 0 = any");
  AddAddress(command, "--grpc", serving.grpc, "Where to serve gRPC; port 0 = any");
  command.add_option("--model-name", serving.model_name,
                     "Name of the model in requests (default: the file's)");
  command.add_option("--api-key-file", serving.api_key_file,
                     "File with a SHA-256 of a key on each line; read again at SIGHUP");
  command.add_flag("--insecure-no-auth", serving.allows_no_auth,
                   "Serve other machines without a key; let workers join from them");
  command.add_flag("--slots-endpoint,!--no-slots-endpoint", serving.has_slots_route,
                   "Show running requests at /slots (default: on)");
  command.add_flag("--reflection,!--no-reflection", serving.has_reflection,
                   "gRPC server reflection (default: on)");
  command
      .add_option("--metrics-compat", options.metrics_compat,
                  "Also export metrics under the names of these servers")
      ->delimiter(',')
      ->check(CLI::IsMember({"vllm", "llamacpp"}));
}

void AddCapacityOptions(CLI::App& command, ServeOptions& options) {
  ServingOptions& serving = options.serving;
  command.add_option("--slots", serving.model.num_slots, "Requests that run at the same time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command.add_option("--queue", serving.max_waiting, "Requests that may wait for a slot")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command
      .add_option_function<std::string>(
          "--stream-buffer-bytes",
          [&serving](const std::string& text) {
            const auto bytes = ParseBytes(text);
            if (!bytes.ok() || *bytes < 1024) {
              throw CLI::ValidationError("--stream-buffer-bytes",
                                         "wants at least 1024 bytes, got: " + text);
            }
            serving.stream_buffer_bytes = *bytes;
          },
          "What may wait for a client that reads slowly (default: 1MiB)")
      ->type_name("BYTES");
  command
      .add_option("--drain-seconds", options.drain_seconds,
                  "How long running requests may go on after SIGTERM")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
}

void AddWorkerOptions(CLI::App& command, ServeOptions& options) {
  CLI::Option* const workers = AddGroupOptions(command, options.serving.model);
  CLI::Option* expect = command.add_option("--expect-workers", options.expect_workers,
                                           "Worker processes that join from outside");
  expect->check(CLI::Range(1, placement::kMaxWorldSize))->excludes(workers);
  CLI::Option* const goal =
      command
          .add_option("--profile-goal", options.serving.plan_goal,
                      "Let the planner choose workers, mode and threads for this goal, from what\n"
                      "switchyard probe has measured")
          ->check(CLI::IsMember({"latency", "context", "throughput"}))
          ->excludes(workers)
          ->excludes(expect);
  for (const char* flag : {"--mode", "--partition", "--dense", "--layer-split"}) {
    goal->excludes(command.get_option(flag));
  }
  command
      .add_option("--profile", options.serving.plan_profile,
                  "Profile of the machine (default: what switchyard probe stored)")
      ->needs(goal);
  AddAddress(command, "--worker-listen", options.serving.worker_listen,
             "Where workers from outside join; port 0 = any")
      ->needs(expect);
  command
      .add_option("--on-worker-loss", options.on_worker_loss,
                  "What becomes of running requests when a worker is lost")
      ->check(CLI::IsMember({"replay", "fail"}))
      ->capture_default_str();
  command
      .add_option("--degrade-after", options.serving.degrade_seconds,
                  "Seconds without a worker after which the others go on without it, until it is\n"
                  "back (default: they wait)")
      ->check(CLI::Range(0.1, 86400.0));
}

}  // namespace

void AddServeCommand(CLI::App& app, CommandBody& body) {
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP and gRPC");
  auto options = std::make_shared<ServeOptions>();
  options->serving.model.num_slots = 4;
  options->serving.model.prefix_cache_bytes = int64_t{1} << 30;
  AddModelOptions(*command, options->serving.model);
  AddListenOptions(*command, *options);
  AddCapacityOptions(*command, *options);
  AddWorkerOptions(*command, *options);
  command->footer(
      "Prints its addresses, and a line `ready: ...` once the model is loaded.\n"
      "Examples:\n  switchyard serve model.gguf\n"
      "  switchyard serve model.gguf --http 0.0.0.0:8080 --api-key-file keys --slots 8\n"
      "  switchyard serve model.gguf --workers 2 --mode tensor_expert_parallel --threads 8\n"
      "  switchyard probe && switchyard serve model.gguf --profile-goal throughput\n"
      "  switchyard serve model.gguf --expect-workers 2 --worker-listen 0.0.0.0:7070 \\\n"
      "      --insecure-no-auth");
  command->callback([&body, options] {
    ServingOptions& serving = options->serving;
    serving.expects_outside_workers = options->expect_workers > 0;
    if (serving.expects_outside_workers) serving.model.num_workers = options->expect_workers;
    serving.on_worker_loss = options->on_worker_loss == "fail" ? coordinator::OnWorkerLoss::kFail
                                                               : coordinator::OnWorkerLoss::kReplay;
    for (const std::string& name : options->metrics_compat) {
      (name == "vllm" ? serving.with_vllm_names : serving.with_llamacpp_names) = true;
    }
    body = [options] { return Serve(*options); };
  });
}

}  // namespace switchyard::app
