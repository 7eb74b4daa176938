// A snapshot of residency in words, and as the message that leaves the process.
#pragma once

#include <string>

#include "switchyard/worker/v1/residency.pb.h"

#include "worker/experts/residency_table.h"

namespace switchyard::worker {

namespace v1 = switchyard::worker::v1;

// "resident 24576/24576 (device 0, host 24576, file 0)": experts of the shard in the fast tier of
// all, and where they are. An expert on its way still counts as where it was.
std::string ResidencyLine(const ResidencySnapshot& snapshot);

v1::Residency ResidencyMessage(const ResidencySnapshot& snapshot);

}  // namespace switchyard::worker
