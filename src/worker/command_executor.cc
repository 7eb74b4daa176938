#include "worker/command_executor.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "model/model_digest.h"
#include "worker/experts/residency_report.h"

namespace switchyard::worker {
namespace {

double Now() { return MonotonicClock::Get().NowSeconds(); }

absl::StatusOr<kernels::KvType> KvTypeFromName(const std::string& name) {
  if (name == "f16") return kernels::KvType::kF16;
  if (name == "f32") return kernels::KvType::kF32;
  if (name == "q8_0") return kernels::KvType::kQ8_0;
  return InvalidArgument("type of keys and values is unknown: kv_type, got: {}", name);
}

absl::Status SetSizes(const v1::WorkerSizes& sizes, WorkerOptions& options) {
  constexpr uint64_t kMost = std::numeric_limits<int>::max();
  for (const uint64_t size :
       {uint64_t{sizes.num_slots()}, uint64_t{sizes.num_pages()}, uint64_t{sizes.num_checkpoints()},
        sizes.max_context(), uint64_t{sizes.max_step_rows()}}) {
    if (size > kMost) return InvalidArgument("size is out of range: sizes, got: {}", size);
  }
  options.num_slots = static_cast<int>(sizes.num_slots());
  options.num_pages = static_cast<int>(sizes.num_pages());
  options.num_checkpoints = static_cast<int>(sizes.num_checkpoints());
  options.max_context = static_cast<int64_t>(sizes.max_context());
  options.max_step_rows = static_cast<int>(sizes.max_step_rows());
  return absl::OkStatus();
}

absl::StatusOr<WorkerOptions> OptionsOf(uint64_t epoch, const v1::Configure& configure) {
  WorkerOptions options;
  SWITCHYARD_RETURN_IF_ERROR(SetSizes(configure.sizes(), options));
  SWITCHYARD_ASSIGN_OR_RETURN(options.kv_type, KvTypeFromName(configure.kv_type()));
  for (const uint32_t id : configure.never_sampled()) {
    options.never_sampled.push_back(
        static_cast<int32_t>(std::min<uint32_t>(id, std::numeric_limits<int32_t>::max())));
  }
  options.epoch = epoch;
  if (configure.has_host_expert_bytes()) {
    constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    options.residency.fast_bytes =
        static_cast<int64_t>(std::min(configure.host_expert_bytes(), kMost));
  }
  options.residency.profile_path = configure.expert_profile();
  options.placement = configure.placement();
  options.rank = static_cast<int>(configure.rank());
  options.check_ranks = configure.check_ranks();
  if (configure.rank() >= std::max(1u, configure.placement().world_size())) {
    return InvalidArgument("rank is out of range: rank, got: {}, world_size: {}", configure.rank(),
                           configure.placement().world_size());
  }
  return options;
}

bool SamePlacement(const v1::Configure& a, const v1::Configure& b) {
  return a.rank() == b.rank() &&
         a.placement().SerializeAsString() == b.placement().SerializeAsString();
}

// Whether weights that were loaded for `a` are those that `b` wants.
bool SameWeights(const v1::Configure& a, const v1::Configure& b) {
  return a.model_digest() == b.model_digest() && a.device() == b.device() &&
         a.num_threads() == b.num_threads() && a.cpu_level() == b.cpu_level() &&
         a.huge_pages() == b.huge_pages() && a.recode() == b.recode() &&
         a.has_host_expert_bytes() == b.has_host_expert_bytes() &&
         a.host_expert_bytes() == b.host_expert_bytes() &&
         a.expert_profile() == b.expert_profile() && a.check_ranks() == b.check_ranks() &&
         SamePlacement(a, b);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CommandExecutor::Model>> CommandExecutor::OpenModel(
    const std::string& path) {
  SWITCHYARD_ASSIGN_OR_RETURN(model::GgufFile file, model::GgufFile::Open(path));
  SWITCHYARD_ASSIGN_OR_RETURN(model::ModelSpec spec, model::LoadModelSpec(file));
  SWITCHYARD_ASSIGN_OR_RETURN(std::string digest, model::ModelDigest(file));
  return std::make_unique<Model>(Model{std::move(file), std::move(spec), std::move(digest)});
}

absl::StatusOr<std::unique_ptr<CommandExecutor>> CommandExecutor::Create(
    const std::string& model_path, CommandExecutorOptions options) {
  std::unique_ptr<CommandExecutor> executor(new CommandExecutor(std::move(options)));
  if (!model_path.empty()) {
    SWITCHYARD_ASSIGN_OR_RETURN(executor->model_, OpenModel(model_path));
    executor->own_digest_ = executor->model_->digest;
  }
  executor->thread_ = std::thread([self = executor.get()] { self->RunTasks(); });
  return executor;
}

CommandExecutor::~CommandExecutor() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
    has_session_ = false;
    CancelFormingLocked(Cancelled("the worker ends"));
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  worker_.reset();  // its thread calls OnResult()
}

// ---- sessions -----------------------------------------------------------------------------------

void CommandExecutor::BeginSession(Send send) {
  std::lock_guard lock(mutex_);
  ++session_;
  has_session_ = true;
  has_fault_ = false;
  acknowledged_ = 0;
  send_ = std::move(send);
}

void CommandExecutor::Execute(v1::WorkerSessionResponse command) {
  {
    std::lock_guard lock(mutex_);
    if (command.has_rendezvous_data()) {
      // The command thread waits for it.
      if (rendezvous_ != nullptr && command.epoch() == forming_epoch_) {
        rendezvous_->Deliver(std::move(*command.mutable_rendezvous_data()));
      }
      return;
    }
    if (command.epoch() > forming_epoch_) {
      CancelFormingLocked(absl::AbortedError("a newer epoch has begun"));
    }
    tasks_.push_back({.session = session_, .command = std::move(command)});
  }
  changed_.notify_all();
}

void CommandExecutor::CancelFormingLocked(const absl::Status& reason) {
  if (rendezvous_ != nullptr) rendezvous_->Cancel(reason);
}

void CommandExecutor::EndSession() {
  {
    std::lock_guard lock(mutex_);
    if (!has_session_) return;
    has_session_ = false;
    send_ = nullptr;
    tasks_.clear();
    tasks_.push_back({.session = session_, .command = std::nullopt});
    CancelFormingLocked(absl::AbortedError("the session has ended"));
  }
  changed_.notify_all();
}

void CommandExecutor::SendLocked(uint64_t session, v1::WorkerSessionRequest message) {
  if (!has_session_ || session != session_ || has_fault_) return;
  message.set_epoch(epoch_);
  message.set_acknowledged_command_id(acknowledged_);
  send_(std::move(message));
}

void CommandExecutor::Answer(uint64_t session, v1::WorkerSessionRequest message) {
  std::lock_guard lock(mutex_);
  SendLocked(session, std::move(message));
}

void CommandExecutor::ReportFault(uint64_t session, const absl::Status& status) {
  v1::WorkerSessionRequest message;
  message.mutable_fault()->set_code(static_cast<int>(status.code()));
  message.mutable_fault()->set_message(std::string(Message(status)));
  std::lock_guard lock(mutex_);
  if (failure_.ok()) LogWarning("{}", Message(status));  // else the process ends with it
  SendLocked(session, std::move(message));
  has_fault_ = has_fault_ || session == session_;
}

// ---- the command thread -------------------------------------------------------------------------

void CommandExecutor::RunTasks() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_stopping_ || !tasks_.empty(); });
    if (is_stopping_) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    if (task.command && (task.session != session_ || has_fault_)) continue;
    hands_plan_on_ = task.command && task.command->has_step_plan();
    lock.unlock();
    const absl::Status status =
        task.command ? RunCommand(task) : Reset(/*epoch=*/0, worker_options_);
    if (!status.ok()) ReportFault(task.session, status);
    lock.lock();
    hands_plan_on_ = false;
  }
}

