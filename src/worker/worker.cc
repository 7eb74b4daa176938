#include "worker/worker.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "worker/ledger.h"
#include "worker/plan_validator.h"
#include "worker/rank_executor.h"
#include "worker/rank_ledgers.h"
#include "worker/step_channel.h"
#include "worker/step_executor.h"
#include "worker/step_header.h"
#include "worker/step_pipeline.h"

namespace switchyard::worker {

struct Worker::Impl : public PlanSource {
  // Of the lead rank.
  explicit Impl(std::unique_ptr<StepExecutor> step_executor)
      : lead(std::move(step_executor)), validator(lead->limits()), rank(lead->rank()) {
    const placement::RankShare& share = rank.share();
    const bool is_split = share.mode == placement::v1::MODE_LAYER_SPLIT;
    pipeline = std::make_unique<StepPipeline>(*lead, is_split ? share.world_size : 1);
  }
  // Of another one.
  explicit Impl(std::unique_ptr<RankExecutor> rank_executor)
      : follower(std::move(rank_executor)), rank(*follower) {}

  bool has_peers() const { return rank.share().world_size > 1; }

  // Body of the step thread.
  void RunSteps();
  // Waits for a plan; false = stop.
  bool WaitForPlan(double& idle_seconds);
  // How plans reach the pipeline.
  const v1::StepPlan* Peek() override;
  v1::StepPlan Take() override;
  bool MayGoOn() override;
  void Deliver(const v1::StepResult& step_result) override { callback(step_result); }
  // Waits for links to a lead rank; null = stop.
  GroupLinks* TakeLinks();
  // Does what the lead rank says until that fails.
  absl::Status FollowLead(GroupLinks& group);
  // A step has failed: by a fault of the group, or of this worker.
  void OnFailure(uint64_t plan, uint32_t step, const absl::Status& status);
  // Whether plans are taken. REQUIRES: `mutex` is held.
  absl::Status CheckAlive() const;
  // Releases the step thread if it waits for another rank. REQUIRES: `mutex` is held.
  void AbortLinks();

  const model::ModelSpec* spec = nullptr;
  WorkerOptions options;                   // guarded by `mutex`
  std::unique_ptr<StepExecutor> lead;      // of the step thread, once it runs; null = follows
  std::unique_ptr<StepPipeline> pipeline;  // the same
  PlanValidator validator{PlanLimits{}};   // guarded by `mutex`
  std::unique_ptr<RankExecutor> follower;  // as `lead`
  RankExecutor& rank;
  ResultCallback callback;
  GroupLostCallback on_group_lost;
  v1::StepResult result;  // of the step thread: an error
  StepHeader header;      // of the step thread of one that follows
  Ledger ledger;          // the same
  std::thread thread;

