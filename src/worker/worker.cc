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
#include "worker/plan_validator.h"
#include "worker/step_executor.h"

namespace switchyard::worker {

struct Worker::Impl {
  explicit Impl(std::unique_ptr<StepExecutor> step_executor)
      : executor(std::move(step_executor)), validator(executor->limits()) {}

  // Body of the step thread.
  void RunPlans();
  // Waits for a plan; false = stop. Sets idle_seconds.
  bool TakePlan(v1::StepPlan& plan);
  void RunPlan(const v1::StepPlan& plan);
  void ReportFailure(const v1::StepPlan& plan, uint32_t step, const absl::Status& status);
  // Whether plans are taken. REQUIRES: `mutex` is held.
  absl::Status CheckAlive() const;

  std::unique_ptr<StepExecutor> executor;  // of the step thread, once it runs
  ResultCallback callback;
  v1::StepResult result;    // of the step thread; reused
  double idle_seconds = 0;  // of the step thread: how long it waited for the running plan
  std::thread thread;

  std::mutex join_mutex;  // guards the join of `thread`
  std::mutex mutex;       // guards what follows
  std::condition_variable changed;
  PlanValidator validator;
  std::deque<v1::StepPlan> plans;
  bool is_running = false;    // the step thread has a plan
  bool is_resetting = false;  // it is to take none, and to end the one it has
  bool stopping = false;
  absl::Status failure;
};

bool Worker::Impl::TakePlan(v1::StepPlan& plan) {
  const double start = MonotonicClock::Get().NowSeconds();
  std::unique_lock lock(mutex);
  if (is_running) {
    is_running = false;
    changed.notify_all();  // Reset() may wait for it
  }
  changed.wait(lock, [&] { return stopping || (!is_resetting && !plans.empty()); });
  if (stopping) return false;
  is_running = true;
  plan = std::move(plans.front());
  plans.pop_front();
  idle_seconds = MonotonicClock::Get().NowSeconds() - start;
  return true;
}

void Worker::Impl::RunPlans() {
  executor->backend().BindStepThread();
  v1::StepPlan plan;
  while (TakePlan(plan)) RunPlan(plan);
}

void Worker::Impl::RunPlan(const v1::StepPlan& plan) {
  absl::Status status = executor->Begin(plan);
  for (uint32_t step = 0;; ++step) {
    if (status.ok()) status = executor->RunStep(plan, step, result);
    if (!status.ok()) return ReportFailure(plan, step, status);
    bool go_on = executor->HasStepAfter(plan, step);
    {
      // Decided once: a plan that arrives from here on waits for one more step at most.
      std::lock_guard lock(mutex);
      go_on = go_on && plans.empty() && !stopping && !is_resetting;
    }
    result.set_last_of_plan(!go_on);
    if (step == 0) result.set_idle_seconds(idle_seconds);
    callback(result);
    if (!go_on) return;
  }
}

void Worker::Impl::ReportFailure(const v1::StepPlan& plan, uint32_t step,
                                 const absl::Status& status) {
  {
    std::lock_guard lock(mutex);
    failure = status;
    plans.clear();
    stopping = true;
  }
  result.Clear();
  result.set_plan(plan.plan());
  result.set_step(step);
  result.set_last_of_plan(true);
  result.set_error(std::string(Message(status)));
  callback(result);
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
  SWITCHYARD_ASSIGN_OR_RETURN(
      std::unique_ptr<StepExecutor> executor,
      StepExecutor::Create(file, spec, std::move(backend), options, progress));
  return std::unique_ptr<Worker>(new Worker(std::make_unique<Impl>(std::move(executor))));
}

Worker::Worker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Worker::~Worker() { Stop(); }

const WorkerMemory& Worker::memory() const { return impl_->executor->memory(); }

const kernels::Backend& Worker::backend() const { return impl_->executor->backend(); }

void Worker::Start(ResultCallback callback) {
  SWITCHYARD_CHECK(!impl_->thread.joinable());
  impl_->callback = std::move(callback);
  impl_->thread = std::thread([impl = impl_.get()] { impl->RunPlans(); });
}

absl::Status Worker::Submit(v1::StepPlan plan) {
  std::lock_guard lock(impl_->mutex);
  SWITCHYARD_RETURN_IF_ERROR(impl_->CheckAlive());
  SWITCHYARD_RETURN_IF_ERROR(impl_->validator.Accept(plan));
  impl_->plans.push_back(std::move(plan));
  impl_->changed.notify_all();
  return absl::OkStatus();
}

absl::Status Worker::Reset(const WorkerOptions& options) {
  std::unique_lock lock(impl_->mutex);
  SWITCHYARD_RETURN_IF_ERROR(impl_->CheckAlive());
  SWITCHYARD_RETURN_IF_ERROR(impl_->executor->CheckOptions(options));
  impl_->is_resetting = true;
  impl_->changed.wait(lock, [&] { return !impl_->is_running; });
  impl_->is_resetting = false;
  impl_->plans.clear();
  // The running step may have failed, or Stop() been called.
  SWITCHYARD_RETURN_IF_ERROR(impl_->CheckAlive());
  // The step thread waits for `mutex` or for a plan: the executor is nobody else's.
  const absl::Status status = impl_->executor->Reset(options);
  if (!status.ok()) {
    impl_->failure = status;
    impl_->stopping = true;
    impl_->changed.notify_all();
    return status;
  }
  impl_->validator = PlanValidator(impl_->executor->limits());
  return absl::OkStatus();
}

void Worker::Stop() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->changed.notify_all();
  std::lock_guard lock(impl_->join_mutex);  // only one of several callers may join
  if (impl_->thread.joinable()) impl_->thread.join();
}

}  // namespace switchyard::worker
