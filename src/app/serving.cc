#include "app/serving.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "app/engine_setup.h"
#include "app/exit_code.h"
#include "app/loading_worker.h"
#include "app/placement_options.h"
#include "app/plan/planned_options.h"
#include "app/version.h"
#include "app/worker_group.h"
#include "base/log.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "coordinator/api_keys.h"
#include "coordinator/generation_service.h"
#include "coordinator/grpc_server.h"
#include "coordinator/http/http_surface.h"
#include "coordinator/served_model.h"
#include "coordinator/serving_metrics.h"
#include "model/model_digest.h"
#include "model/model_summary.h"
#include "placement/placement.h"
#include "worker/experts/residency_report.h"

namespace switchyard::app {
namespace {

using coordinator::EngineState;

// How long a stream may take to say goodbye once its request has ended.
constexpr double kClosingSeconds = 2;

absl::Status CheckAddress(const ListenAddress& address, std::string_view flag,
                          const ServingOptions& options) {
  if (coordinator::http::IsLoopback(address.host) || !options.api_key_file.empty() ||
      options.allows_no_auth) {
    return absl::OkStatus();
  }
  return WithExitCode(
      InvalidArgument("{} {} can be reached from other machines: give --api-key-file, or "
                      "--insecure-no-auth to serve everybody",
                      flag, address.Text()),
      ExitCode::kUsage);
}

// Sessions of workers have neither keys nor encryption, whatever clients must bring.
absl::Status CheckWorkerAddress(const ServingOptions& options) {
  if (!options.expects_outside_workers || options.allows_no_auth ||
      coordinator::http::IsLoopback(options.worker_listen.host)) {
    return absl::OkStatus();
  }
  return WithExitCode(
      InvalidArgument("--worker-listen {} can be reached from other machines, and workers need no "
                      "key: give --insecure-no-auth on a trusted network",
                      options.worker_listen.Text()),
      ExitCode::kUsage);
}

// Carries what a local load failed with to where the process ends.
class LoadOutcome {
 public:
  void Set(const absl::Status& status) {
    std::lock_guard lock(mutex_);
    status_ = status;
  }
  absl::Status Get() const {
    std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  mutable std::mutex mutex_;
  absl::Status status_;
};

}  // namespace

class Serving::Impl {
 public:
  Impl(const ServingOptions& options, std::unique_ptr<LoadedModel> model,
       std::function<void()> on_change)
      : options_(options), model_(std::move(model)), on_change_(std::move(on_change)) {}

  // What calls others goes first: listeners, then requests, then the engine with its worker.
  ~Impl() {
    if (gate_ != nullptr) gate_->CancelAll();
    // gRPC's long calls run in the background of the HTTP server.
    if (grpc_ != nullptr) grpc_->Stop(0);
    if (http_ != nullptr) http_->Stop(0);
    grpc_.reset();
    http_.reset();
    {
      std::lock_guard lock(relay_mutex_);
      relay_gate_ = nullptr;
    }
    generation_service_.reset();
    gate_.reset();
    engine_.reset();
  }

  absl::Status Start() {
    SWITCHYARD_RETURN_IF_ERROR(CheckAddress(options_.http, "--http", options_));
    SWITCHYARD_RETURN_IF_ERROR(CheckAddress(options_.grpc, "--grpc", options_));
    SWITCHYARD_RETURN_IF_ERROR(CheckWorkerAddress(options_));
    if (!options_.api_key_file.empty()) {
      auto keys = coordinator::ApiKeys::Load(options_.api_key_file);
      if (!keys.ok()) return WithExitCode(keys.status(), ExitCode::kUsage);
      keys_ = *std::move(keys);
    }
    SWITCHYARD_ASSIGN_OR_RETURN(worker_options_, MakeWorkerOptions(*model_, options_.model));
    if (!options_.plan_goal.empty()) {
      SWITCHYARD_RETURN_IF_ERROR(ApplyPlan(model_->spec, options_.plan_goal, options_.plan_profile,
                                           worker_options_.max_context, options_.model));
    }
    SWITCHYARD_ASSIGN_OR_RETURN(placement_, PlacementFor(model_->spec, options_.model,
                                                         std::max(1, options_.model.num_workers)));
    present_placement_ = placement_;
    SWITCHYARD_RETURN_IF_ERROR(DescribeModel());
    SWITCHYARD_ASSIGN_OR_RETURN(auto worker, MakeWorker());
    StartEngineAndGate(std::move(worker));
    SWITCHYARD_RETURN_IF_ERROR(StartHttp());
    return StartGrpc();
  }

