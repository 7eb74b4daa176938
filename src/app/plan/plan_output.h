// The plans of `switchyard plan`, as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/model_spec.h"
#include "placement/planner.h"

namespace switchyard::app {

struct PlanOutput {
  const model::ModelSpec& spec;
  const placement::v1::HardwareProfile& profile;
  const placement::PlanRequest& request;
  const std::vector<placement::Plan>& plans;
  const placement::NamedPlans& named;
};

// A table in Markdown of the plans that can run, times in ms; then the reasons for each, and FAST
// and LONG.
std::string PlanText(const PlanOutput& output);

nlohmann::ordered_json PlanJson(const PlanOutput& output);

}  // namespace switchyard::app
