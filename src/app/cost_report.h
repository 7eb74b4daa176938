// Ledgers for people and programs: where the time of steps went.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/step_costs.h"

namespace switchyard::app {

// A table with a line for each stage that took part, the time that no stage covers, and the whole;
// ends with a line on the time between steps. With several ranks one for each, and one of links.
std::string CostTable(const coordinator::StepCosts& costs);

// The same as data: {"steps", "seconds", "idle_seconds", "unattributed_seconds", "stages":
// [{"stage", "seconds", "weight_bytes"}]}, and with several ranks "ranks" and "links".
nlohmann::ordered_json CostsJson(const coordinator::StepCosts& costs);

}  // namespace switchyard::app
