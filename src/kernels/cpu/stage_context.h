// What every stage of the cpu backend works with.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "base/check.h"
#include "base/thread_pool.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/stage_kernels.h"
#include "kernels/stage_fault.h"

namespace switchyard::kernels::cpu {

struct StageContext {
  ThreadPool& pool;
  CpuLevel level;
  const StageKernels& kernels;
  Scratch& scratch;
  absl::Span<MatMulScratch> matmul;  // one a thread
  StageFault& fault;

  int num_threads() const { return pool.num_threads(); }
};

// Elementwise work on up to this many values is done by the step thread: waking the others and
// moving the data to their caches would cost more than it saves.
inline constexpr int64_t kInlineValues = 32768;

// Calls body(task, thread) for each task, on the pool if there is enough to do. Results must not
// depend on which.
template <typename Body>
void ForEach(const StageContext& context, int64_t num_tasks, int64_t values_per_task, Body&& body) {
  if (context.num_threads() == 1 || num_tasks * values_per_task <= kInlineValues) {
    for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
  } else {
    context.pool.ParallelFor(num_tasks, body);
  }
}

}  // namespace switchyard::kernels::cpu
