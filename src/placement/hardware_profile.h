// HardwareProfile: what was measured of a machine, as JSON files and checked before use.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "switchyard/placement/v1/hardware_profile.pb.h"

namespace switchyard::placement {

inline constexpr uint32_t kProfileSchemaVersion = 1;

// Reads a profile and checks what it says.
//
// Errors: kInvalidArgument in one line: text that is no JSON (with line and column), a field that
//         profiles do not have, another schema_version, a figure that is no rate or time, a
//         collective whose results were wrong.
absl::StatusOr<v1::HardwareProfile> ParseProfile(std::string_view json);

// The same from a file; errors name it. Also kNotFound.
absl::StatusOr<v1::HardwareProfile> ReadProfile(const std::string& path);

// JSON with the names of the proto, absent fields left out, a line feed at the end.
absl::StatusOr<std::string> ProfileJson(const v1::HardwareProfile& profile);

// What identifies the machine that runs this process.
struct MachineIdentity {
  std::string boot_id;
  std::string cpu_model;
};
MachineIdentity ReadMachineIdentity();

// Whether `profile` was measured on the machine `here` since its last start. Estimates are for any
// machine.
//
// Errors: kFailedPrecondition, saying what differs and how to measure again.
absl::Status CheckProfileIsOf(const v1::HardwareProfile& profile, const MachineIdentity& here);

}  // namespace switchyard::placement
