#include "app/interrupt.h"

#include <csignal>
#include <unistd.h>

#include "app/exit_code.h"

namespace switchyard::app {
namespace {

volatile std::sig_atomic_t interrupted = 0;

extern "C" void OnSignal(int) {
  if (interrupted != 0) _exit(static_cast<int>(ExitCode::kInterrupted));
  interrupted = 1;
}

}  // namespace

void InstallInterruptHandlers() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  sigemptyset(&action.sa_mask);
  // No SA_RESTART: a read from the terminal returns, so that the chat can end.
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A closed pipe is an error of write(), which the output code reports.
  std::signal(SIGPIPE, SIG_IGN);
}

bool IsInterrupted() { return interrupted != 0; }

absl::Status InterruptedStatus() {
  return WithExitCode(absl::CancelledError("interrupted"), ExitCode::kInterrupted);
}

}  // namespace switchyard::app
