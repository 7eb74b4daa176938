// What the program may draw: only on a terminal, and without colour where NO_COLOR is set.
#pragma once

#include <string_view>

#include "absl/status/status.h"

#include "base/progress_bar.h"

namespace switchyard::app {

// Opens what of stdin, stdout and stderr the caller left closed, else the next file opened takes
// the number and is read as input or written over by messages. First thing in main(); may start the
// program once more.
void OpenStandardStreams(char** argv);

// True if stderr is a terminal and NO_COLOR is not set.
bool UseColor();

// Options for a bar on stderr.
ProgressBar::Options TerminalProgressOptions(ProgressBar::Unit unit = ProgressBar::Unit::kBytes);

// Writes to stdout and flushes it. Errors: kDataLoss if the reader is gone or the disk is full.
absl::Status WriteOutput(std::string_view text);

// Writes to stderr. A failure is ignored: there is nowhere left to report it.
void WriteMessage(std::string_view text);

}  // namespace switchyard::app
