#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <unistd.h>
#include <utility>

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include "app/command.h"
#include "app/engine_setup.h"
#include "app/exit_code.h"
#include "app/interrupt.h"
#include "app/listen_address.h"
#include "app/version.h"
#include "base/log.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "coordinator/http/http_server.h"
#include "kernels/cpu/cpu_features.h"
#include "placement/placement.h"
#include "worker/command_executor.h"
#include "worker/worker_service.h"
#include "worker/worker_session.h"

namespace switchyard::app {
namespace {

namespace v1 = switchyard::worker::v1;

struct WorkerCommandOptions {
  std::string coordinator;
  std::string worker_id;        // empty = the host's name
  std::string service_address;  // empty = no service
  bool allows_no_auth = false;  // the service may be asked by other machines
  double retry_seconds = 60;
  std::optional<uint32_t> wanted_rank;
  std::string link_faults;
  ModelOptions model;  // path may be empty, also device and level: the coordinator says
};

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 && name[0] != 0 ? name : "localhost";
}

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

// The number that a launcher gives its processes, as Slurm, Open MPI and LeaderWorkerSet do.
std::optional<uint32_t> RankFromLauncher() {
  for (const char* name : {"SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "LWS_WORKER_INDEX"}) {
    const char* const text = std::getenv(name);
    if (text == nullptr) continue;
    uint32_t rank = 0;
    const char* const end = text + std::strlen(text);
    const auto [last, error] = std::from_chars(text, end, rank);
    if (error == std::errc() && last == end) return rank;
  }
  return std::nullopt;
}

v1::RegisterWorkerRequest RegistrationOf(const WorkerCommandOptions& options) {
  v1::RegisterWorkerRequest request;
  request.set_host(HostName());
  request.set_worker_id(options.worker_id.empty() ? request.host() : options.worker_id);
  std::random_device random;
  request.set_incarnation((uint64_t{random()} << 32) | random() | 1);  // 0 means none
  request.set_pid(static_cast<uint32_t>(getpid()));
  request.set_boot_id(BootId());
  const auto rank = options.wanted_rank ? options.wanted_rank : RankFromLauncher();
  if (rank) request.set_wanted_rank(*rank);
  request.mutable_build()->set_version(std::string(Version()));
  request.mutable_build()->set_build_type(BuildDescription());
  v1::CpuInfo& cpu = *request.mutable_cpu();
  cpu.set_num_threads(static_cast<uint32_t>(
      options.model.num_threads > 0 ? options.model.num_threads : DefaultNumThreads()));
  cpu.set_level(std::string(CpuLevelName(kernels::cpu::DetectCpuLevel())));
  return request;
}

// What was said here wins over what the coordinator says.
absl::StatusOr<std::unique_ptr<kernels::Backend>> BackendFor(const ModelOptions& own,
                                                             const v1::Configure& configure) {
  ModelOptions options = own;
  if (options.device.empty()) options.device = configure.device();
  if (options.device.empty()) options.device = "cpu";
  if (options.device != "cpu" && options.device != "reference") {
    return WithExitCode(InvalidArgument("there is no such device here: {}", options.device),
                        ExitCode::kHardwareUnfit);
  }
  if (options.num_threads == 0) options.num_threads = static_cast<int>(configure.num_threads());
  if (options.cpu_level.empty()) options.cpu_level = configure.cpu_level();
  options.huge_pages = configure.huge_pages();
  if (!configure.recode().empty()) options.recode = configure.recode();
  return MakeBackend(options, configure.model_digest());
}

// The server of the worker's own service, with the standard health service.
class ServiceServer {
 public:
  static absl::StatusOr<std::unique_ptr<ServiceServer>> Start(
      const std::string& address, worker::WorkerService& service,
      v1::RegisterWorkerRequest& registration) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    auto server = builder.BuildAndStart();
    if (server == nullptr || port == 0) {
      return Unavailable("address cannot be listened on: {}", address);
    }
    registration.set_service_address(
        fmt::format("{}:{}", address.substr(0, address.rfind(':')), port));
    LogInfo("worker service: {}", registration.service_address());
    return std::unique_ptr<ServiceServer>(new ServiceServer(std::move(server)));
  }
  ~ServiceServer() { server_->Shutdown(std::chrono::system_clock::now()); }

  void SetReady(bool is_ready) {
    server_->GetHealthCheckService()->SetServingStatus(v1::WorkerService::service_full_name(),
                                                       is_ready);
  }

 private:
  explicit ServiceServer(std::unique_ptr<grpc::Server> server) : server_(std::move(server)) {
    SetReady(false);
  }
  std::unique_ptr<grpc::Server> server_;
};

// The service has neither keys nor encryption.
absl::Status CheckServiceAddress(const WorkerCommandOptions& options) {
  if (options.service_address.empty()) return absl::OkStatus();
  const auto address = ParseListenAddress(options.service_address);
  if (!address.ok()) return WithContext(address.status(), "--service");
  if (options.allows_no_auth || coordinator::http::IsLoopback(address->host)) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "--service {} can be reached from other machines, and needs no key: give --insecure-no-auth "
      "on a trusted network",
      options.service_address);
}