absl::Status CommandExecutor::RunCommand(const Task& task) {
  const v1::WorkerSessionResponse& command = *task.command;
  {
    std::lock_guard lock(mutex_);
    if (command.epoch() < epoch_) {
      if (command.has_step_plan()) ++status_.num_dropped_plans;
      return absl::OkStatus();
    }
    acknowledged_ = std::max(acknowledged_, command.command_id());
  }
  switch (command.command_case()) {
    case v1::WorkerSessionResponse::kConfigure:
      return Configure(task.session, command.epoch(), command.configure());
    case v1::WorkerSessionResponse::kBeginEpoch:
      return BeginEpoch(task.session, command.epoch(), command.begin_epoch());
    case v1::WorkerSessionResponse::kFormGroup:
      return FormGroup(task.session, command.epoch(), command.form_group());
    case v1::WorkerSessionResponse::kStepPlan:
      return SubmitPlan(task);
    default:
      return InvalidArgument("command is unknown: command, got: {}",
                             static_cast<int>(command.command_case()));
  }
}

absl::Status CommandExecutor::Reset(uint64_t epoch, const WorkerOptions& options) {
  WorkerOptions next = options;
  next.epoch = epoch;
  {
    std::lock_guard lock(mutex_);
    if (worker_ != nullptr) abort_since_ = Now();
  }
  const absl::Status status = worker_ != nullptr ? worker_->Reset(next) : absl::OkStatus();
  std::lock_guard lock(mutex_);
  abort_since_.reset();
  status_.num_dropped_plans += plans_.size();
  plans_.clear();
  epoch_ = epoch;
  is_linked_ = false;
  if (status.ok()) {
    worker_options_ = next;
  } else if (status.code() != absl::StatusCode::kInvalidArgument && failure_.ok()) {
    failure_ = status;
  }
  return status;
}

