// Samples of a measurement in short: median, least and most.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

namespace switchyard::app {

struct Spread {
  double median = 0;  // of an even number of samples the lower of the two
  double min = 0;
  double max = 0;
};

// Of the samples; zeros if there are none.
Spread SpreadOf(const std::vector<double>& samples);

// {"median", "min", "max", "samples"}, the last in the order in which they came.
nlohmann::ordered_json SpreadJson(const std::vector<double>& samples);

}  // namespace switchyard::app
