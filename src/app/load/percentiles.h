// Percentiles as every report of the project means them.
#pragma once

#include <vector>

namespace switchyard::app {

// Nearest rank: the smallest sample that at least `percent` of all samples do not exceed. 0 without
// samples.
// REQUIRES: 0 < percent <= 100.
double Percentile(std::vector<double> samples, double percent);

}  // namespace switchyard::app