// ---- loading ------------------------------------------------------------------------------------

absl::Status CommandExecutor::ChooseModel(const v1::Configure& configure) {
  if (model_ == nullptr || (own_digest_.empty() && model_->digest != configure.model_digest())) {
    SWITCHYARD_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, OpenModel(configure.model_path()));
    worker_.reset();
    model_ = std::move(model);
  }
  if (model_->digest == configure.model_digest()) return absl::OkStatus();
  return FailedPrecondition("model file is another one: {}, digest: {}, wanted: {}",
                            model_->file.path(0), model_->digest, configure.model_digest());
}

absl::Status CommandExecutor::Configure(uint64_t session, uint64_t epoch,
                                        const v1::Configure& configure) {
  SWITCHYARD_ASSIGN_OR_RETURN(const WorkerOptions options, OptionsOf(epoch, configure));
  if (worker_ == nullptr || !SameWeights(configured_, configure)) {
    SWITCHYARD_RETURN_IF_ERROR(Load(session, configure, options));
  } else {
    SWITCHYARD_RETURN_IF_ERROR(Reset(epoch, options));
  }
  v1::WorkerSessionRequest message;
  v1::ShardReady& ready = *message.mutable_shard_ready();
  const WorkerMemory& memory = worker_->memory();
  ready.set_weight_bytes(static_cast<uint64_t>(memory.weight_bytes));
  ready.set_file_bytes(static_cast<uint64_t>(memory.file_bytes));
  ready.set_mapped_bytes(static_cast<uint64_t>(memory.mapped_bytes));
  ready.set_device(worker_->backend().Describe());
  std::lock_guard lock(mutex_);
  epoch_ = epoch;
  is_linked_ = false;
  result_session_ = session;
  SendLocked(session, std::move(message));
  return absl::OkStatus();
}

absl::Status CommandExecutor::Load(uint64_t session, const v1::Configure& configure,
                                   const WorkerOptions& options) {
  {
    std::lock_guard lock(mutex_);
    is_loading_ = true;
    loading_digest_ = configure.model_digest();
    status_.device.clear();
    status_.weight_bytes = 0;
    residency_source_ = nullptr;
  }
  worker_.reset();  // no room for two
  last_progress_ = 0;
  absl::Status status = ChooseModel(configure);
  if (status.ok()) {
    auto backend = options_.make_backend(configure);
    status = backend.status();
    if (status.ok()) {
      auto worker = Worker::Create(
          model_->file, model_->spec, *std::move(backend), options,
          [&](int64_t done, int64_t total) { return OnLoadProgress(session, done, total); });
      status = worker.status();
      if (status.ok()) worker_ = *std::move(worker);
    }
  }
  std::lock_guard lock(mutex_);
  is_loading_ = false;
  if (!status.ok()) {
    failure_ = status;
    return status;
  }
  configured_ = configure;
  worker_options_ = options;
  is_alone_ = options.placement.world_size() < 2;
  leads_ = is_alone_ || options.rank == placement::LeadRank(options.placement);
  status_.device = worker_->backend().Describe();
  status_.weight_bytes = static_cast<uint64_t>(worker_->memory().weight_bytes);
  residency_source_ = worker_.get();
  worker_->Start([this](const v1::StepResult& result) { OnResult(result); },
                 [this](const absl::Status& status) { OnGroupLost(status); });
  return absl::OkStatus();
}

