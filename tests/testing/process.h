// Runs a program as a user does: its own process, real pipes, real signals.
#pragma once

#include <functional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace switchyard::testing {

struct ProcessResult {
  int exit_code = -1;  // -1: ended by a signal
  int signal = 0;
  std::string out;
  std::string err;
};

struct ProcessOptions {
  std::string input{};                     // on standard input
  std::vector<std::string> environment{};  // "NAME=value", added to this process's own
  // Called with the process id once `when_out_has` bytes have come on standard output.
  size_t when_out_has = 0;
  std::function<void(pid_t)> then{};
  int64_t max_file_bytes = 0;  // RLIMIT_FSIZE; 0 = none
  std::string out_path{};      // standard output goes to this file instead
};

// Runs `arguments` (the program first) to its end.
ProcessResult RunProcess(const std::vector<std::string>& arguments,
                         const ProcessOptions& options = {});

}  // namespace switchyard::testing
