#include "app/worker_group.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <random>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include <grpcpp/grpcpp.h>

#include "app/core_claims.h"
#include "app/engine_setup.h"
#include "app/listen_address.h"
#include "app/local_worker.h"
#include "base/log.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "coordinator/http/http_server.h"
#include "coordinator/remote_worker.h"
#include "coordinator/worker_session_service.h"
#include "model/model_digest.h"
#include "worker/worker_session.h"

namespace switchyard::app {
namespace {

namespace v1 = switchyard::worker::v1;

static_assert(coordinator::kWorkerProtocolVersion == worker::kProtocolVersion);

// For workers to finish what they have when the group ends: requests have ended before, so that is
// the rest of a step.
constexpr double kDrainSeconds = 2;
constexpr double kShutdownSeconds = 1;  // of the server, once its sessions are closed

// Workers of one host share its cores; each of several hosts has its own to itself.
int ThreadsPerWorker(const ModelOptions& options, const WorkerGroupOptions& group) {
  const auto num_workers = static_cast<int>(group.placement.world_size());
  if (options.num_threads > 0 || !group.starts_processes || num_workers == 1) {
    return options.num_threads;
  }
  return std::max(1, DefaultNumThreads() / num_workers);
}

v1::Configure ConfigureOf(const LoadedModel& model, const ModelOptions& options,
                          const worker::WorkerOptions& worker, const std::string& digest) {
  v1::Configure configure;
  std::error_code ignored;  // then the path stays as it is
  const std::string path = model.file.path(0);
  const auto absolute = std::filesystem::absolute(path, ignored);
  configure.set_model_path(ignored ? path : absolute.string());
  configure.set_model_digest(digest);
  v1::WorkerSizes& sizes = *configure.mutable_sizes();
  sizes.set_num_slots(static_cast<uint32_t>(worker.num_slots));
  sizes.set_num_pages(static_cast<uint32_t>(worker.num_pages));
  sizes.set_num_checkpoints(static_cast<uint32_t>(worker.num_checkpoints));
  sizes.set_max_context(static_cast<uint64_t>(worker.max_context));
  sizes.set_max_step_rows(static_cast<uint32_t>(worker.max_step_rows));
  configure.set_kv_type(options.kv_type);
  configure.set_device(options.device);
  configure.set_num_threads(static_cast<uint32_t>(options.num_threads));
  configure.set_cpu_level(options.cpu_level);
  configure.set_huge_pages(options.huge_pages);
  configure.set_recode(options.recode);
  if (options.host_expert_bytes >= 0) {
    configure.set_host_expert_bytes(static_cast<uint64_t>(options.host_expert_bytes));
  }
  configure.set_expert_profile(options.expert_profile);
  configure.set_check_ranks(options.check_ranks);
  for (const int32_t id : worker.never_sampled) {
    configure.add_never_sampled(static_cast<uint32_t>(id));
  }
  return configure;
}

// Whether only processes of this machine can connect to the address.
bool IsLocal(const std::string& address) {
  if (address.starts_with("unix:")) return true;
  const auto parsed = ParseListenAddress(address);
  return parsed.ok() && coordinator::http::IsLoopback(parsed->host);
}

std::string LocalWorkerId(int place) { return fmt::format("local-{}", place); }

// A folder that only this user may enter, for a socket.
absl::StatusOr<std::string> MakePrivateFolder() {
  const char* const base = std::getenv("TMPDIR");
  std::string folder = fmt::format("{}/switchyard-XXXXXX", base != nullptr ? base : "/tmp");
  if (mkdtemp(folder.data()) == nullptr) {
    return Unavailable("no folder can be made for the workers' socket: {}", folder);
  }
  return folder;
}

}  // namespace

struct WorkerGroup::Impl {
  ~Impl();
  absl::Status Listen(const std::string& listen_address);
  void StartProcesses(const WorkerGroupOptions& options);

