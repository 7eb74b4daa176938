// Counts the allocations of a test program: linking this replaces its operator new.
#pragma once

#include <cstdint>

namespace switchyard::worker {

// Counts from its construction on, in all threads. One at a time.
class AllocationCounter {
 public:
  AllocationCounter();
  ~AllocationCounter();
  int64_t count() const;
};

}  // namespace switchyard::worker
