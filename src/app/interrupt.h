// SIGINT and SIGTERM as a flag.
#pragma once

#include "absl/status/status.h"

namespace switchyard::app {

// Installs the handlers. A second signal ends the process at once, should something hang.
void InstallInterruptHandlers();

// True after a signal.
bool IsInterrupted();

// kCancelled with the exit code of an interrupt.
absl::Status InterruptedStatus();

}  // namespace switchyard::app