  coordinator::WorkerCapacity capacity;
  std::string address;
  std::string private_folder;  // empty = none
  std::unique_ptr<coordinator::ClusterThread> cluster;
  std::unique_ptr<coordinator::WorkerSessionService> service;
  std::unique_ptr<grpc::Server> server;
  // It calls the cluster, whose thread asks it to kill.
  std::mutex supervisor_mutex;
  std::unique_ptr<Supervisor> supervisor;
};

WorkerGroup::Impl::~Impl() {
  // Workers are asked to go while there is a cluster that lets them; the server waits for their
  // sessions, which the cluster ends if they do not.
  if (cluster != nullptr) {
    cluster->Post([](coordinator::Cluster& c) { c.Drain(kDrainSeconds); });
  }
  std::unique_ptr<Supervisor> ending;
  {
    std::lock_guard lock(supervisor_mutex);
    ending = std::move(supervisor);
  }
  ending.reset();
  if (server != nullptr) {
    constexpr double kSeconds = kDrainSeconds + kShutdownSeconds;
    server->Shutdown(std::chrono::system_clock::now() +
                     std::chrono::milliseconds(static_cast<int64_t>(kSeconds * 1000)));
    server.reset();
  }
  cluster.reset();
  std::error_code ignored;
  if (!private_folder.empty()) std::filesystem::remove_all(private_folder, ignored);
}

absl::Status WorkerGroup::Impl::Listen(const std::string& listen_address) {
  std::string target = listen_address;
  if (listen_address.empty()) {
    SWITCHYARD_ASSIGN_OR_RETURN(private_folder, MakePrivateFolder());
    target = address = "unix:" + private_folder + "/workers";
  }
  if (!IsLocal(target)) {
    LogWarning("workers are listened for at {} without encryption or keys: for trusted networks",
               target);
  }
  grpc::ServerBuilder builder;
  coordinator::WorkerSessionService::ConfigureServer(builder);
  int port = 0;
  builder.AddListeningPort(target, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(service.get());
  server = builder.BuildAndStart();
  if (server == nullptr || (port == 0 && !listen_address.empty())) {
    return Unavailable("workers cannot be listened for: {}", target);
  }
  if (!listen_address.empty()) {
    address = fmt::format("{}:{}", listen_address.substr(0, listen_address.rfind(':')), port);
  }
  return absl::OkStatus();
}

void WorkerGroup::Impl::StartProcesses(const WorkerGroupOptions& options) {
  SupervisorOptions supervised;
  supervised.program = options.program;
  for (int i = 0; i < static_cast<int>(options.placement.world_size()); ++i) {
    SupervisedProcess process;
    process.worker_id = LocalWorkerId(i);
    process.prefix = fmt::format("worker {}: ", i);
    process.arguments = {"worker", "--coordinator", address, "--worker-id", process.worker_id};
    // Where the user has no folder for it they divide the cores among themselves.
    if (DefaultCoreClaimsFolder().empty() && !private_folder.empty()) {
      process.arguments.insert(process.arguments.end(),
                               {"--core-claims", private_folder + "/cores"});
    }
    if (LogEnabled(LogLevel::kDebug)) process.arguments.push_back("--verbose");
    if (!LogEnabled(LogLevel::kInfo)) process.arguments.push_back("--quiet");
    supervised.processes.push_back(std::move(process));
  }
  supervised.on_start = [this](const std::string& worker_id, uint32_t pid) {
    cluster->Post([=](coordinator::Cluster& c) { c.OnProcessStart(worker_id, pid); });
  };
  supervised.on_exit = [this](const std::string& worker_id, uint32_t pid,
                              const absl::Status& status, bool returns) {
    cluster->Post(
        [=](coordinator::Cluster& c) { c.OnProcessExit(worker_id, pid, status, returns); });
  };
  auto started = std::make_unique<Supervisor>(std::move(supervised));
  std::lock_guard lock(supervisor_mutex);
  supervisor = std::move(started);
}

WorkerGroup::WorkerGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

WorkerGroup::~WorkerGroup() = default;

absl::StatusOr<std::unique_ptr<WorkerGroup>> WorkerGroup::Start(const LoadedModel& model,
                                                                const ModelOptions& model_options,
                                                                const worker::WorkerOptions& worker,
                                                                const WorkerGroupOptions& options) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string digest, model::ModelDigest(model.file));
  coordinator::ClusterOptions cluster_options;
  cluster_options.configure = ConfigureOf(model, model_options, worker, digest);
  cluster_options.configure.set_num_threads(
      static_cast<uint32_t>(ThreadsPerWorker(model_options, options)));
  cluster_options.placement = options.placement;
  cluster_options.replan = options.replan;
  cluster_options.replan_seconds = options.replan_seconds;
  cluster_options.vocab_size = model.spec.vocab_size;
  const auto num_workers = static_cast<int>(options.placement.world_size());
  for (int i = 0; i < num_workers && options.starts_processes; ++i) {
    cluster_options.worker_ids.push_back(LocalWorkerId(i));
  }
  std::random_device random;
  cluster_options.lease_seed = (uint64_t{random()} << 32) | random();

  auto impl = std::make_unique<Impl>();
  impl->capacity = CapacityOf(worker);
  if (options.placement.mode() == placement::v1::MODE_LAYER_SPLIT) {
    impl->capacity.pipeline_depth = static_cast<int>(options.placement.world_size());
  }
  impl->cluster = std::make_unique<coordinator::ClusterThread>(
      cluster_options, [raw = impl.get()](const std::string& worker_id, uint32_t pid) {
        std::lock_guard lock(raw->supervisor_mutex);
        if (raw->supervisor != nullptr) raw->supervisor->Kill(worker_id, pid);
      });
  impl->service = std::make_unique<coordinator::WorkerSessionService>(*impl->cluster);
  SWITCHYARD_RETURN_IF_ERROR(impl->Listen(options.listen_address));
  if (options.starts_processes) impl->StartProcesses(options);
  return std::unique_ptr<WorkerGroup>(new WorkerGroup(std::move(impl)));
}

std::unique_ptr<coordinator::WorkerHandle> WorkerGroup::MakeHandle() {
  return std::make_unique<coordinator::RemoteWorker>(*impl_->cluster, impl_->capacity);
}

const std::string& WorkerGroup::address() const { return impl_->address; }

coordinator::ClusterStatus WorkerGroup::status() { return impl_->cluster->status(); }

int64_t WorkerGroup::num_restarts() const {
  return impl_->supervisor != nullptr ? impl_->supervisor->num_restarts() : 0;
}

int64_t WorkerGroup::num_restarts(int place) const {
  return impl_->supervisor != nullptr ? impl_->supervisor->num_restarts(LocalWorkerId(place)) : 0;
}

}  // namespace switchyard::app
