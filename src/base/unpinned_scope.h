// Lifting the pin of a thread for a while.
#pragma once

#include <sched.h>

namespace switchyard {

// While it lives, the calling thread may use every CPU that the process's first thread may: for
// calls into libraries that may start threads, which would inherit the pin for good. Does nothing
// for a thread that is not pinned, nor on hosts with more than a thousand CPUs.
//
// Threads: made and destroyed by one.
class UnpinnedScope {
 public:
  UnpinnedScope();
  ~UnpinnedScope();
  UnpinnedScope(const UnpinnedScope&) = delete;
  UnpinnedScope& operator=(const UnpinnedScope&) = delete;

 private:
  cpu_set_t pinned_;
  bool is_lifted_ = false;
};

}  // namespace switchyard
