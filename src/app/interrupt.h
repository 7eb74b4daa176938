// Signals that end a command, and those that a server reacts to.
#pragma once

#include "absl/status/status.h"

namespace switchyard::app {

// Installs the handlers of SIGINT and SIGTERM. A second signal ends the process at once, should
// something hang.
void InstallInterruptHandlers();

// True after SIGINT or SIGTERM.
bool IsInterrupted();

// kCancelled with the exit code of an interrupt.
absl::Status InterruptedStatus();

enum class WakeUp {
  kInterrupt,  // SIGINT or SIGTERM
  kReload,     // SIGHUP
  kNotified,   // by NotifyWakeUp()
};

// From here on SIGHUP does not end the process but is returned by WaitForWakeUp(). Once.
void CatchReload();

// Waits for the next of them. An interrupt stays: it is returned by every later call.
// Threads: one.
WakeUp WaitForWakeUp();

// Ends the wait. Threads: any.
void NotifyWakeUp();

}  // namespace switchyard::app
