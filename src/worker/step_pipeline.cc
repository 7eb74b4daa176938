#include "worker/step_pipeline.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/status_macros.h"

namespace switchyard::worker {
namespace {

double Now() { return MonotonicClock::Get().NowSeconds(); }

}  // namespace

void StepPipeline::Clear() {
  parts_.clear();
  steps_.clear();
  newest_.reset();
}

std::shared_ptr<StepPipeline::Step> StepPipeline::NewStep(std::shared_ptr<const v1::StepPlan> plan,
                                                          uint32_t step) {
  std::shared_ptr<Step> next;
  if (free_steps_.empty()) {
    next = std::make_shared<Step>();
  } else {
    next = std::move(free_steps_.back());
    free_steps_.pop_back();
  }
  next->result.Clear();
  next->result.set_plan(plan->plan());
  next->result.set_step(step);
  if (step == 0) next->result.set_idle_seconds(std::exchange(idle_seconds_, 0));
  next->plan = std::move(plan);
  next->step = step;
  next->num_prepared = next->num_unfinished = 0;
  next->has_parts = next->is_last = false;
  steps_.push_back(next);
  return next;
}

bool StepPipeline::IsUnfinished(const v1::StepPlan& plan, int group) const {
  for (const UnfinishedPart& part : parts_) {
    for (int i = group; i < plan.decode_size(); i += num_groups_) {
      if (part.part->has_slot(static_cast<int>(plan.decode(i).slot()))) return true;
    }
  }
  return false;
}

absl::StatusOr<bool> StepPipeline::BeginPlan(PlanSource& source) {
  const v1::StepPlan* const waiting = source.Peek();
  if (waiting == nullptr) return false;
  unfinished_.clear();
  for (const UnfinishedPart& part : parts_) unfinished_.push_back(part.part.get());
  if (!executor_.CanBegin(*waiting, unfinished_)) return false;
  auto plan = std::make_shared<const v1::StepPlan>(source.Take());
  num_groups_ = std::clamp(plan->decode_size(), 1, depth_);
  newest_ = NewStep(plan, 0);
  SWITCHYARD_RETURN_IF_ERROR(executor_.Begin(*plan));
  return true;
}

void StepPipeline::EndOrGoOn(PlanSource& source) {
  const v1::StepPlan& plan = *newest_->plan;
  const bool may = newest_->step + 1 < plan.run_ahead() && source.MayGoOn();
  // Decided once: a plan that arrives from here on waits for one more step at most.
  if (may && (newest_->num_unfinished > 0 || executor_.HasStepAfter(plan, newest_->step))) {
    newest_ = NewStep(newest_->plan, newest_->step + 1);
    return;
  }
  newest_->is_last = true;
  newest_.reset();
}

absl::StatusOr<bool> StepPipeline::PrepareNext(PlanSource& source) {
  if (newest_ == nullptr) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_begun, BeginPlan(source));
    if (!has_begun) return false;
  }
  if (newest_->num_prepared == num_groups_) {
    const v1::StepPlan& plan = *newest_->plan;
    const bool ends = newest_->step + 1 >= plan.run_ahead() || !source.MayGoOn();
    if (!ends && (newest_->num_unfinished == num_groups_ || IsUnfinished(plan, 0))) return false;
    // With one part a step the end is known when the part is done.
    if (!ends && num_groups_ == 1 && newest_->num_unfinished > 0) return false;
    EndOrGoOn(source);
    return true;
  }
  const int group = newest_->num_prepared;
  if (newest_->step > 0 && IsUnfinished(*newest_->plan, group)) return false;
  std::unique_ptr<StepExecutor::Part> part;
  if (free_parts_.empty()) {
    part = std::make_unique<StepExecutor::Part>();
  } else {
    part = std::move(free_parts_.back());
    free_parts_.pop_back();
  }
  SWITCHYARD_ASSIGN_OR_RETURN(
      const bool has_work,
      executor_.Prepare(*newest_->plan, newest_->step, group, num_groups_, *part, newest_->result));
  ++newest_->num_prepared;
  if (!has_work) {
    free_parts_.push_back(std::move(part));
    return true;
  }
  ++newest_->num_unfinished;
  newest_->has_parts = true;
  parts_.push_back({newest_, std::move(part)});
  return true;
}

absl::Status StepPipeline::ExecuteOldest() {
  SWITCHYARD_RETURN_IF_ERROR(executor_.Execute(*parts_.front().part));
  --parts_.front().of->num_unfinished;
  free_parts_.push_back(std::move(parts_.front().part));
  parts_.pop_front();
  return absl::OkStatus();
}

void StepPipeline::DeliverComplete(PlanSource& source) {
  while (!steps_.empty()) {
    const std::shared_ptr<Step> step = steps_.front();
    if (step->num_unfinished > 0) return;
    if (step == newest_) {
      if (step->num_prepared < num_groups_) return;
      EndOrGoOn(source);
    }
    if (!step->is_last) {
      // A step that was begun for slots which have all stopped meanwhile is none.
      const std::shared_ptr<Step> next = steps_[1];
      if (!next->has_parts && !executor_.HasStepAfter(*step->plan, step->step)) {
        if (newest_ == next) newest_.reset();
        steps_.erase(steps_.begin() + 1);
        step->is_last = true;
      }
    }
    steps_.pop_front();
    executor_.Report(Now() - step_start_, step->result);
    step->result.set_last_of_plan(step->is_last);
    source.Deliver(step->result);
    step_start_ = Now();
    step->plan.reset();
    if (free_steps_.size() < static_cast<size_t>(depth_) + 1) free_steps_.push_back(step);
  }
}

absl::Status StepPipeline::Run(PlanSource& source, double idle_seconds) {
  idle_seconds_ = idle_seconds;
  step_start_ = Now();
  while (true) {
    while (parts_.size() < static_cast<size_t>(depth_)) {
      SWITCHYARD_ASSIGN_OR_RETURN(const bool has_prepared, PrepareNext(source));
      if (!has_prepared) break;
      DeliverComplete(source);
    }
    if (parts_.empty()) return absl::OkStatus();
    SWITCHYARD_RETURN_IF_ERROR(ExecuteOldest());
    DeliverComplete(source);
  }
}

}  // namespace switchyard::worker
