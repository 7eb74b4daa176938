#include "base/unpinned_scope.h"

#include <unistd.h>

namespace switchyard {

UnpinnedScope::UnpinnedScope() {
  cpu_set_t all;
  if (sched_getaffinity(0, sizeof(pinned_), &pinned_) != 0) return;
  if (CPU_COUNT(&pinned_) > 1) return;  // the pool pins to one
  // The thread whose number is that of the process is its first.
  if (sched_getaffinity(getpid(), sizeof(all), &all) != 0 || CPU_EQUAL(&all, &pinned_)) return;
  is_lifted_ = sched_setaffinity(0, sizeof(all), &all) == 0;
}

UnpinnedScope::~UnpinnedScope() {
  if (is_lifted_) sched_setaffinity(0, sizeof(pinned_), &pinned_);
}

}  // namespace switchyard
