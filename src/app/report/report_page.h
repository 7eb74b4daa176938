// The report of an experiment: one HTML file that needs nothing else.
#pragma once

#include <string>

#include "app/experiment/experiment_result.h"

namespace switchyard::app {

// The page. Its first line says what the devices were; panels without data are left out.
std::string ReportPage(const ExperimentResult& result);

}  // namespace switchyard::app
