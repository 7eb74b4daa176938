#include "app/exit_code.h"

#include <string>

#include "absl/strings/cord.h"

namespace switchyard::app {
namespace {

constexpr char kPayload[] = "switchyard.exit_code";

}  // namespace

absl::Status WithExitCode(const absl::Status& status, ExitCode code) {
  if (status.ok() || status.GetPayload(kPayload)) return status;
  absl::Status out = status;
  out.SetPayload(kPayload, absl::Cord(std::to_string(static_cast<int>(code))));
  return out;
}

ExitCode ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return ExitCode::kOk;
  const auto payload = status.GetPayload(kPayload);
  if (!payload) return ExitCode::kFailed;
  return static_cast<ExitCode>(std::stoi(std::string(*payload)));
}

}  // namespace switchyard::app