  std::string http_url() const {
    return "http://" + ListenAddress{options_.http.host, http_->port()}.Text();
  }
  std::string grpc_address() const {
    return ListenAddress{options_.grpc.host, static_cast<uint16_t>(grpc_->port())}.Text();
  }
  std::string worker_address() const {
    return options_.expects_outside_workers ? group_->address() : "";
  }
  coordinator::GateState state() const { return gate_->state(); }
  absl::Status failure() const {
    if (state() != coordinator::GateState::kFailed) return absl::OkStatus();
    const absl::Status load = load_outcome_.Get();
    if (!load.ok()) return load;
    return WithExitCode(engine_->failure(), ExitCode::kWorkerLost);
  }

  std::string ModelText() const {
    return fmt::format("{} ({}, {})", served_->name, model_->spec.architecture,
                       FormatBytes(static_cast<double>(served_->file_bytes)));
  }

  absl::Status ReloadKeys() { return keys_ == nullptr ? absl::OkStatus() : keys_->Reload(); }

  bool Drain(double seconds) {
    // First of all, health checks fail, so that nobody sends more.
    grpc_->BeginDrain();
    http_->BeginDrain();
    gate_->BeginDrain();
    const bool is_idle = gate_->WaitUntilIdle(seconds);
    if (!is_idle) gate_->CancelAll();
    grpc_->Stop(kClosingSeconds);
    http_->Stop(kClosingSeconds);
    return is_idle;
  }

