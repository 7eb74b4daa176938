// What a profile says of the host itself.
#pragma once

#include "switchyard/placement/v1/hardware_profile.pb.h"

namespace switchyard::app {

// Reads names, cores, memory and limits. What the system does not show stays absent.
placement::v1::Host ReadHostFacts();

}  // namespace switchyard::app
