// Where the experts of all ranks are, as JSON for dashboards and the command line.
#pragma once

#include <vector>

#include "switchyard/worker/v1/residency.pb.h"

#include "coordinator/http/json_text.h"

namespace switchyard::coordinator::http {

// Sums over all ranks, and for each rank the states as one string a layer with a letter an expert
// ('.' another rank's, 'f' file, 'h' host, 'l' loading, 'r' resident in the device, 'p' pinned),
// uses by layer and expert, and counters by layer. A rank that has told nothing yet is null.
Json ResidencyJson(const std::vector<switchyard::worker::v1::Residency>& ranks);

}  // namespace switchyard::coordinator::http