  std::mutex join_mutex;  // guards the join of `thread`
  std::mutex mutex;       // guards what follows
  std::condition_variable changed;
  std::deque<v1::StepPlan> plans;
  GroupLinks links;            // of the present epoch; null = has not joined
  bool is_group_lost = false;  // in this epoch
  bool is_running = false;     // the step thread has a plan, or follows
  bool is_resetting = false;   // it is to take none, and to end the one it has
  bool stopping = false;
  absl::Status failure;
};

bool Worker::Impl::WaitForPlan(double& idle_seconds) {
  const double start = MonotonicClock::Get().NowSeconds();
  std::unique_lock lock(mutex);
  if (is_running) {
    is_running = false;
    changed.notify_all();  // Reset() may wait for it
  }
  changed.wait(lock, [&] { return stopping || (!is_resetting && !plans.empty()); });
  if (stopping) return false;
  is_running = true;
  idle_seconds = MonotonicClock::Get().NowSeconds() - start;
  return true;
}

const v1::StepPlan* Worker::Impl::Peek() {
  std::lock_guard lock(mutex);
  if (stopping || is_resetting || plans.empty()) return nullptr;
  return &plans.front();  // stays where it is while others are added
}

v1::StepPlan Worker::Impl::Take() {
  std::lock_guard lock(mutex);
  v1::StepPlan plan = std::move(plans.front());
  plans.pop_front();
  return plan;
}

bool Worker::Impl::MayGoOn() {
  std::lock_guard lock(mutex);
  return plans.empty() && !stopping && !is_resetting;
}

GroupLinks* Worker::Impl::TakeLinks() {
  std::unique_lock lock(mutex);
  if (is_running) {
    is_running = false;
    changed.notify_all();
  }
  changed.wait(lock, [&] {
    return stopping || (!is_resetting && !is_group_lost && links.control != nullptr);
  });
  if (stopping) return nullptr;
  is_running = true;
  return &links;
}

absl::Status Worker::Impl::FollowLead(GroupLinks& group) {
  StepChannel channel(*group.control, rank.share().lead_rank);
  RankLedgers ledgers(*group.tensors, rank.share().lead_rank);
  rank.SetRanks(group.tensors.get());
  const StepHeaderLimits limits = rank.header_limits();
  ledger.Reset();
  double end = MonotonicClock::Get().NowSeconds();
  double carried_seconds = 0;
  for (uint64_t step = 0;; ++step) {
    SWITCHYARD_RETURN_IF_ERROR(channel.Receive(header));
    const double start = MonotonicClock::Get().NowSeconds();
    if (header.epoch != group.control->epoch() || header.step != step) {
      return FailedPrecondition("step is out of order: epoch {} step {}, wanted: epoch {} step {}",
                                header.epoch, header.step, group.control->epoch(), step);
    }
    SWITCHYARD_RETURN_IF_ERROR(CheckStepHeader(header, limits));
    SWITCHYARD_RETURN_IF_ERROR(rank.RunRows(header, ledger));
    const double computed = MonotonicClock::Get().NowSeconds();
    ledgers.Close(ledger, computed - start + carried_seconds, start - end);
    SWITCHYARD_RETURN_IF_ERROR(ledgers.Send());
    // Saving states need not keep the lead waiting; it counts with the next step.
    ledger.Reset();
    SWITCHYARD_RETURN_IF_ERROR(rank.Finish(header, ledger));
    end = MonotonicClock::Get().NowSeconds();
    carried_seconds = end - computed;
  }
}

void Worker::Impl::RunSteps() {
  rank.backend().BindStepThread();
  if (follower != nullptr) {
    while (GroupLinks* const group = TakeLinks()) OnFailure(0, 0, FollowLead(*group));
    return;
  }
  double idle_seconds = 0;
  while (WaitForPlan(idle_seconds)) {
    const absl::Status status = pipeline->Run(*this, idle_seconds);
    if (status.ok()) continue;
    OnFailure(pipeline->failed_plan(), pipeline->failed_step(), status);
    pipeline->Clear();
  }
}

void Worker::Impl::OnFailure(uint64_t plan, uint32_t step, const absl::Status& status) {
  bool is_group_fault = false;
  {
    std::lock_guard lock(mutex);
    is_group_fault =
        links.tensors != nullptr && !(links.tensors->Health().ok() && links.control->Health().ok());
    plans.clear();
    if (!is_group_fault) {
      failure = status;
      stopping = true;
    }
    // Whoever waits for this rank need not.
    if (links.tensors != nullptr) links.tensors->Abort(status);
    if (links.control != nullptr) links.control->Abort(status);
    is_group_lost = is_group_fault;
    if (is_group_fault && (stopping || is_resetting)) return;  // it was ended here
  }
  if (is_group_fault) {
    if (on_group_lost) on_group_lost(status);
    return;
  }
  result.Clear();
  result.set_plan(plan);
  result.set_step(step);
  result.set_last_of_plan(true);
  result.set_error(std::string(Message(status)));
  callback(result);
}

void Worker::Impl::AbortLinks() {
  const absl::Status reason = absl::AbortedError("the epoch has ended");
  if (links.tensors != nullptr) links.tensors->Abort(reason);
  if (links.control != nullptr) links.control->Abort(reason);
}

absl::Status Worker::Impl::CheckAlive() const {
  if (!failure.ok()) return Unavailable("worker has failed: {}", Message(failure));
  if (stopping) return Unavailable("worker has stopped");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(const model::GgufFile& file,
                                                       const model::ModelSpec& spec,
                                                       std::unique_ptr<kernels::Backend> backend,
                                                       const WorkerOptions& options,
                                                       const LoadProgress& progress) {
  const bool leads =
      options.placement.world_size() <= 1 || options.rank == placement::LeadRank(options.placement);
  std::unique_ptr<Impl> impl;
  if (leads) {
    SWITCHYARD_ASSIGN_OR_RETURN(
        std::unique_ptr<StepExecutor> executor,
        StepExecutor::Create(file, spec, std::move(backend), options, progress));
    impl = std::make_unique<Impl>(std::move(executor));
  } else {
    SWITCHYARD_RETURN_IF_ERROR(CheckWorkerOptions(options, spec));
    SWITCHYARD_ASSIGN_OR_RETURN(
        std::unique_ptr<RankExecutor> executor,
        RankExecutor::Create(file, spec, std::move(backend), options, progress));
    impl = std::make_unique<Impl>(std::move(executor));
  }
  impl->spec = &spec;
  impl->options = options;
  return std::unique_ptr<Worker>(new Worker(std::move(impl)));
}

Worker::Worker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Worker::~Worker() { Stop(); }

const WorkerMemory& Worker::memory() const { return impl_->rank.memory(); }

const kernels::Backend& Worker::backend() const { return impl_->rank.backend(); }

ResidencySnapshot Worker::residency() const { return impl_->rank.residency(); }

void Worker::Start(ResultCallback callback, GroupLostCallback on_group_lost) {
  SWITCHYARD_CHECK(!impl_->thread.joinable());
  impl_->callback = std::move(callback);
  impl_->on_group_lost = std::move(on_group_lost);
  impl_->thread = std::thread([impl = impl_.get()] { impl->RunSteps(); });
}

absl::Status Worker::Join(GroupLinks links) {
  SWITCHYARD_CHECK(links.tensors != nullptr && links.control != nullptr && impl_->has_peers());
  std::lock_guard lock(impl_->mutex);
  SWITCHYARD_RETURN_IF_ERROR(impl_->CheckAlive());
  if (impl_->links.tensors != nullptr) return FailedPrecondition("worker has joined its group");
  impl_->links = std::move(links);
  // The step thread waits for a plan or for links: the executor is nobody else's.
  if (impl_->lead != nullptr) {
    impl_->lead->Join(*impl_->links.tensors, *impl_->links.control);
  }
  impl_->changed.notify_all();
  return absl::OkStatus();
}

absl::Status Worker::Submit(v1::StepPlan plan) {
  std::lock_guard lock(impl_->mutex);
  SWITCHYARD_RETURN_IF_ERROR(impl_->CheckAlive());
  if (impl_->lead == nullptr)
    return FailedPrecondition("rank does not lead: plans are for another");
  if (impl_->has_peers() && impl_->links.tensors == nullptr) {
    return FailedPrecondition("worker has not joined its group");
  }
  SWITCHYARD_RETURN_IF_ERROR(impl_->validator.Accept(plan));
  if (impl_->is_group_lost) return absl::OkStatus();
  impl_->plans.push_back(std::move(plan));
  impl_->changed.notify_all();
  return absl::OkStatus();
}

absl::Status Worker::Reset(const WorkerOptions& options) {
  std::unique_lock lock(impl_->mutex);
  SWITCHYARD_RETURN_IF_ERROR(impl_->CheckAlive());
  SWITCHYARD_RETURN_IF_ERROR(CheckWorkerOptions(options, *impl_->spec));
  WorkerOptions next = options;
  next.placement = impl_->options.placement;
  next.rank = impl_->options.rank;
  impl_->is_resetting = true;
  impl_->AbortLinks();
  impl_->changed.wait(lock, [&] { return !impl_->is_running; });
  impl_->is_resetting = false;
  impl_->plans.clear();
  // The running step may have failed, or Stop() been called.
  SWITCHYARD_RETURN_IF_ERROR(impl_->CheckAlive());
  // The step thread waits for `mutex`, a plan or links: the executor is nobody else's.
  const absl::Status status =
      impl_->lead != nullptr ? impl_->lead->Reset(next) : impl_->follower->Reset(next);
  impl_->links = {};
  impl_->is_group_lost = false;
  if (!status.ok()) {
    impl_->failure = status;
    impl_->stopping = true;
    impl_->changed.notify_all();
    return status;
  }
  impl_->options = next;
  if (impl_->lead != nullptr) impl_->validator = PlanValidator(impl_->lead->limits());
  return absl::OkStatus();
}

void Worker::Stop() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    impl_->AbortLinks();
  }
  impl_->changed.notify_all();
  std::lock_guard lock(impl_->join_mutex);  // only one of several callers may join
  if (impl_->thread.joinable()) impl_->thread.join();
}

}  // namespace switchyard::worker
