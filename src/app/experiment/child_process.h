// A process of an experiment: started on given CPUs, read line by line, ended with its owner.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "absl/status/statusor.h"

namespace switchyard::app {

// Threads: one.
class ChildProcess {
 public:
  // Starts this program with `arguments`. `cpus` empty = wherever this process may run.
  // Errors: kResourceExhausted if there can be no pipe or process.
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& arguments,
                                            const std::vector<int>& cpus);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  // Takes what it has written since the last call, without waiting.
  void Poll();

  // What follows `prefix` in a line of its output (standard output and error); nothing = no such
  // line yet.
  std::optional<std::string> FindLine(const std::string& prefix) const;
  // The last line, as where a program says why it ends.
  std::string last_line() const { return lines_.empty() ? "" : lines_.back(); }

  // Its exit code, 128 and more for signals; nothing = it runs.
  std::optional<int> exit_code();

 private:
  ChildProcess(pid_t pid, int output) : pid_(pid), output_(output) {}

  pid_t pid_;
  int output_;
  std::optional<int> exit_code_;
  std::string rest_;  // of a line whose end has not come
  std::deque<std::string> lines_;
};

}  // namespace switchyard::app