 private:
  absl::Status DescribeModel() {
    const std::filesystem::path path = model_->file.path(0);
    SWITCHYARD_ASSIGN_OR_RETURN(std::string digest, model::ModelDigest(model_->file));
    served_.reset(new coordinator::ServedModel{
        .name = options_.model_name.empty() ? path.stem().string() : options_.model_name,
        .created_unix_seconds = std::chrono::duration_cast<std::chrono::seconds>(
                                    std::chrono::system_clock::now().time_since_epoch())
                                    .count(),
        .spec = model_->spec,
        .tokenizer = model_->tokenizer,
        .chat_template = model_->chat_template,
        .max_context = worker_options_.max_context,
        .file_bytes = model::Summarize(model_->spec).bytes,
        .digest = std::move(digest),
        .path_name = path.filename().string(),
        .mode = std::string(placement::ModeName(placement_.mode())),
        .plan_id = PlanId(placement_),
        .present_plan = [this] {
          std::lock_guard lock(plan_mutex_);
          return coordinator::ServedPlan{
              .mode = std::string(placement::ModeName(present_placement_.mode())),
              .id = PlanId(present_placement_)};
        }});
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<coordinator::WorkerHandle>> MakeWorker() {
    if (options_.model.num_workers == 0 && !options_.expects_outside_workers) {
      auto worker = std::make_unique<LoadingWorker>(
          [this](const std::atomic<bool>& is_stopped) {
            auto worker = LoadWorker(*model_, options_.model, worker_options_,
                                     [&](int64_t num_bytes, int64_t num_total_bytes) {
                                       metrics_->SetModelLoad(num_bytes, num_total_bytes);
                                       return is_stopped ? Cancelled("nobody waits for the model")
                                                         : absl::OkStatus();
                                     });
            load_outcome_.Set(worker.status());
            return worker;
          },
          worker_options_);
      local_worker_ = worker.get();
      return worker;
    }
    WorkerGroupOptions group;
    group.starts_processes = !options_.expects_outside_workers;
    group.placement = placement_;
    if (options_.degrade_seconds > 0) {
      group.replan_seconds = options_.degrade_seconds;
      group.replan = [this](int num_workers) {
        ModelOptions fewer = options_.model;
        fewer.layer_cuts.clear();  // they were for all of them
        return PlacementFor(model_->spec, fewer, num_workers);
      };
    }
    if (options_.expects_outside_workers) group.listen_address = options_.worker_listen.Text();
    SWITCHYARD_ASSIGN_OR_RETURN(
        group_, WorkerGroup::Start(*model_, options_.model, worker_options_, group));
    return group_->MakeHandle();
  }

  void StartEngineAndGate(std::unique_ptr<coordinator::WorkerHandle> worker) {
    coordinator::ServingMetricsOptions metrics;
    metrics.model = served_->name;
    metrics.mode = served_->mode;
    metrics.device = options_.model.device;
    metrics.with_vllm_names = options_.with_vllm_names;
    metrics.with_llamacpp_names = options_.with_llamacpp_names;
    metrics.build = {{"version", std::string(Version())}};
    metrics_ = std::make_unique<coordinator::ServingMetrics>(metrics);

    coordinator::EngineOptions engine;
    engine.scheduler.max_step_rows = worker_options_.max_step_rows;
    engine.scheduler.mixed_prefill_rows = options_.model.chunk_tokens;
    engine.max_waiting = options_.max_waiting;
    engine.on_worker_loss = options_.on_worker_loss;
    engine.on_state_change = [this](EngineState state) { OnEngineState(state); };
    engine_ = std::make_unique<coordinator::Engine>(std::move(worker), model_->tokenizer, engine);
    metrics_->SetEngineSource([this] { return engine_->stats(); });
    if (group_ != nullptr) metrics_->SetWorkerSource([this] { return WorkerSamples(); });
    metrics_->SetResidencySource([this] { return Residency(); });

    gate_ = std::make_unique<coordinator::RequestGate>(*engine_, *metrics_);
    {
      std::lock_guard lock(relay_mutex_);
      relay_gate_ = gate_.get();
      gate_->SetEngineState(engine_state_);
    }
    gate_->OnStateChange([this](coordinator::GateState) { on_change_(); });
  }

  // The engine begins to tell before there is a gate to tell it to.
  void OnEngineState(EngineState state) {
    if (state == EngineState::kServing && group_ != nullptr) {
      placement::v1::Placement present = group_->status().placement;
      std::lock_guard lock(plan_mutex_);
      present_placement_ = std::move(present);
    }
    std::lock_guard lock(relay_mutex_);
    engine_state_ = state;
    if (relay_gate_ != nullptr) relay_gate_->SetEngineState(state);
  }

  std::vector<coordinator::WorkerSample> WorkerSamples() {
    const coordinator::ClusterStatus status = group_->status();
    std::vector<coordinator::WorkerSample> samples;
    uint64_t num_bytes = 0, num_total_bytes = 0;
    for (const coordinator::MemberStatus& member : status.members) {
      // Named by its place: ids of workers from outside are no closed set.
      samples.push_back({.worker = std::to_string(samples.size()),
                         .is_up = member.state == worker::v1::WORKER_STATE_READY ||
                                  member.state == worker::v1::WORKER_STATE_BUSY,
                         .epoch = status.epoch,
                         .num_restarts = group_->num_restarts(static_cast<int>(samples.size())),
                         .heartbeat_age_seconds = member.heartbeat_age_seconds});
      num_bytes += member.loaded_bytes;
      num_total_bytes += member.total_bytes;
    }
    metrics_->SetModelLoad(static_cast<int64_t>(num_bytes), static_cast<int64_t>(num_total_bytes));
    return samples;
  }

  // By rank; empty where a rank has told nothing yet.
  std::vector<worker::v1::Residency> Residency() {
    std::vector<worker::v1::Residency> ranks;
    if (local_worker_ != nullptr) {
      const auto snapshot = local_worker_->residency();
      ranks.push_back(snapshot ? worker::ResidencyMessage(*snapshot) : worker::v1::Residency());
    }
    if (group_ == nullptr) return ranks;
    for (const coordinator::MemberStatus& member : group_->status().members) {
      if (member.rank < 0) continue;
      const auto rank = static_cast<size_t>(member.rank);
      if (ranks.size() <= rank) ranks.resize(rank + 1);
      if (member.residency != nullptr) ranks[rank] = *member.residency;
    }
    return ranks;
  }

  absl::Status StartHttp() {
    coordinator::http::HttpSurfaceOptions http;
    http.server.address = options_.http.host;
    http.server.port = options_.http.port;
    http.max_buffered_bytes = static_cast<size_t>(options_.stream_buffer_bytes);
    http.has_slots = options_.has_slots_route;
    http.version = Version();
    http.residency = [this] { return Residency(); };
    http_ = std::make_unique<coordinator::http::HttpSurface>(
        *served_, *gate_, *metrics_, [this] { return engine_->stats(); }, keys_.get(), http);
    return http_->Start();
  }

  absl::Status StartGrpc() {
    coordinator::GenerationServiceOptions service;
    service.api_keys = keys_.get();
    service.max_buffered_bytes = static_cast<size_t>(options_.stream_buffer_bytes);
    service.run_in_background = [this](std::function<void()> work) {
      http_->RunInBackground(std::move(work));
    };
    generation_service_ =
        std::make_unique<coordinator::GenerationService>(*gate_, *served_, service);
    coordinator::GrpcServerOptions grpc;
    grpc.address = options_.grpc.Text();
    grpc.has_reflection = options_.has_reflection;
    SWITCHYARD_ASSIGN_OR_RETURN(
        grpc_, coordinator::GrpcServer::Start(grpc, {generation_service_.get()},
                                              {coordinator::kGenerationServiceName}));
    grpc_->Follow(*gate_, coordinator::kGenerationServiceName);
    return absl::OkStatus();
  }

  ServingOptions options_;  // the planner may change some
  const std::unique_ptr<LoadedModel> model_;
  const std::function<void()> on_change_;
  worker::WorkerOptions worker_options_;
  placement::v1::Placement placement_;  // once all workers are there
  mutable std::mutex plan_mutex_;
  placement::v1::Placement present_placement_;  // guarded by it
  std::unique_ptr<coordinator::ServedModel> served_;
  std::unique_ptr<coordinator::ApiKeys> keys_;
  LoadOutcome load_outcome_;
  std::unique_ptr<WorkerGroup> group_;
  LoadingWorker* local_worker_ = nullptr;  // of the engine
  std::unique_ptr<coordinator::ServingMetrics> metrics_;
  std::unique_ptr<coordinator::Engine> engine_;

  std::mutex relay_mutex_;
  EngineState engine_state_ = EngineState::kLoading;
  coordinator::RequestGate* relay_gate_ = nullptr;

  std::unique_ptr<coordinator::RequestGate> gate_;
  std::unique_ptr<coordinator::http::HttpSurface> http_;
  std::unique_ptr<coordinator::GenerationService> generation_service_;
  std::unique_ptr<coordinator::GrpcServer> grpc_;
};

absl::StatusOr<std::unique_ptr<Serving>> Serving::Start(const ServingOptions& options,
                                                        std::function<void()> on_change) {
  SWITCHYARD_ASSIGN_OR_RETURN(auto model, OpenModel(options.model.path));
  auto impl = std::make_unique<Impl>(options, std::move(model), std::move(on_change));
  SWITCHYARD_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Serving>(new Serving(std::move(impl)));
}

Serving::Serving(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Serving::~Serving() = default;

std::string Serving::http_url() const { return impl_->http_url(); }
std::string Serving::grpc_address() const { return impl_->grpc_address(); }
std::string Serving::worker_address() const { return impl_->worker_address(); }
coordinator::GateState Serving::state() const { return impl_->state(); }
absl::Status Serving::failure() const { return impl_->failure(); }
std::string Serving::ModelText() const { return impl_->ModelText(); }
absl::Status Serving::ReloadKeys() { return impl_->ReloadKeys(); }
bool Serving::Drain(double seconds) { return impl_->Drain(seconds); }

}  // namespace switchyard::app
