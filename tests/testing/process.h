// Runs a program as a user does: its own process, real pipes, real signals.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <sys/types.h>
#include <thread>
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

// A program that runs beside the test. What it writes is collected by a thread.
class BackgroundProcess {
 public:
  // Starts `arguments` (the program first), with nothing on standard input.
  explicit BackgroundProcess(const std::vector<std::string>& arguments);
  // Kills it.
  ~BackgroundProcess();

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;

  // Waits until standard output and error together have held `text` `count` times; false: it ended
  // before, or seconds are over.
  bool WaitForOutput(const std::string& text, int count = 1, double seconds = 60);
  std::string output() const;

  // Waits for its end. The output is in `out`.
  ProcessResult Wait();

 private:
  void Collect();

  pid_t pid_ = 0;
  int output_fd_ = -1;
  bool is_reaped_ = false;
  ProcessResult result_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::string output_;
  bool is_closed_ = false;
  std::thread reader_;
};

}  // namespace switchyard::testing
