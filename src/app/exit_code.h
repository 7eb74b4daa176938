// Exit codes of the program, and how a status carries one.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace switchyard::app {

enum class ExitCode : int {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,          // unknown flag, value out of range, prompt longer than the context
  kModelRejected = 3,  // the model file is missing, damaged or of an unknown kind
  kHardwareUnfit = 4,  // too little memory, no such device
  kWorkerLost = 5,     // the worker failed while it ran
  kStuck = 70,         // a worker whose step did not end
  kInterrupted = 130,  // by SIGINT or SIGTERM
};

// Returns `status` with the exit code attached; OK stays OK. The innermost code wins.
absl::Status WithExitCode(const absl::Status& status, ExitCode code);

// The attached code; kFailed if there is none, kOk for OK.
ExitCode ExitCodeOf(const absl::Status& status);

}  // namespace switchyard::app
