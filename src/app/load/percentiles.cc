#include "app/load/percentiles.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace switchyard::app {

double Percentile(std::vector<double> samples, double percent) {
  if (samples.empty()) return 0;
  const auto rank =
      static_cast<size_t>(std::ceil(percent / 100 * static_cast<double>(samples.size())));
  const auto nth = samples.begin() + static_cast<ptrdiff_t>(std::max<size_t>(rank, 1) - 1);
  std::nth_element(samples.begin(), nth, samples.end());
  return *nth;
}

}  // namespace switchyard::app
