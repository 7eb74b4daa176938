#include "app/bench/spread.h"

#include <algorithm>

#include "app/load/percentiles.h"

namespace switchyard::app {

Spread SpreadOf(const std::vector<double>& samples) {
  if (samples.empty()) return {};
  const auto [min, max] = std::minmax_element(samples.begin(), samples.end());
  return {Percentile(samples, 50), *min, *max};
}

nlohmann::ordered_json SpreadJson(const std::vector<double>& samples) {
  const Spread spread = SpreadOf(samples);
  return {
      {"median", spread.median}, {"min", spread.min}, {"max", spread.max}, {"samples", samples}};
}

}  // namespace switchyard::app
