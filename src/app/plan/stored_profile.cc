#include "app/plan/stored_profile.h"

#include "app/thread_cache.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::app {

std::filesystem::path DefaultProfilePath() {
  const std::filesystem::path beside = DefaultThreadCachePath();
  return beside.empty() ? beside : beside.parent_path() / "profile.json";
}

absl::StatusOr<placement::v1::HardwareProfile> LoadProfile(const std::string& path) {
  const std::string file = path.empty() ? DefaultProfilePath().string() : path;
  if (path.empty() && (file.empty() || !std::filesystem::exists(file))) {
    return NotFound(
        "no profile of this machine: measure one with switchyard probe, or name one with --profile "
        "(deploy/profiles has estimates)");
  }
  SWITCHYARD_ASSIGN_OR_RETURN(placement::v1::HardwareProfile profile, placement::ReadProfile(file));
  const absl::Status is_here =
      placement::CheckProfileIsOf(profile, placement::ReadMachineIdentity());
  if (!is_here.ok()) return WithContext(is_here, file);
  return profile;
}

}  // namespace switchyard::app