absl::Status CommandExecutor::OnLoadProgress(uint64_t session, int64_t done_bytes,
                                             int64_t total_bytes) {
  std::lock_guard lock(mutex_);
  if (is_stopping_) return absl::CancelledError("loading was ended");
  const double now = Now();
  if (now - last_progress_ < options_.progress_seconds && done_bytes < total_bytes) {
    return absl::OkStatus();
  }
  last_progress_ = now;
  // A session that began meanwhile and waits for the same weights is told, too.
  const bool is_wanted = std::any_of(tasks_.begin(), tasks_.end(), [&](const Task& task) {
    return task.session == session_ && task.command && task.command->has_configure() &&
           task.command->configure().model_digest() == loading_digest_;
  });
  v1::WorkerSessionRequest message;
  message.mutable_shard_progress()->set_done_bytes(static_cast<uint64_t>(done_bytes));
  message.mutable_shard_progress()->set_total_bytes(static_cast<uint64_t>(total_bytes));
  SendLocked(is_wanted ? session_ : session, std::move(message));
  return absl::OkStatus();
}

absl::Status CommandExecutor::BeginEpoch(uint64_t session, uint64_t epoch,
                                         const v1::BeginEpoch& begin) {
  if (worker_ == nullptr) {
    return InvalidArgument("epoch begins before anything was loaded: begin_epoch");
  }
  uint64_t num_dropped = 0;
  {
    std::lock_guard lock(mutex_);
    num_dropped = status_.num_dropped_plans;
  }
  WorkerOptions options = worker_options_;
  SWITCHYARD_RETURN_IF_ERROR(SetSizes(begin.sizes(), options));
  SWITCHYARD_RETURN_IF_ERROR(Reset(epoch, options));
  v1::WorkerSessionRequest message;
  std::lock_guard lock(mutex_);
  result_session_ = session;
  message.mutable_epoch_entered()->set_num_dropped_plans(status_.num_dropped_plans - num_dropped);
  SendLocked(session, std::move(message));
  return absl::OkStatus();
}

// ---- groups -------------------------------------------------------------------------------------

absl::Status CommandExecutor::FormGroup(uint64_t session, uint64_t epoch,
                                        const v1::FormGroup& form) {
  if (worker_ == nullptr || worker_options_.placement.world_size() < 2) {
    return InvalidArgument("there are no other ranks to link up with: form_group");
  }
  if (epoch != worker_options_.epoch) {
    return InvalidArgument("group is of an epoch that was not entered: epoch, got: {}, present: {}",
                           epoch, worker_options_.epoch);
  }
  const auto rendezvous =
      std::make_shared<SessionRendezvous>([this, session](v1::RendezvousEntry entry) {
        v1::WorkerSessionRequest message;
        *message.mutable_rendezvous_entry() = std::move(entry);
        Answer(session, std::move(message));
      });
  {
    std::lock_guard lock(mutex_);
    rendezvous_ = rendezvous;
    forming_epoch_ = epoch;
    // It may have come too late, as long as nobody could be told.
    const bool is_over = session != session_ || !has_session_ || is_stopping_ ||
                         std::any_of(tasks_.begin(), tasks_.end(), [&](const Task& task) {
                           return !task.command || task.command->epoch() > epoch;
                         });
    if (is_over) CancelFormingLocked(absl::AbortedError("the epoch is over"));
  }
  absl::StatusOr<GroupLinks> links = absl::CancelledError();
  const LinkOptions link = {.num_compute_threads = options_.num_threads(configured_),
                            .faults = options_.link_faults};
  if (rendezvous->cancelled().ok()) {
    links = MakeGroupLinks(form, worker_options_, link, *rendezvous);
  }
  {
    std::lock_guard lock(mutex_);
    rendezvous_.reset();
  }
  if (!rendezvous->cancelled().ok()) return absl::OkStatus();  // nobody waits for an answer
  v1::WorkerSessionRequest message;
  if (links.ok()) {
    SWITCHYARD_RETURN_IF_ERROR(worker_->Join(*std::move(links)));
    message.mutable_group_formed();
  } else {
    LogWarning("cannot link up with the other ranks: {}", Message(links.status()));
    message.mutable_group_lost()->set_code(static_cast<int>(links.status().code()));
    message.mutable_group_lost()->set_message(std::string(Message(links.status())));
  }
  std::lock_guard lock(mutex_);
  is_linked_ = links.ok();
  SendLocked(session, std::move(message));
  return absl::OkStatus();
}

