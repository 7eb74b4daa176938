// A process that takes CPU time, for measurements of what that does to us.
#pragma once

#include <sys/types.h>

namespace switchyard::app {

// A child process that never sleeps, on one CPU. It ends with this object, and with this process.
class Competitor {
 public:
  // Does nothing if the process cannot be started: is_running() tells.
  explicit Competitor(int cpu);
  ~Competitor();
  Competitor(const Competitor&) = delete;
  Competitor& operator=(const Competitor&) = delete;

  bool is_running() const { return pid_ > 0; }

 private:
  pid_t pid_ = -1;
};

}  // namespace switchyard::app
