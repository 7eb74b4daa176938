// Where the profile of this machine is kept, and how commands get one.
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"

#include "placement/hardware_profile.h"

namespace switchyard::app {

// $XDG_CACHE_HOME/switchyard/profile.json, else below ~/.cache; empty if the environment names
// neither.
std::filesystem::path DefaultProfilePath();

// Reads `path`, or what `switchyard probe` has stored if that is empty, and checks that it was
// measured on this machine since its last start, or is an estimate.
//
// Errors: kNotFound, kInvalidArgument, kFailedPrecondition, each saying how to get a profile.
absl::StatusOr<placement::v1::HardwareProfile> LoadProfile(const std::string& path);

}  // namespace switchyard::app
