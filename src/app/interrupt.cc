#include "app/interrupt.h"

#include <cerrno>
#include <csignal>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "app/exit_code.h"

namespace switchyard::app {
namespace {

volatile std::sig_atomic_t interrupted = 0;
volatile std::sig_atomic_t reload_wanted = 0;
int wake_fd = -1;  // an eventfd: what a handler may write to

void Wake() {
  const int saved_errno = errno;
  const uint64_t one = 1;
  // Fails only if the counter is full: then the reader wakes anyway.
  [[maybe_unused]] const ssize_t written = write(wake_fd, &one, sizeof(one));
  errno = saved_errno;
}

extern "C" void OnInterrupt(int) {
  if (interrupted != 0) _exit(static_cast<int>(ExitCode::kInterrupted));
  interrupted = 1;
  Wake();
}

extern "C" void OnReload(int) {
  reload_wanted = 1;
  Wake();
}

void Catch(int signal_number, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  // No SA_RESTART: a read from the terminal returns, so that the chat can end.
  sigaction(signal_number, &action, nullptr);
}

}  // namespace

void InstallInterruptHandlers() {
  wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  Catch(SIGINT, OnInterrupt);
  Catch(SIGTERM, OnInterrupt);
  // A closed pipe is an error of write(), which the output code reports.
  std::signal(SIGPIPE, SIG_IGN);
}

bool IsInterrupted() { return interrupted != 0; }

absl::Status InterruptedStatus() {
  return WithExitCode(absl::CancelledError("interrupted"), ExitCode::kInterrupted);
}

void CatchReload() { Catch(SIGHUP, OnReload); }

WakeUp WaitForWakeUp() {
  while (true) {
    if (interrupted != 0) return WakeUp::kInterrupt;
    if (reload_wanted != 0) {
      reload_wanted = 0;
      return WakeUp::kReload;
    }
    pollfd waiting = {wake_fd, POLLIN, 0};
    if (poll(&waiting, 1, -1) < 0) continue;  // a signal: its flag is looked at first
    uint64_t count = 0;
    if (read(wake_fd, &count, sizeof(count)) != sizeof(count)) continue;
    if (interrupted == 0 && reload_wanted == 0) return WakeUp::kNotified;
  }
}

void NotifyWakeUp() { Wake(); }

}  // namespace switchyard::app
