#include "coordinator/lead_plans.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace switchyard::coordinator {

namespace v1 = switchyard::worker::v1;

void LeadPlans::Clear() {
  book_.Clear();
  held_.clear();
}

absl::StatusOr<std::optional<v1::StepPlan>> LeadPlans::Next(double now) {
  if (held_.empty()) return std::nullopt;
  v1::StepPlan plan = std::move(held_.front());
  held_.pop_front();
  if (book_.empty()) step_since_ = now;
  SWITCHYARD_RETURN_IF_ERROR(book_.Add(plan));
  return std::optional<v1::StepPlan>(std::move(plan));
}

absl::Status LeadPlans::Accept(const v1::StepResult& result, double now) {
  const auto rows = static_cast<double>(book_.next_rows());
  SWITCHYARD_RETURN_IF_ERROR(book_.Accept(result));
  if (rows > 0) {  // a step without rows says nothing about others
    slowest_step_seconds_ = std::max(slowest_step_seconds_, now - step_since_);
    slowest_row_seconds_ = std::max(slowest_row_seconds_, (now - step_since_) / rows);
  }
  step_since_ = now;
  return absl::OkStatus();
}

double LeadPlans::SecondsForStep(int64_t num_rows) const {
  if (slowest_step_seconds_ == 0) return limits_.first_seconds;
  const double expected =
      std::max(slowest_step_seconds_, slowest_row_seconds_ * static_cast<double>(num_rows));
  return std::max(limits_.min_seconds, limits_.factor * expected);
}

void LeadPlans::Skip(double pause, double now) { step_since_ = std::min(step_since_ + pause, now); }

}  // namespace switchyard::coordinator
