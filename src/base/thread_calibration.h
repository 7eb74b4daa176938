// How many threads are of use: memory is full long before a large machine runs out of cores.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/types/span.h"

#include "base/thread_pool.h"

namespace switchyard {

struct ThreadRate {
  int num_threads = 0;
  double bytes_per_second = 0;
};

// The numbers of threads that a sweep tries: 1, 2, 4, 6, 8, 12, 16, 24, ... below `most`, and
// `most`.
std::vector<int> SweepCounts(int most);

// Measures how fast each number of threads of `pool` reads `memory`, for about 20 ms each, walking
// on through it, so that caches do not help if it is large. The pool runs as many threads as before
// in the end.
//
// REQUIRES: memory is not empty and resident; each count is between 1 and pool.num_threads().
std::vector<ThreadRate> MeasureThreadRates(ThreadPool& pool, absl::Span<const std::byte> memory,
                                           absl::Span<const int> counts);

// The least number of threads that reaches 97 % of the best rate: what more threads would add is
// less than what they cost in waiting for each other.
//
// REQUIRES: rates is not empty.
int LeastOfBestThreads(absl::Span<const ThreadRate> rates);

}  // namespace switchyard