void CommandExecutor::OnGroupLost(const absl::Status& status) {
  v1::WorkerSessionRequest message;
  message.mutable_group_lost()->set_code(static_cast<int>(status.code()));
  message.mutable_group_lost()->set_message(std::string(Message(status)));
  std::lock_guard lock(mutex_);
  status_.num_dropped_plans += plans_.size();
  plans_.clear();
  is_linked_ = false;
  SendLocked(result_session_, std::move(message));
}

// ---- plans --------------------------------------------------------------------------------------

absl::Status CommandExecutor::SubmitPlan(const Task& task) {
  const v1::StepPlan& plan = task.command->step_plan();
  if (worker_ == nullptr) {
    return InvalidArgument("plan comes before anything was loaded: step_plan");
  }
  {
    // Before the worker has it: its result may come at once.
    std::lock_guard lock(mutex_);
    plans_.insert(plan.plan());
  }
  const absl::Status status = worker_->Submit(plan);
  if (status.ok()) return status;
  std::lock_guard lock(mutex_);
  plans_.erase(plan.plan());
  // A step has failed: that was told already.
  return failure_.ok() ? status : absl::OkStatus();
}

void CommandExecutor::OnResult(const v1::StepResult& result) {
  v1::WorkerSessionRequest message;
  std::lock_guard lock(mutex_);
  if (!result.error().empty()) failure_ = Internal("step failed: {}", result.error());
  if (leads_) {
    *message.mutable_step_result() = result;
  } else {
    // Ranks that follow have no results; one that is called has an error.
    message.mutable_fault()->set_code(static_cast<int>(failure_.code()));
    message.mutable_fault()->set_message(std::string(Message(failure_)));
  }
  SendLocked(result_session_, std::move(message));
  if (result.last_of_plan()) plans_.erase(result.plan());
  status_.last_plan = result.plan();
  status_.last_step = result.step();
  slowest_step_seconds_ = std::max(slowest_step_seconds_, result.seconds());
  telemetry_.set_num_steps(telemetry_.num_steps() + 1);
  telemetry_.set_step_seconds(telemetry_.step_seconds() + result.seconds());
  uint64_t num_tokens = telemetry_.num_tokens();
  for (const v1::SlotResult& slot : result.slots()) {
    num_tokens += static_cast<uint64_t>(slot.token_ids_size());
  }
  telemetry_.set_num_tokens(num_tokens);
  for (const v1::StageCost& cost : result.costs()) {
    auto* costs = telemetry_.mutable_costs();
    auto sum = std::find_if(costs->begin(), costs->end(),
                            [&](const v1::StageCost& c) { return c.stage() == cost.stage(); });
    v1::StageCost& entry = sum != costs->end() ? *sum : *costs->Add();
    entry.set_stage(cost.stage());
    entry.set_seconds(entry.seconds() + cost.seconds());
    entry.set_weight_bytes(entry.weight_bytes() + cost.weight_bytes());
  }
}

// ---- for others ---------------------------------------------------------------------------------

ExecutorStatus CommandExecutor::status() const {
  std::lock_guard lock(mutex_);
  ExecutorStatus out = status_;
  out.epoch = epoch_;
  out.num_waiting_plans = static_cast<uint32_t>(plans_.size());
  out.has_plans = hands_plan_on_ || !plans_.empty() ||
                  std::any_of(tasks_.begin(), tasks_.end(), [](const Task& task) {
                    return task.command && task.command->has_step_plan();
                  });
  if (is_loading_) {
    out.state = v1::WORKER_STATE_LOADING;
  } else if (!status_.device.empty() && has_session_ && epoch_ > 0 && (is_linked_ || is_alone_)) {
    out.state = plans_.empty() ? v1::WORKER_STATE_READY : v1::WORKER_STATE_BUSY;
  }
  return out;
}

absl::Status CommandExecutor::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

bool CommandExecutor::IsStuck(const Clock& clock) const {
  std::lock_guard lock(mutex_);
  if (!abort_since_) return false;
  const double limit = slowest_step_seconds_ == 0
                           ? options_.first_step_seconds
                           : std::max(options_.abort_seconds, 20 * slowest_step_seconds_);
  return clock.NowSeconds() - *abort_since_ > limit;
}

absl::StatusOr<v1::Residency> CommandExecutor::Residency() const {
  std::lock_guard lock(mutex_);
  if (residency_source_ == nullptr) return FailedPrecondition("nothing is loaded");
  return ResidencyMessage(residency_source_->residency());
}

v1::StreamTelemetryResponse CommandExecutor::Telemetry() const {
  std::lock_guard lock(mutex_);
  return telemetry_;
}

}  // namespace switchyard::worker