// How the program ends when the executor can serve no session any more.
absl::Status WithFailureCode(const absl::Status& failure) {
  if (failure.code() == absl::StatusCode::kInternal) {  // a step
    return WithExitCode(failure, ExitCode::kWorkerLost);
  }
  const bool lacks_memory = failure.code() == absl::StatusCode::kResourceExhausted;
  return WithExitCode(failure, lacks_memory ? ExitCode::kHardwareUnfit : ExitCode::kModelRejected);
}

absl::Status RunWorker(const WorkerCommandOptions& options) {
  if (const absl::Status status = CheckServiceAddress(options); !status.ok()) {
    return WithExitCode(status, ExitCode::kUsage);
  }
  worker::CommandExecutorOptions executor_options;
  executor_options.make_backend = [&options](const v1::Configure& configure) {
    return BackendFor(options.model, configure);
  };
  executor_options.num_threads = [&options](const v1::Configure& configure) {
    return options.model.num_threads > 0 ? options.model.num_threads
           : configure.num_threads() > 0 ? static_cast<int>(configure.num_threads())
                                         : DefaultNumThreads();
  };
  executor_options.link_faults = options.link_faults;
  auto executor = worker::CommandExecutor::Create(options.model.path, executor_options);
  if (!executor.ok()) return WithExitCode(executor.status(), ExitCode::kModelRejected);

  v1::RegisterWorkerRequest registration = RegistrationOf(options);
  std::atomic<worker::WorkerSession*> session = nullptr;  // the service answers before there is one
  worker::WorkerService service(**executor, registration, [&session] {
    const worker::WorkerSession* const present = session;
    return present != nullptr ? present->state() : v1::WORKER_STATE_REGISTERING;
  });
  std::unique_ptr<ServiceServer> server;
  if (!options.service_address.empty()) {
    SWITCHYARD_ASSIGN_OR_RETURN(
        server, ServiceServer::Start(options.service_address, service, registration));
  }

  worker::WorkerSessionOptions session_options;
  session_options.coordinator = options.coordinator;
  session_options.registration = registration;
  session_options.lost_seconds = options.retry_seconds;
  session_options.should_leave = &IsInterrupted;
  session_options.on_registered = [&](const v1::RegisterWorkerResponse& lease) {
    LogInfo("registered as {} at {}: rank {} of {}, epoch {}", registration.worker_id(),
            options.coordinator, lease.rank(), lease.world_size(), lease.epoch());
  };
  session_options.on_ready = [&](bool is_ready) {
    if (server != nullptr) server->SetReady(is_ready);
    if (is_ready) LogInfo("ready: {}", (*executor)->status().device);
  };
  session_options.on_stuck = [] {
    LogError("a step does not end: the process is given up");
    _exit(static_cast<int>(ExitCode::kStuck));
  };
  worker::WorkerSession the_session(**executor, session_options);
  session = &the_session;
  LogInfo("registers at {}", options.coordinator);
  const absl::Status status = the_session.Run();
  server.reset();  // it asks the session
  return (*executor)->failure().ok() ? status : WithFailureCode((*executor)->failure());
}

}  // namespace

void AddWorkerCommand(CLI::App& app, CommandBody& body) {
  CLI::App* const command = app.add_subcommand(
      "worker", "Computes for a coordinator: registers, loads its shard, runs its plans");
  auto options = std::make_shared<WorkerCommandOptions>();
  command->add_option("MODEL", options->model.path,
                      "GGUF file (default: the path that the coordinator names)");
  command
      ->add_option("--coordinator", options->coordinator,
                   "Where to register: host:port or unix:/path")
      ->required();
  command->add_option("--worker-id", options->worker_id,
                      "Name of this place, the same after a restart (default: the host's name)");
  command->add_option("--service", options->service_address,
                      "Serve status, residency and telemetry at host:port (port 0: any)");
  command->add_flag("--insecure-no-auth", options->allows_no_auth,
                    "Let other machines ask the service, which wants no key");
  command
      ->add_option("--retry", options->retry_seconds,
                   "Seconds without a coordinator after which the worker ends")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      ->add_option("--rank", options->wanted_rank,
                   "Rank to ask for (default: the number that Slurm, Open MPI or LeaderWorkerSet\n"
                   "gives, or any that is free)")
      ->type_name("RANK")
      ->check(CLI::Range(0, placement::kMaxWorldSize - 1));
  command
      ->add_option("--core-claims", options->model.core_claims_folder,
                   "Folder where the workers of a host lock their cores (default: the user's)")
      ->type_name("FOLDER");
  command
      ->add_option("--link-faults", options->link_faults,
                   "Faults of the links to other workers, for experiments: 0->1 delay=300us")
      ->envname("SWITCHYARD_LINK_FAULTS");
  options->model.device.clear();
  AddBackendOptions(*command, options->model);
  command->footer(
      "Examples:\n  switchyard worker --coordinator 127.0.0.1:7070\n"
      "  switchyard worker --coordinator 127.0.0.1:7070 model.gguf -t 8 --worker-id host-0");
  command->callback([&body, options] { body = [options] { return RunWorker(*options); }; });
}

}  // namespace switchyard::app
