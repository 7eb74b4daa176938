#include "app/terminal.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#include "base/status.h"

namespace switchyard::app {

bool UseColor() {
  const char* no_color = std::getenv("NO_COLOR");
  return IsTerminal(STDERR_FILENO) && (no_color == nullptr || *no_color == '\0');
}

ProgressBar::Options TerminalProgressOptions(ProgressBar::Unit unit) {
  ProgressBar::Options options;
  options.enabled = IsTerminal(STDERR_FILENO);
  options.color = UseColor();
  options.unit = unit;
  return options;
}

absl::Status WriteOutput(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return DataLoss("cannot write to standard output: {}", std::strerror(errno));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::app
